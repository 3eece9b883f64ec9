"""What the page says: headline numbers, error trends, spectra and the cells of the table, from the runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from factformer.evaluation.results import FieldErrors
from factformer.problem import Problem
from factformer.report.common_times import Times
from factformer.report.runs import ReportRun, series_indices, unique_names
from factformer.report.style import SERIES
from factformer.report.tables import Table, differ_in_split, floor_name, format_cell, format_count, format_value

Chart = list[dict[str, Any]]
DASHED, DOTTED = "7 6", "1 6"
SPLIT_WORDS = {"train": "training", "valid": "validation"}


def frame_interval(runs: Sequence[ReportRun]) -> float | None:
    """Time between frames; None for steady problems and where no run knows its problem."""
    problem = known_problem(runs)
    return runs[0].evaluation.frame_dt if problem is not None and problem.num_context_frames else None


def known_problem(runs: Sequence[ReportRun]) -> Problem | None:
    return next((run.problem for run in runs if run.problem is not None), None)


def field_groups(runs: Sequence[ReportRun]) -> list[str]:
    return list(dict.fromkeys(group for run in runs for group in run.evaluation.fields))


def error_charts(runs: Sequence[ReportRun]) -> dict[str, Chart]:
    """Error per frame of each field group: a line for each run, and what costs nothing as the floor."""
    timed = frame_interval(runs) is not None
    charts: dict[str, Chart] = {}
    for group in field_groups(runs):
        lines: Chart = []
        floor: Chart = []
        for run, look in zip(runs, _looks(runs), strict=True):
            values = run.evaluation.fields.get(group)
            if values is None:
                continue
            step = run.evaluation.frame_dt if timed else 1.0
            if len(values.relative_l2_per_frame) > 1:
                lines.append(look | _over_time(values.relative_l2_per_frame, step))
            if not floor:
                look_of_floor = {"name": floor_name(runs), "color": "var(--muted)", "dash": DOTTED}
                floor = [look_of_floor | _over_time(values.persistence.relative_l2_per_frame, step)]
        if lines:
            charts[group] = [*lines, *floor]
    return charts


def _over_time(errors: Sequence[float | None], step: float) -> dict[str, Any]:
    return {"y": list(errors), "x": [step * (frame + 1) for frame in range(len(errors))]}


def spectrum_charts(runs: Sequence[ReportRun]) -> dict[str, Chart]:
    """Energy spectra of each field group: the truth of the first run that has one, then every run."""
    charts: dict[str, Chart] = {}
    for group in field_groups(runs):
        lines: Chart = []
        for run, look in zip(runs, _looks(runs), strict=True):
            values = run.evaluation.fields.get(group)
            spectrum = values.spectrum if values is not None else None
            if spectrum is None:
                continue
            wavenumber = list(spectrum.wavenumber)
            if not lines:
                truth = {"name": "truth", "color": "var(--ink)", "dash": "", "wide": True}
                lines.append({**truth, "x": wavenumber, "y": list(spectrum.truth)})
            lines.append({**look, "x": wavenumber, "y": list(spectrum.prediction)})
        if lines:
            charts[group] = lines
    return charts


def _looks(runs: Sequence[ReportRun]) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "color": f"var(--series-{index % len(SERIES)})",
            "dash": DASHED if run.protocol == "autoregressive" else "",
        }
        for run, name, index in zip(runs, unique_names(runs), series_indices(runs), strict=True)
    ]


def summary_cards(runs: Sequence[ReportRun]) -> list[dict[str, str]]:
    """Headline numbers of the run with the least error in the first field group."""
    groups = field_groups(runs)

    def error(index: int) -> float:
        values = runs[index].evaluation.fields.get(groups[0])
        value = values.relative_l2 if values is not None else None
        return value if value is not None and math.isfinite(value) else math.inf

    best = min(range(len(runs)), key=error)
    evaluation = runs[best].evaluation
    cards = []
    if len(runs) > 1:
        where = f", over {windows([runs[best]])}" if differ_in_split(runs) else ""
        cards.append(_card(f"Least error of {len(runs)}", unique_names(runs)[best], f"in {groups[0]}{where}"))
    for group in groups[:2]:
        if group in evaluation.fields:
            cards += _error_cards(group, evaluation.fields[group], floor_name(runs), brief=len(groups) > 1)
    if evaluation.parameters:
        cards.append(_card("Parameters", format_count(evaluation.parameters), "trainable", "parameters"))
    seconds = evaluation.seconds_per_sequence
    if seconds:
        cards.append(_card("Time to predict", format_duration(seconds), "per sequence", "seconds_per_sequence"))
    return cards


def _error_cards(group: str, values: FieldErrors, floor: str, *, brief: bool) -> list[dict[str, str]]:
    average, spread = values.relative_l2, values.standard_error
    notes = []
    if spread is not None and math.isfinite(spread):
        notes.append(f"± {format_value(spread, 'error')}")
    if len(values.relative_l2_per_frame) > 1:
        notes.append(f"{format_value(values.relative_l2_final, 'error')} at the end")
    cards = [_card(f"Error of {group}", format_value(average, "error"), ", ".join(notes), f"{group}.relative_l2")]
    base = values.persistence.relative_l2
    if base and average and not brief:
        cards.append(
            _card(f"Smaller than {floor}", f"{base / average:.3g}×", f"which has {format_value(base, 'error')}")
        )
    return cards


def _card(label: str, value: str, note: str = "", key: str = "") -> dict[str, str]:
    return {"label": label, "value": value, "note": note, "key": key}


def format_duration(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def facts(runs: Sequence[ReportRun], times: Times | None = None) -> list[str]:
    """The setting in a few words: problem, grid, frames or common times, what was evaluated, machine."""
    problem, evaluation = known_problem(runs), runs[0].evaluation
    result = []
    if problem is not None:
        result += [problem.name.replace("_", " "), " × ".join(map(str, problem.grid.shape)) + " points"]
        if times is not None:
            result.append(f"{_count(times.count, 'time')} that all predict, up to {times.last:g}")
        elif problem.num_context_frames:
            seen = _count(problem.num_context_frames, "frame")
            result.append(f"{seen} seen, {evaluation.num_frames} predicted")
    result.append(windows(runs))
    for run, name in zip(runs, unique_names(runs), strict=True):
        if run.evaluation.num_diverged:
            whose = "them" if len(runs) == 1 else f"those of {name}"
            result.append(f"{run.evaluation.num_diverged} of {whose} diverged")
        if run.evaluation.stride > 1:
            whose = "scored" if len(runs) == 1 else f"{name} scored"
            result.append(f"{whose} at one in {run.evaluation.stride} frames of the data")
        if run.evaluation.other_parameters:
            whose = "other data than trained on" if len(runs) == 1 else f"other data than {name} was trained on"
            result.append(f"{whose}: {run.evaluation.other_parameters}")
    return [*result, evaluation.hardware] if evaluation.hardware else result


def windows(runs: Sequence[ReportRun]) -> str:
    """What the errors are averaged over, such as ``12 test windows``; runs that differ in it are named."""
    named: dict[str, list[str]] = {}
    for run, name in zip(runs, unique_names(runs), strict=True):
        noun = f"{SPLIT_WORDS.get(run.evaluation.split, run.evaluation.split)} window"
        named.setdefault(_count(run.evaluation.num_windows, noun), []).append(name)
    if len(named) == 1:
        return next(iter(named))
    return ", ".join(f"{text} ({', '.join(names)})" for text, names in named.items())


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' if number != 1 else ''}"


def player_hint(player: Mapping[str, Any] | None) -> str:
    if player is None:
        return ""
    keys = " Space plays, arrow keys step, the pointer reads values." if player["frames"] > 1 else ""
    thinned = f" One point in {player['stride']} along each axis is shown." if player["stride"] > 1 else ""
    scale = "colour scale" if len(player["planes"][0]["axes"]) == 2 else "scale, the truth pale behind the prediction"
    return f"Truth and prediction share one {scale}; the difference has its own." + keys + thinned


def table_cells(table: Table) -> list[dict[str, Any]]:
    """Rows of cells: what is sorted by, what is read, and the classes of its look."""
    best = {column.key: table.best_row(column) for column in table.columns}
    rows = []
    for i, row in enumerate(table.all_rows):
        cells = []
        for column in table.columns:
            value, text = row.get(column.key), format_cell(row, column)
            css = ("number" if column.is_number else "text") + (" best" if best[column.key] == i else "")
            plain = "" if value is None else (repr(value) if isinstance(value, float) else value)
            cells.append({"value": plain, "text": text, "css": css})
        rows.append({"cells": cells, "reference": i >= len(table.rows)})
    return rows


def header_groups(table: Table) -> list[dict[str, Any]]:
    """Neighbouring columns of one field group under a common heading; empty when no column has one."""
    spans: list[dict[str, Any]] = []
    for column in table.columns:
        if spans and spans[-1]["name"] == column.group:
            spans[-1]["span"] += 1
        else:
            spans.append({"name": column.group, "span": 1})
    return spans if any(span["name"] for span in spans) else []
