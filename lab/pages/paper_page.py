"""docs/paper.md: every table and figure of the paper, its command, the published numbers and ours."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from factformer import recipes
from factformer.report import paper
from factformer.report.tables import format_value
from factformer.studies.cells import Cell, Target, Training
from factformer.studies.targets import find_target, targets
from lab.pages.findings import Finding, markdown, paragraph
from lab.pages.paper_cells import (
    NOT_RUN,
    PAPER_UPDATES,
    Filled,
    Found,
    Ours,
    fill,
    matching,
    paper_size,
    place_of,
    read_reproduced,
)
from lab.pages.paper_items import HYPERPARAMETERS, ITEMS

WITHIN = 1.15
"""How much larger than the paper's an error may be that counts as the same."""
INTRODUCTION = (
    "Every table and figure of the paper, the command that makes it, the published numbers and ours. Written by "
    "`python -m lab.pages.make` from the files under `results/`. A cell without a number says `not run`. Our numbers "
    "are from short runs, and their status says how short: they show what the models reach at equal cost, and not "
    "what they reach at the paper's. Numbers in brackets are the paper's; ± is the standard error over test solutions."
)


def paper_page(found: Found, results: Path) -> str:
    """The whole page."""
    reproduced = read_reproduced(results)
    all_targets = {name: target for name, target in targets("paper").items() if name in ITEMS}
    filled = {name: fill(target, found, reproduced) for name, target in all_targets.items()}
    parts = ["# The paper", "", *paragraph(INTRODUCTION), ""]
    parts += [*overview(all_targets, filled), ""]
    parts += ["## Which model wins", "", *order_section(filled), ""]
    parts += ["## How far from the paper's errors", "", *distance_section(found), ""]
    parts += ["## Factorized against linear attention", "", *factors_section(filled["table4"]), ""]
    for name, target in all_targets.items():
        parts += [f"## {target.title}", "", *target_section(target, filled[name]), ""]
    parts += ["## Hyperparameters", "", *hyperparameters_section()]
    return "\n".join([*parts, ""])


def overview(all_targets: Mapping[str, Target], filled: Mapping[str, Filled]) -> list[str]:
    """One row for each target."""
    rows = []
    for name in all_targets:
        cells = filled[name].values()
        there = sum(ours.value is not None for ours in cells)
        whole = sum(ours.status == "paper scale" for ours in cells)
        command = f"`factformer reproduce {name} --scale paper`"
        rows.append([ITEMS[name].place, command, f"{there} of {len(cells)}", str(whole)])
    return markdown(["in the paper", "command", "cells with a number", "of these at paper scale"], rows)


def target_section(target: Target, filled: Filled) -> list[str]:
    """What the paper says, what differs, and the numbers."""
    item = ITEMS[target.name]
    text = f"{item.place[0].upper()}{item.place[1:]}. The paper: {item.says} Here: {item.differs} {target.note}"
    lines = [f"`factformer reproduce {target.name} --scale paper`", "", *paragraph(text.strip()), ""]
    if all(ours.value is None for ours in filled.values()) and not any(cell.paper for cell in target.cells):
        number = len(dict.fromkeys(cell.row for cell in target.cells))
        return [*lines, f"Not run ({number} rows). The paper gives a figure without numbers."]
    lines += numbers(target, filled)
    files = sorted({ours.path for ours in filled.values() if ours.path})
    if files:
        lines += ["", *paragraph(f"Files: {', '.join(f'`results/{path}`' for path in files)}.")]
    return lines


def numbers(target: Target, filled: Filled) -> list[str]:
    """A row for each row of the target, a column for each quantity, and the status of the row."""
    quantities = list(dict.fromkeys(cell.quantity for cell in target.cells))
    rows = []
    for name in dict.fromkeys(cell.row for cell in target.cells):
        cells = {cell.quantity: cell for cell in target.cells if cell.row == name}
        there = [filled[place_of(cell)] for cell in cells.values()]
        states = dict.fromkeys(ours.status for ours in there if ours.status != NOT_RUN) or {NOT_RUN: None}
        shown = [shown_cell(cells[one], filled[name, one]) if one in cells else "–" for one in quantities]
        rows.append([name, *shown, "; ".join(states)])
    return markdown(["", *quantities, "status"], rows)


def shown_cell(cell: Cell, ours: Ours) -> str:
    """``ours ± spread (paper's)``."""
    if ours.value is None:
        value = NOT_RUN if ours.status == NOT_RUN else "diverged"
    else:
        value = format_value(ours.value, cell.kind)
        value += f" ± {ours.spread:.4f}" if ours.spread is not None else ""
    return value if cell.paper is None else f"{value} ({format_value(cell.paper, cell.kind)})"


def order_section(filled: Mapping[str, Filled]) -> list[str]:
    """Who has the smallest error in each row of Tables 1 to 3, in the paper and here, among the runs that we have."""
    rows = [row for name in paper.BENCHMARKS for row in order_rows(name, filled[name])]
    counts = {word: sum(row[-1] == word for row in rows) for word in ("agreed", "not agreed", "within chance", NOT_RUN)}
    text = (
        "The model with the smallest error in each row of Tables 1 to 3, among the models and protocols that have been "
        f"run here: {', '.join(f'{count} {word}' for word, count in counts.items())}. Within chance: our first is less "
        "than two standard errors over test solutions ahead of the paper's first or, where they agree, of our second; "
        "what another seed would change is not in it. "
        "Grid and training time are those of the tables below."
    )
    columns = ["table", "error", "runs compared", "first in the paper", "first here", "verdict"]
    return [*paragraph(text), "", *markdown(columns, rows)]


def order_rows(name: str, filled: Filled) -> Iterator[list[str]]:
    """The rows of one table."""
    errors = [cell for cell in find_target(name, "paper").cells if cell.kind == "error"]
    for quantity in dict.fromkeys(cell.quantity for cell in errors):
        cells = [cell for cell in errors if cell.quantity == quantity]
        ours = {cell.row: filled[place_of(cell)] for cell in cells}
        there = [cell for cell in cells if ours[cell.row].value is not None]
        start = [f"Table {name[-1]}", quantity, f"{len(there)} of {len(cells)}"]
        if len(there) < 2:
            yield [*start, "–", "–", NOT_RUN]
            continue
        values = {cell.row: ours[cell.row].value or math.inf for cell in there}
        first = min(there, key=lambda cell: cell.paper or math.inf)
        winner, second = sorted(values, key=lambda row: values[row])[:2]
        other = second if first.row == winner else first.row
        chance = 2 * math.hypot(ours[other].spread or 0.0, ours[winner].spread or 0.0)
        close = values[other] - values[winner] <= chance
        verdict = "within chance" if close else "agreed" if first.row == winner else "not agreed"
        yield [*start, f"{first.row} {first.paper:.4f}", f"{winner} {values[winner]:.4f}", verdict]


def distance_section(found: Found) -> list[str]:
    """FactFormer with latent marching beside the paper's error on the same grid, and where longer runs would lead."""
    published = {
        Training("kolmogorov", resolution=128): {"vorticity": paper.TABLE_4[0].relative_l2},
        **{
            Training(recipe): {field: error for field, (error, _) in table.find("factformer", paper.LM).errors.items()}
            for recipe, table in (
                ("kolmogorov", paper.TABLE_1),
                ("turbulence", paper.TABLE_2),
                ("smoke", paper.TABLE_3),
            )
        },
    }
    rows = []
    for run, errors in published.items():
        entries = [entry for entry in matching(run, found) if entry.run.resolution == paper_size(run)]
        runs = sorted((found[entry.path] for entry in entries), key=lambda finding: finding.updates)
        for field, error in errors.items():
            start = [f"{run.recipe}, {paper_size(run)} points per axis, {field}", f"{error:.4f}"]
            rows.append([*start, *distance_row(field, error, runs)] if runs else [*start, *[NOT_RUN] * 4])
    text = (
        "FactFormer with latent marching on the paper's grid: our longest run. The paper trains for "
        f"{PAPER_UPDATES[paper.LM]:,} updates. An error up to {WITHIN} times the paper's counts as the same. Where we "
        "have runs of two lengths, the last column continues the power law through the shortest and the longest of "
        "them to the paper's number of updates. Two points make no error bar."
    )
    columns = ["problem", "paper's", "ours", "times the paper's", "updates", "where it heads"]
    return [*paragraph(text), "", *markdown(columns, rows)]


def distance_row(field: str, error: float, runs: Sequence[Finding]) -> list[str]:
    """Our error after the longest run, how far it is off, and the power law through two runs."""
    last = runs[-1]
    ours = last.error(field)
    if ours is None:
        return ["diverged", "–", f"{last.updates:,}", "–"]
    heads = heading([(run.updates, run.error(field)) for run in runs], PAPER_UPDATES[paper.LM])
    verdict = f"{ours / error:.2f}" + (" (the same)" if ours <= WITHIN * error else "")
    shown = "one length only" if heads is None else f"{heads:.4f} ({heads / error:.2f} times)"
    return [last.shown(field), verdict, f"{last.updates:,}", shown]


def heading(points: Sequence[tuple[int, float | None]], updates: int) -> float | None:
    """The power law through the shortest and the longest run, at so many updates; None where there are no two."""
    known = [(count, error) for count, error in points if error is not None]
    if len(known) < 2 or known[0][0] == known[-1][0]:
        return None
    (few, high), (many, low) = known[0], known[-1]
    return float(low * (updates / many) ** (math.log(low / high) / math.log(many / few)))


def factors_section(filled: Filled) -> list[str]:
    """How many times more linear attention takes than factorized attention."""
    rows = []
    cells = find_target("table4", "paper").cells
    for quantity in dict.fromkeys(cell.quantity for cell in cells):
        one, other = (cell for cell in cells if cell.quantity == quantity)
        both = [filled[place_of(cell)] for cell in (one, other)]
        ours = [cell.value for cell in both]
        published = f"{other.paper / one.paper:.2f}" if one.paper and other.paper else "–"
        here = f"{ours[1] / ours[0]:.2f}" if ours[0] and ours[1] else NOT_RUN
        states = dict.fromkeys(cell.status for cell in both) if here != NOT_RUN else {NOT_RUN: None}
        rows.append([quantity, published, here, "; ".join(states)])
    return [
        *paragraph(
            "How many times as large each number of Table 4 is for linear attention as for factorized attention."
        ),
        "",
        *markdown(["quantity", "paper's factor", "our factor", "status"], rows),
    ]


def hyperparameters_section() -> list[str]:
    """The table of Appendix A beside the recipes."""
    rows = []
    for recipe, values in HYPERPARAMETERS.items():
        ours: dict[str, Any] = recipes.build(recipe, "paper").model.model_dump()
        rows.append([recipe, *(f"{ours[key]} ({value})" for key, value in values.items())])
    keys = list(HYPERPARAMETERS["kolmogorov"])
    return [
        "`factformer train RECIPE --scale paper` uses these sizes of FactFormer (the paper's in brackets):",
        "",
        *markdown(["recipe", *(f"`model.{key}`" for key in keys)], rows),
    ]
