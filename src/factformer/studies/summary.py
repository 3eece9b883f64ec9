"""What a study found: a row for each group of runs, with mean and spread over seeds, as a table and as files."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, overload

from factformer._support.documents import finite, json_text, read_json
from factformer._support.files import write_atomically
from factformer._support.run_names import BUNDLE
from factformer.evaluation.provenance import provenance
from factformer.evaluation.results import evaluation_of
from factformer.report.common_times import Times, common_times, evaluation_at
from factformer.report.style import PROTOCOL_LABELS
from factformer.report.tables import Column, Table
from factformer.studies.combinations import Group, Study
from factformer.studies.runner import Ended
from factformer.zoo.description import DESCRIPTION

ERRORS = (("relative_l2", "error"), ("relative_l2_final", "last frame"))
RUN_COSTS = ("parameters", "seconds_per_sequence", "peak_memory_mb")
TRAINING_COSTS = ("updates", "training_seconds")
NO_TIME = "The runs predict no time in common, so their errors are not compared."


@dataclass(frozen=True)
class FinishedGroup:
    """A group and how the run of each seed ended."""

    group: Group
    seeds: tuple[int, ...]
    ended: tuple[Ended, ...]

    @property
    def results(self) -> list[Mapping[str, Any]]:
        return [one.result for one in self.ended if one.result is not None]

    @property
    def status(self) -> str:
        """Such as ``done`` or ``2 of 3 seeds; failed (out of memory)``."""
        missing = [one for one in self.ended if one.result is None]
        if not missing:
            return "done"
        reasons = "; ".join(dict.fromkeys(one.status for one in missing))
        return f"{len(self.ended) - len(missing)} of {len(self.ended)} seeds; {reasons}" if self.results else reasons

    def run_row(self, index: int) -> dict[str, Any]:
        """The numbers of one seed."""
        one = self.ended[index]
        row: dict[str, Any] = {**group_cells(self.group), "seed": self.seeds[index]}
        result = one.result or {}
        for field, errors in result.get("fields", {}).items():
            row |= {f"{field}.{key}": errors[key] for key in (*dict(ERRORS), "standard_error", "standard_error_final")}
        row |= {key: result.get(key) for key in RUN_COSTS} | training_costs(one)
        return row | {"status": "done" if one.result else one.status, "run": Path(one.folder).name or None}


class StudySummary(Sequence[Mapping[str, Any]]):
    """The rows of a study, best read as a table: ``pandas.DataFrame(summary)``."""

    def __init__(self, study: Study, groups: Sequence[FinishedGroup], folder: Path, seconds: float, device: str):
        self.study, self.groups, self.folder, self.seconds, self.device = study, tuple(groups), folder, seconds, device
        self.compared, self.times = at_common_times(self.groups)
        self.rows = [group_row(group) for group in self.compared]

    @overload
    def __getitem__(self, index: int) -> Mapping[str, Any]: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Mapping[str, Any]]: ...
    def __getitem__(self, index: int | slice) -> Mapping[str, Any] | Sequence[Mapping[str, Any]]:
        return self.rows[index]

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        return iter(self.rows)

    def is_comparable(self, recipe: str) -> bool:
        """Whether there are times that all runs of a recipe predict."""
        return self.times.get(recipe, ...) is not None

    @property
    def words(self) -> set[str]:
        """How the runs ended."""
        return {one.word for group in self.groups for one in group.ended}

    @property
    def run_rows(self) -> list[dict[str, Any]]:
        """One row for each run."""
        return [group.run_row(index) for group in self.compared for index in range(len(group.seeds))]

    def table(self) -> Table:
        """Mean over seeds, standard deviation over seeds, and the standard error over test windows."""
        fields = list(
            dict.fromkeys(field for group in self.compared for one in group.results for field in one["fields"])
        )
        columns = [*self._identity_columns(), Column("seeds", "Seeds", "count")]
        for field in fields:
            for key, title in ERRORS:
                name = f"{field}.{key}"
                columns.append(Column(name, title, "error", "lowest", field, spread=f"{name}.deviation"))
            columns.append(Column(f"{field}.standard_error", "over windows", "error", None, field))
        columns += [
            Column("parameters", "Parameters", "count"),
            Column("updates", "Updates", "count"),
            Column("training_seconds", "Training (s)", "seconds"),
            Column("seconds_per_sequence", "Seconds per sequence", "seconds", "lowest"),
            Column("peak_memory_mb", "Peak memory (MB)", "megabytes", "lowest"),
            Column("status", "Status"),
        ]
        steady = all(one["num_frames"] == 1 for group in self.groups for one in group.results)
        columns = [column for column in columns if not (steady and column.key.endswith("relative_l2_final"))]
        return Table("Study", columns, self.rows, note=self._note())

    def _note(self) -> str:
        note = "±: standard deviation over seeds; over windows: standard error over the test windows."
        for recipe, times in self.times.items():
            said = NO_TIME if times is None else times.describe()
            note += f" {recipe}: {said}" if len({group.group.recipe for group in self.groups}) > 1 else f" {said}"
        return note

    def _identity_columns(self) -> list[Column]:
        titles = {"recipe": "Recipe", "model": "Model", "protocol": "Protocol", "settings": "Settings"}
        return [
            Column(key, title)
            for key, title in titles.items()
            if key == "model" or len({row[key] for row in self.rows}) > 1
        ]

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready: the study, its rows and runs, and where they come from."""
        return {
            "study": self.study.model_dump(mode="json"),
            "rows": self.rows,
            "runs": self.run_rows,
            "times": {recipe: None if times is None else asdict(times) for recipe, times in self.times.items()},
            "complete": all(one.result is not None for group in self.groups for one in group.ended),
            **provenance(seed=self.study.seed_numbers[0], seconds=self.seconds, device=self.device),
        }

    def write(self) -> list[Path]:
        """``table.md``, ``table.csv`` and ``table.json`` with a row per group, ``runs.csv`` with a row per run."""
        table = self.table()
        runs = [Column(key, key) for key in dict.fromkeys(key for row in self.run_rows for key in row)]
        texts = {
            "table.md": f"## {table.title}\n\n{table.to_markdown()}\n{table.note}\n",
            "table.csv": Table(table.title, all_columns(table, self.rows), self.rows).to_csv(),
            "runs.csv": Table("Runs", runs, self.run_rows).to_csv(),
            "table.json": json_text(self.to_dict()),
        }
        for name, text in texts.items():
            write_atomically(self.folder / name, text)
        return [self.folder / name for name in texts]


def at_common_times(groups: Sequence[FinishedGroup]) -> tuple[tuple[FinishedGroup, ...], dict[str, Times | None]]:
    """Groups whose results are of times that all runs of a recipe predict, and these times where frames differ in them.

    Where there is no such time, errors are left out and the times are None.
    """
    found: dict[str, Times | None] = {}
    compared = list(groups)
    for recipe in dict.fromkeys(group.group.recipe for group in groups):
        places = [index for index, group in enumerate(groups) if group.group.recipe == recipe]
        known = [one for index in places for one in groups[index].results]
        spans = {(one["frame_dt"], one["num_frames"]) for one in known}
        if len(spans) < 2:
            continue
        times = found[recipe] = common_times(spans)
        for index in places:
            ended = tuple(
                one if one.result is None else replace(one, result=result_at(one.result, times))
                for one in groups[index].ended
            )
            compared[index] = replace(groups[index], ended=ended)
    return tuple(compared), found


def result_at(result: Mapping[str, Any], times: Times | None) -> dict[str, Any]:
    """The result of a run at these times; without errors where there are none."""
    if times is None:
        return {**result, "fields": {}}
    values: dict[str, Any] = finite(evaluation_at(evaluation_of(result), times).to_dict())
    return values


def all_columns(table: Table, rows: Sequence[Mapping[str, Any]]) -> list[Column]:
    """The columns of the table and then every other number of the rows."""
    known = {column.key for column in table.columns}
    others = dict.fromkeys(key for row in rows for key in row if key not in known)
    return [*table.columns, *(Column(key, key) for key in others)]


def group_cells(group: Group) -> dict[str, Any]:
    """What sets a group apart from others."""
    protocol = PROTOCOL_LABELS.get(group.protocol, group.protocol)
    return {"recipe": group.recipe, "model": group.model, "protocol": protocol, "settings": group.variant}


def group_row(finished: FinishedGroup) -> dict[str, Any]:
    """Means over the seeds that are finished, and their spread."""
    row: dict[str, Any] = {**group_cells(finished.group), "seeds": len(finished.results)}
    for field in finished.results[0]["fields"] if finished.results else ():
        errors = [one["fields"][field] for one in finished.results]
        for key, _ in ERRORS:
            values = [error[key] for error in errors]
            row[f"{field}.{key}"] = mean(values)
            row[f"{field}.{key}.deviation"] = deviation(values)
        for key in ("standard_error", "standard_error_final"):
            row[f"{field}.{key}"] = mean([error[key] for error in errors])
    for key in RUN_COSTS:
        row[key] = mean([one.get(key) for one in finished.results])
    costs = [training_costs(one) for one in finished.ended if one.result is not None]
    row |= {key: mean([cost[key] for cost in costs]) for key in TRAINING_COSTS}
    return row | {"status": finished.status}


def training_costs(one: Ended) -> dict[str, float | None]:
    """Updates and seconds of a run, as its bundle says."""
    if one.result is None:
        return dict.fromkeys(TRAINING_COSTS)
    told = read_json(Path(one.folder) / BUNDLE / DESCRIPTION).get("provenance", {})
    return {key: told.get(key) for key in TRAINING_COSTS}


def mean(values: Sequence[float | None]) -> float | None:
    """The mean; None where one of the numbers is missing, as after a divergence, or there is none."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    return statistics.fmean(known) if known and len(known) == len(values) else None


def deviation(values: Sequence[float | None]) -> float | None:
    """The standard deviation of a sample; None for fewer than two numbers or where one is missing."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    return statistics.stdev(known) if len(known) == len(values) >= 2 else None
