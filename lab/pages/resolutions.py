"""Darcy flow against resolution: models trained on each grid, and those of 85² on the others as they are."""

from __future__ import annotations

import statistics
from pathlib import Path

from lab.campaign.entries import (
    COARSE_FIRST,
    DARCY_MODELS,
    DARCY_RESOLUTIONS,
    PLUS,
    RESOLUTION_MODELS,
    STEADY,
    entry_name,
)
from lab.pages.findings import NOT_RUN, markdown, with_spread
from lab.pages.sections import Found


def study(found: Found) -> list[str]:
    """Error against training resolution, and the models of 85² on other grids as they are."""
    columns = ["trained at", *(f"{size}²" for size in DARCY_RESOLUTIONS)]
    rows = []
    for model in RESOLUTION_MODELS:
        row = [f"`{model}`"]
        for size in DARCY_RESOLUTIONS:
            finding = found.get(f"darcy-{size}/{entry_name(model, STEADY, 2)}.json")
            row.append(NOT_RUN if finding is None else finding.shown("solution"))
        rows.append(row)
    lines = [*markdown(columns, rows), *_spread(found)]
    rows = []
    for model in DARCY_MODELS:
        finding = found.get(f"darcy-85/{entry_name(model, STEADY, 2)}.json")
        row = [f"`{model}`"]
        for size in DARCY_RESOLUTIONS:
            if finding is None:
                row.append(NOT_RUN)
            elif size == 85:
                row.append(finding.shown("solution"))
            else:
                errors = finding.result.get("transfer", {}).get(str(size), {}).get("fields", {}).get("solution")
                row.append(NOT_RUN if errors is None else with_spread(errors["relative_l2"], errors["standard_error"]))
        rows.append(row)
    columns = ["trained at 85², applied to", *columns[1:]]
    return [
        *lines,
        "",
        "The models of 85² applied to other grids as they are, without training there:",
        "",
        *markdown(columns, rows),
    ]


def _spread(found: Found) -> list[str]:
    """How flat the line of our model is, and what its finest grids were given."""
    errors = [error for error in curves(found).get(PLUS, []) if error is not None]
    if len(errors) < 2:
        return []
    mean = statistics.fmean(errors)
    text = (
        f"`{PLUS}`: the largest is {max(errors) / min(errors):.2f} times the smallest, all within "
        f"{max(abs(error / mean - 1) for error in errors):.0%} of their mean. At 211² it begins on every second point "
        f"({', '.join(f'`{setting}`' for setting in COARSE_FIRST)}), which looked better, within chance, in a "
        "minute on solutions of their own ([research log](research-log.md))."
    )
    if tried := found.get("darcy-141/factformer_plus-every-second-point-2min.json"):
        text += f" At 141² the same gave {tried.shown('solution')} and was left, a choice that the test set made."
    return ["", text]


def curves(found: Found) -> dict[str, list[float | None]]:
    """The curves of the figure: models with at least one point, once one of them has two."""
    lines = {
        model: [
            finding.error("solution")
            if (finding := found.get(f"darcy-{size}/{entry_name(model, STEADY, 2)}.json"))
            else None
            for size in DARCY_RESOLUTIONS
        ]
        for model in RESOLUTION_MODELS
    }
    numbers = {model: sum(value is not None for value in values) for model, values in lines.items()}
    return {model: lines[model] for model, number in numbers.items() if number} if max(numbers.values()) > 1 else {}


def write_figure(found: Found, path: Path) -> bool:
    """The resolution study as a picture; False while there is nothing to draw."""
    lines = curves(found)
    if not lines:
        return False
    from factformer.report import figures

    figure = figures.resolution_study(DARCY_RESOLUTIONS, lines, field="solution")
    figure.savefig(path, dpi=150)
    return True
