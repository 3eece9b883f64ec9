"""Reading result files: what was found, by which run, and whether two of them can be compared."""

from __future__ import annotations

import json
import statistics
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from lab import ROOT
from lab.campaign.entries import AUTOREGRESSIVE, Entry

NOT_RUN = "not run yet"
ZERO = {"seconds": 0.0, "update": 0}


def read_measured(name: str) -> dict[str, Any]:
    """A measurement that is no training: a file below the folder of results."""
    content: dict[str, Any] = json.loads((ROOT / "results" / name).read_text(encoding="utf-8"))
    return content


@dataclass(frozen=True)
class Finding:
    """One result file."""

    path: str
    """Below the folder of results."""
    result: Mapping[str, Any]

    @property
    def model(self) -> str:
        return str(self.result["model"])

    @property
    def label(self) -> str:
        """The model, and its protocol where it is not the usual one."""
        return f"`{self.model}`" + (", autoregressive" if self.protocol == AUTOREGRESSIVE else "")

    @property
    def protocol(self) -> str:
        return str(self.result["training"]["protocol"]["name"])

    @property
    def training(self) -> Mapping[str, Any]:
        """The training section of the experiment."""
        section: Mapping[str, Any] = self.result["training"]["training"]
        return section

    @property
    def minutes(self) -> float:
        return float(self.result["training"]["training_seconds"]) / 60

    @property
    def updates(self) -> int:
        return int(self.result["training"]["updates"])

    @property
    def updates_per_second(self) -> float:
        return self.updates / float(self.result["training"]["training_seconds"])

    @property
    def beside(self) -> str:
        """What else used the device during the training, which then made fewer updates than it would have alone."""
        return str(self.result["training"].get("beside", ""))

    @property
    def trouble(self) -> str:
        """A note where training diverged and was resumed from a checkpoint with a smaller learning rate."""
        lines = [line for line in self.result.get("metrics", ()) if "learning_rate" in line]
        went_back = self.result["training"].get("rollbacks")
        if went_back is None:  # older files do not say it, but a learning rate that never reached its value does
            highest = max((line["learning_rate"] for line in lines), default=float("inf"))
            went_back = highest < 0.7 * float(self.training["learning_rate"])
        if not went_back or not lines:
            return ""
        # Going back removes lines from the log, so the time lost shows as a gap between two lines.
        spans = [(b["seconds"] - a["seconds"], b["update"] - a["update"]) for a, b in pairwise([ZERO, *lines])]
        usual = statistics.median(seconds / updates for seconds, updates in spans)
        lost = sum(max(seconds - 1.5 * usual * updates, 0.0) for seconds, updates in spans)
        return f"diverged, went back to a checkpoint and then had a smaller learning rate; about {lost:.0f} s were lost"

    @property
    def split(self) -> str:
        return str(self.result.get("split", "test"))

    @property
    def test_set(self) -> str:
        return str(self.result["dataset_fingerprint"])

    @property
    def total(self) -> float:
        """What rows are ordered by: the sum of the errors of all fields; a roll-out that diverged comes last."""
        errors = [field["relative_l2"] for field in self.result["fields"].values()]
        return float("inf") if None in errors else float(sum(errors))

    def error(self, field: str, key: str = "relative_l2") -> float | None:
        value = self.result["fields"].get(field, {}).get(key)
        return None if value is None else float(value)

    def shown(self, field: str) -> str:
        """Error ± standard error."""
        return with_spread(self.error(field), self.error(field, "standard_error"))

    def shown_final(self, field: str) -> str:
        """The same of the last frame."""
        return with_spread(self.error(field, "relative_l2_final"), self.error(field, "standard_error_final"))


def with_spread(error: float | None, spread: float | None) -> str:
    if error is None:
        return "diverged"
    return f"{error:.4f}" + ("" if spread is None else f" ± {spread:.4f}")


def read_findings(results: Path, pattern: str = "*/*.json") -> dict[str, Finding]:
    """All result files of trained runs by path; other measurements are left out."""
    found = {}
    for file in sorted(results.glob(pattern)):
        values = json.loads(file.read_text(encoding="utf-8"))
        if {"fields", "training", "model"} <= set(values):
            path = str(file.relative_to(results))
            found[path] = Finding(path, values)
    return found


def of_entries(entries: list[Entry], found: Mapping[str, Finding]) -> tuple[list[Finding], list[Entry]]:
    """Findings of the entries, best first, and the entries that have none yet."""
    there = [found[entry.path] for entry in entries if entry.path in found]
    missing = [entry for entry in entries if entry.path not in found]
    return sorted(there, key=lambda finding: finding.total), missing


def paragraph(text: str) -> list[str]:
    """A paragraph in lines of the usual length, links left whole."""
    return textwrap.wrap(text, 115, break_on_hyphens=False, break_long_words=False)


def markdown(columns: list[str], rows: list[list[str]]) -> list[str]:
    """A table; the first column is text, the others are numbers."""
    head = "|".join(["---"] + ["---:"] * (len(columns) - 1))
    return [f"| {' | '.join(columns)} |", f"|{head}|", *(f"| {' | '.join(row)} |" for row in rows)]
