"""A target with its cells filled: the paper's number, ours, the ratio, status, hardware and time."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from factformer.evaluation.provenance import provenance, write_json
from factformer.report.tables import Column, Table, format_value
from factformer.studies.cells import Cell, Target
from factformer.studies.runner import Ended


@dataclass(frozen=True)
class StudyResult:
    """A target with its cells filled as far as they could be."""

    target: Target
    scale: str
    ended: tuple[Ended, ...]
    """How the work of each cell ended, in the order of the cells."""
    folder: Path
    seconds: float
    device: str = "cpu"

    def rows(self) -> list[dict[str, Any]]:
        """One row per cell, full precision."""
        return [cell_row(cell, done) for cell, done in zip(self.target.cells, self.ended, strict=True)]

    @property
    def failed(self) -> bool:
        """Whether nothing of the target could be done."""
        return bool(self.ended) and all(done.word == "failed" for done in self.ended)

    def table(self) -> Table:
        """For people: numbers as they are read."""
        columns = [
            Column("row", "Model or setting"),
            Column("quantity", "Quantity"),
            Column("paper", "Paper"),
            Column("ours", "Ours"),
            Column("standard_error", "±"),
            Column("ratio", "Ratio", "number"),
            Column("status", "Status"),
            Column("hardware", "Hardware"),
            Column("wall_seconds", "Wall time (s)", "number"),
        ]
        shown = []
        for cell, row in zip(self.target.cells, self.rows(), strict=True):
            texts = {key: format_value(row[key], cell.kind) for key in ("paper", "ours")}
            error = row["standard_error"]
            shown.append({**row, **texts, "standard_error": None if error is None else f"{error:.4f}"})
        return Table(f"{self.target.title} ({self.scale})", columns, shown, note=self.target.note)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready: rows and where they come from."""
        return {
            "target": self.target.name,
            "title": self.target.title,
            "scale": self.scale,
            "note": self.target.note,
            "cells": self.rows(),
            "complete": all(row["ours"] is not None for row in self.rows() if row["status"] != "published only"),
            **provenance(seed=0, seconds=self.seconds, device=self.device),
        }

    def write(self) -> list[Path]:
        """``result.json`` with everything; the table as Markdown for people, as CSV and JSON with all digits."""
        self.folder.mkdir(parents=True, exist_ok=True)
        write_json(self.folder / "result.json", self.to_dict())
        exact = Table(self.table().title, self.table().columns, self.rows())
        texts = {"table.md": self.markdown(), "table.csv": exact.to_csv(), "table.json": exact.to_json()}
        for name, text in texts.items():
            (self.folder / name).write_text(text, encoding="utf-8")
        return [self.folder / name for name in ("result.json", *texts)]

    def markdown(self) -> str:
        """The table under its title, with the note of the target."""
        note = f"\n{self.target.note}\n" if self.target.note else ""
        return f"## {self.target.title} ({self.scale})\n\n{self.table().to_markdown()}{note}"


def cell_row(cell: Cell, done: Ended) -> dict[str, Any]:
    """The numbers of one cell; ``ours`` is None where there is no result."""
    ours = find_value(done.result, cell.path) if done.result is not None else None
    error = find_value(done.result, cell.error_path) if done.result is not None and cell.error_path else None
    status = done.status
    if ours is None and done.result is not None and done.word != "failed":
        status = "failed (the roll-out diverged)"
    return {
        "row": cell.row,
        "quantity": cell.quantity,
        "paper": cell.paper,
        "ours": ours,
        "standard_error": error,
        "ratio": None if ours is None or not cell.paper else ours / cell.paper,
        "status": status,
        "hardware": done.hardware or None,
        "wall_seconds": None if done.seconds is None else round(done.seconds, 2),
        "run": Path(done.folder).name if done.folder else None,
    }


def find_value(result: Mapping[str, Any], path: str) -> float | None:
    """The finite number at a dotted path of keys and list positions, or None."""
    value: Any = result
    for key in path.split("."):
        if isinstance(value, Mapping):
            value = value.get(key)
        elif isinstance(value, list) and key.isdigit() and int(key) < len(value):
            value = value[int(key)]
        else:
            return None
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else None
