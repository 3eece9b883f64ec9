"""Rows of numbers as a terminal table, Markdown, CSV and JSON: one table, four faces."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from factformer._support.text import printable
from factformer.report.runs import ReportRun, told_apart
from factformer.report.style import PROTOCOL_LABELS

if TYPE_CHECKING:
    from rich.table import Table as RichTable

Kind = Literal["text", "error", "number", "count", "seconds", "megabytes"]
MISSING = "–"
OWN_METRIC = "metric: "
"""How keys of a user's own metrics begin."""
ONLY_IN_TIME = (".relative_l2_final", ".correlation_time")


@dataclass(frozen=True)
class Column:
    """A column: the key of its values in the rows, its heading, how they print, and which one is best."""

    key: str
    title: str
    kind: Kind = "text"
    best: Literal["lowest", "highest"] | None = None
    group: str = ""
    spread: str = ""
    """The key of the deviation that is printed behind the value, as in ``0.031 ± 0.002``."""

    @property
    def heading(self) -> str:
        """The title with the group it belongs to."""
        return f"{self.group}: {self.title}" if self.group else self.title

    @property
    def is_number(self) -> bool:
        return self.kind != "text"


@dataclass(frozen=True)
class Table:
    """Columns, rows by column key, rows that are shown but do not compete, such as persistence, and a note below."""

    title: str
    columns: Sequence[Column]
    rows: Sequence[Mapping[str, Any]]
    reference_rows: Sequence[Mapping[str, Any]] = field(default_factory=tuple)
    note: str = ""

    @property
    def all_rows(self) -> list[Mapping[str, Any]]:
        return [*self.rows, *self.reference_rows]

    def best_row(self, column: Column) -> int | None:
        """Index of the best row in a column; None without an order, a rival, or in a tie."""
        values = [row.get(column.key) for row in self.rows]
        known = [float(v) for v in values if isinstance(v, (int, float)) and math.isfinite(v)]
        if column.best is None or len(known) < 2:
            return None
        best = (min if column.best == "lowest" else max)(known)
        return values.index(best) if known.count(best) == 1 else None

    def to_markdown(self) -> str:
        """A Markdown table with the best of each column in bold."""
        best = {column.key: self.best_row(column) for column in self.columns}
        lines = [
            "| " + " | ".join(_markdown(column.heading) for column in self.columns) + " |",
            "|" + "|".join("---:" if column.is_number else ":---" for column in self.columns) + "|",
        ]
        for i, row in enumerate(self.all_rows):
            cells = [_markdown(format_cell(row, column)) for column in self.columns]
            bold = [f"**{c}**" if best[k.key] == i else c for c, k in zip(cells, self.columns, strict=True)]
            lines.append("| " + " | ".join(bold) + " |")
        return "\n".join(lines) + "\n"

    def to_csv(self) -> str:
        """Full precision, one line per row, empty where a value is missing; no text is a formula to a spreadsheet."""
        buffer = io.StringIO()
        writer = csv.writer(buffer, lineterminator="\n")
        writer.writerow([_no_formula(column.key) for column in self.columns])
        for row in self.all_rows:
            writer.writerow([_no_formula(_plain(row.get(column.key))) for column in self.columns])
        return buffer.getvalue()

    def to_json(self) -> str:
        """Full precision; values that are missing or not finite are null."""
        rows = [{column.key: _plain(row.get(column.key)) for column in self.columns} for row in self.all_rows]
        titles = {column.key: column.heading for column in self.columns}
        return json.dumps({"title": self.title, "columns": titles, "rows": rows}, indent=2, ensure_ascii=False)

    def within(self, width: int) -> list[Table]:
        """The table as one or more that are at most ``width`` characters wide; each begins with the first column.

        Headings may break between words; what stands in a cell is never cut, however wide.
        """
        sizes = [self.size(column) for column in self.columns]
        blocks: list[list[Column]] = [[]]
        left = 0
        for column, size in list(zip(self.columns, sizes, strict=True))[1:]:
            needed = size + len("│  ")
            if not blocks[-1] or needed <= left:
                blocks[-1].append(column)
            else:
                blocks.append([column])
            if len(blocks[-1]) == 1:
                left = width - sizes[0] - len("│  │")
            left -= needed
        return [
            replace(
                self,
                title=self.title if index == 0 else "",
                columns=[self.columns[0], *block],
                note=self.note if index == len(blocks) - 1 else "",
            )
            for index, block in enumerate(blocks)
        ]

    def size(self, column: Column) -> int:
        """The least characters of a column: its longest cell, or the longest word of its heading."""
        texts = [*column.heading.split(), *(format_cell(row, column) for row in self.all_rows)]
        return max(len(printable(text)) for text in texts)

    def to_rich(self, width: int | None = None) -> RichTable:
        """For the terminal, the best of each column in bold and the note below.

        Where the table is wider than ``width``, headings are broken between words.
        """
        widths = [max(len(column.heading), self.size(column)) for column in self.columns]
        tight = width is not None and sum(widths) + len("│  ") * len(widths) + len("│") > width
        from rich.table import Table as RichTable
        from rich.text import Text

        note = Text(self.note) if self.note else None
        title = Text(printable(self.title)) if self.title else None
        table = RichTable(title=title, title_justify="left", caption=note, caption_justify="left")
        best = {column.key: self.best_row(column) for column in self.columns}
        for column in self.columns:
            justify: Literal["left", "right"] = "right" if column.is_number else "left"
            size = self.size(column) if tight else None
            table.add_column(Text(printable(column.heading)), justify=justify, width=size)
        for i, row in enumerate(self.all_rows):
            style = "dim" if i >= len(self.rows) else ""
            table.add_row(
                *(
                    Text(printable(format_cell(row, c)), style="bold" if best[c.key] == i else style)
                    for c in self.columns
                )
            )
        return table


def format_cell(row: Mapping[str, Any], column: Column) -> str:
    """What a cell shows: the value, and its spread where the column has one."""
    text = format_value(row.get(column.key), column.kind)
    spread = row.get(column.spread) if column.spread else None
    return text if spread is None or text == MISSING else f"{text} ± {format_value(spread, column.kind)}"


def format_value(value: Any, kind: Kind) -> str:
    """A value as people read it: errors with four digits, counts with K, M or G, a dash for none."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return MISSING
    if kind == "text" or isinstance(value, str):
        return str(value)
    number = float(value)
    if kind == "count":
        return format_count(number)
    if kind == "error":
        return f"{number:.4f}" if abs(number) < 100 else f"{number:.2e}"
    if kind == "megabytes":
        return f"{number:,.0f}"
    return f"{number:.3g}" if kind == "number" or number < 100 else f"{number:,.0f}"


def format_count(number: float) -> str:
    for unit, scale in (("G", 1e9), ("M", 1e6), ("K", 1e3)):
        if abs(number) >= scale:
            return f"{number / scale:.3g} {unit}"
    return f"{number:.0f}"


def comparison_table(runs: Sequence[ReportRun], *, note: str = "") -> Table:
    """All runs side by side: errors per field group, cost and size, with what costs nothing as the floor."""
    groups = list(dict.fromkeys(group for run in runs for group in run.evaluation.fields))
    columns = [Column("model", "Model"), Column("protocol", "Protocol")]
    if differ_in_split(runs):
        columns.append(Column("split", "Split"))
    for group in groups:
        columns += [
            Column(f"{group}.relative_l2", "error", "error", "lowest", group),
            Column(f"{group}.standard_error", "±", "error", None, group),
            Column(f"{group}.relative_l2_final", "last frame", "error", "lowest", group),
            Column(f"{group}.vrmse", "VRMSE", "error", "lowest", group),
            Column(f"{group}.spectrum_error", "spectrum error", "number", "lowest", group),
            Column(f"{group}.correlation_time", "correlation time", "number", "highest", group),
        ]
    if all(is_steady(run) for run in runs):
        columns = [column for column in columns if not column.key.endswith(ONLY_IN_TIME)]
    columns += [Column(f"{OWN_METRIC}{name}", name, "number") for name in own_metrics(runs)]
    columns += [
        Column("parameters", "Parameters", "count"),
        Column("seconds_per_sequence", "Seconds per sequence", "seconds", "lowest"),
        Column("peak_memory_mb", "Peak memory (MB)", "megabytes", "lowest"),
    ]
    rows = [_run_row(run, name, columns) for run, name in zip(runs, _row_names(runs), strict=True)]
    floor = _floor_row(runs)
    known = [*rows, floor]
    used = [column for column in columns if any(_plain(row.get(column.key)) is not None for row in known)]
    return Table("Comparison", used, rows, [floor] if len(floor) > 1 else [], note)


def own_metrics(runs: Sequence[ReportRun]) -> list[str]:
    """Names of the users' own metrics that any of the runs was evaluated with."""
    return list(dict.fromkeys(name for run in runs for name in run.evaluation.metrics))


def differ_in_split(runs: Sequence[ReportRun]) -> bool:
    """Whether the errors of the runs are of different data, such as one on what it trained on."""
    return len({run.evaluation.split for run in runs}) > 1


def is_steady(run: ReportRun) -> bool:
    """Whether a run predicts a single frame, so that its last frame and its lifetime say nothing."""
    return run.evaluation.num_frames == 1


def floor_name(runs: Sequence[ReportRun]) -> str:
    """What the runs are held against: persistence, or the training mean of a steady problem."""
    return "training mean" if runs[0].evaluation.floor == "training mean" else "persistence"


def _row_names(runs: Sequence[ReportRun]) -> list[str]:
    """Plain names, since the protocol has its own column; equal ones of one protocol are told apart."""
    return told_apart(runs, [run.name for run in runs])


def _run_row(run: ReportRun, name: str, columns: Sequence[Column]) -> dict[str, Any]:
    row: dict[str, Any] = {"model": name}
    if run.protocol:
        row["protocol"] = PROTOCOL_LABELS.get(run.protocol, run.protocol)
    own = run.evaluation.metrics
    for column in columns[2:]:
        if column.key.startswith(OWN_METRIC):
            row[column.key] = _plain(own[column.title].mean if column.title in own else None)
            continue
        group, _, quantity = column.key.rpartition(".")
        source = run.evaluation.fields.get(group) if group else run.evaluation
        row[column.key] = _plain(getattr(source, quantity, None))
    return row


def _floor_row(runs: Sequence[ReportRun]) -> dict[str, Any]:
    row: dict[str, Any] = {"model": floor_name(runs)}
    for run in runs:
        for name, metric in run.evaluation.metrics.items():
            if metric.floor is not None:
                row.setdefault(f"{OWN_METRIC}{name}", metric.floor)
        for group, values in run.evaluation.fields.items():
            for quantity in ("relative_l2", "relative_l2_final"):
                if (error := getattr(values.persistence, quantity)) is not None:
                    row.setdefault(f"{group}.{quantity}", error)
    return row


def _markdown(text: str) -> str:
    """A text that Markdown shows as it is, inside a table too."""
    return re.sub(r"([\\`*<>\[\]|$~])", r"\\\1", printable(text))


def _no_formula(value: Any) -> Any:
    """A text that a spreadsheet does not take for a formula; numbers stay numbers."""
    if not isinstance(value, str):
        return value
    text = printable(value)
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
