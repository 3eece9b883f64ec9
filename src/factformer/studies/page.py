"""The page of a study: error trends with bands over seeds, error against cost, a player, the table; one per recipe."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from factformer.evaluation.results import FieldErrors
from factformer.report import content, figures
from factformer.report.html import PAGE_NAME, write_report
from factformer.report.runs import ReportRun, load_run
from factformer.report.tables import Table
from factformer.studies.runner import Ended
from factformer.studies.summary import FinishedGroup, StudySummary, deviation, mean


def write_page(summary: StudySummary, folder: Path) -> list[Path]:
    """``report.html`` in ``folder``, or in a folder for each recipe where there are several.

    Nothing for a recipe whose runs predict no time in common.
    """
    names = list(dict.fromkeys(group.group.recipe for group in summary.groups if group.results))
    places = {name: folder / name if len(names) > 1 else folder for name in names}
    return [write_recipe_page(summary, name, place) for name, place in places.items() if summary.is_comparable(name)]


def write_recipe_page(summary: StudySummary, recipe: str, folder: Path) -> Path:
    """The page of the runs of one recipe, each group shown by the run whose error is the middle one."""
    groups, compared = (
        [group for group in found if group.group.recipe == recipe and group.results]
        for found in (summary.groups, summary.compared)
    )
    runs = [shown_run(group, several_settings=bool(summary.study.settings)) for group in groups]
    table = summary.table()
    rows = [row for row in summary.rows if row["recipe"] == recipe]
    columns = [column for column in table.columns if column.key != "recipe"]
    used = [column for column in columns if any(row.get(column.key) is not None for row in rows)]
    num_seeds = len(summary.study.seed_numbers)
    write_report(
        folder,
        title=f"Study of {recipe}",
        subtitle=f"{len(groups)} settings, {num_seeds} seed{'s' if num_seeds > 1 else ''} each",
        runs=runs,
        figures=cost_pictures(compared, runs),
        table=Table("Comparison", used, rows, note=table.note),
        trend=banded_trend(groups, runs),
        compared=True,
        overwrite=True,
    )
    return folder / PAGE_NAME


def shown_run(group: FinishedGroup, *, several_settings: bool) -> ReportRun:
    """The run of a group with the median error, under the name of the group and with the errors of all its seeds."""
    finished = sorted((one for one in group.ended if one.result is not None), key=first_error)
    run = load_run(finished[(len(finished) - 1) // 2].folder)
    name = f"{group.group.model}, {group.group.variant}" if several_settings and group.group.variant else run.name
    fields = {field: over_seeds(errors, group, field) for field, errors in run.evaluation.fields.items()}
    seconds = mean([one["seconds_per_sequence"] for one in group.results])
    evaluation = dataclasses.replace(run.evaluation, fields=fields, seconds_per_sequence=seconds)
    return dataclasses.replace(run, name=name, evaluation=evaluation)


def over_seeds(errors: FieldErrors, group: FinishedGroup, field: str) -> FieldErrors:
    """Means over seeds, as in the table; ± is then their standard deviation, or that over windows of a single seed."""
    seeds = [one["fields"][field] for one in group.results if field in one["fields"]]
    if len(seeds) < 2:
        return errors
    return dataclasses.replace(
        errors,
        relative_l2=mean([one["relative_l2"] for one in seeds]),
        relative_l2_final=mean([one["relative_l2_final"] for one in seeds]),
        relative_l2_per_frame=[mean(frame) for frame in per_frame(group, field)],
        standard_error=deviation([one["relative_l2"] for one in seeds]),
        standard_error_final=deviation([one["relative_l2_final"] for one in seeds]),
    )


def per_frame(group: FinishedGroup, field: str) -> list[tuple[float | None, ...]]:
    """For each frame the errors of all seeds."""
    return list(zip(*(one["fields"][field]["relative_l2_per_frame"] for one in group.results), strict=True))


def first_error(one: Ended) -> float:
    """The error of the first field; infinite where the roll-out diverged."""
    assert one.result is not None
    error = next(iter(one.result["fields"].values()))["relative_l2"]
    return math.inf if error is None else float(error)


def banded_trend(groups: Sequence[FinishedGroup], runs: Sequence[ReportRun]) -> dict[str, content.Chart]:
    """`content.error_charts`, whose lines are means over seeds, with a standard deviation to each side as the band."""
    charts = content.error_charts(runs)
    for field, chart in charts.items():
        lines = iter(chart)
        for group, run in zip(groups, runs, strict=True):
            if field not in run.evaluation.fields or len(run.evaluation.fields[field].relative_l2_per_frame) < 2:
                continue
            next(lines).update(seed_band(group, field))
    return charts


def seed_band(group: FinishedGroup, field: str) -> dict[str, Any]:
    """The band of the errors of each frame; nothing for a single seed."""
    frames = per_frame(group, field)
    means, spreads = [mean(values) for values in frames], [deviation(values) for values in frames]
    if None in spreads or None in means:
        return {}
    pairs = list(zip(means, spreads, strict=True))
    return {
        "low": [max(middle - spread, 0.0) for middle, spread in pairs],  # type: ignore[operator]
        "high": [middle + spread for middle, spread in pairs],  # type: ignore[operator]
    }


def cost_pictures(groups: Sequence[FinishedGroup], runs: Sequence[ReportRun]) -> dict[str, Any]:
    """Error against the time to predict, for each field; nothing where a time was not measured."""
    drawn = {}
    for field in content.field_groups(runs):
        points = []
        for group, run in zip(groups, runs, strict=True):
            errors = [one["fields"][field]["relative_l2"] for one in group.results if field in one["fields"]]
            error, seconds = mean(errors), mean([one["seconds_per_sequence"] for one in group.results])
            if error is not None and seconds:
                points.append(figures.CostPoint(run.label, seconds, error, deviation(errors)))
        if len(points) > 1:
            drawn[f"Error of {field} against the time to predict"] = figures.error_against_cost(points, field=field)
    return drawn
