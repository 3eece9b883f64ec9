"""docs/gallery.md: a card for each equation, from its class, `equations.CARDS` and results/cpu/generation.json."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from factformer import catalog, recipes
from factformer.pdes import PDE, find_pde
from lab import ROOT
from lab.gallery.equations import CARDS, Card

PAGE = ROOT / "docs" / "gallery.md"
COSTS = ROOT / "results" / "cpu" / "generation.json"
INTRODUCTION = """\
# Gallery

Every equation of the catalog: what it looks like, its parameters, what its data cost, and the commands. How each is
solved and how that is verified is on the page on [datasets](data.md).

Costs are processor seconds of one core for the whole preset `small`, solving and writing, in single precision
({machine}; `python -m lab.equations.generation_costs`, `results/cpu/generation.json`). A parameter marked with • may
have another value in each trajectory: `--set parameters.NAME=0.01..0.1:log` draws it from a range. The pictures are
made by `python -m lab.gallery.films`, this page by `python -m lab.pages.make`.
"""
TRAIN = """\
```sh
factformer generate {problem} --preset {preset} --out data/{name}
factformer train {recipe}--data data/{name} --out runs/{name}
factformer evaluate runs/{name} --data data/{name}
factformer report runs/{name} --out report
```
"""


def gallery_page() -> str:
    """The whole page."""
    measured = json.loads(COSTS.read_text(encoding="utf-8"))
    rows: dict[str, list[dict[str, Any]]] = {}
    for row in measured["rows"]:
        rows.setdefault(row["equation"], []).append(row)
    names = catalog.names("pdes")
    parts = [INTRODUCTION.format(machine=measured["hardware"]), tiles(names)]
    parts += [section(name, rows.get(name, [])) for name in sorted(names, key=lambda name: CARDS[name].title)]
    return "\n".join(parts)


def tiles(names: Sequence[str]) -> str:
    """All pictures at a glance, each a link to its section."""
    shown = [
        f"[![](images/gallery/{name}.webp){{ loading=lazy }} {CARDS[name].title}](#{name})"
        for name in sorted(names, key=lambda name: CARDS[name].title)
    ]
    return "\n".join(['<div class="tiles" markdown>', "", *shown, "", "</div>", ""])


def section(name: str, costs: Sequence[Mapping[str, Any]]) -> str:
    """One equation."""
    equation, card = find_pde(name), CARDS[name]
    formula = "\n".join("    " + line for line in card.formula.splitlines())
    least, *more = sorted(equation.dimensions)
    axes = {(): f"{least}", (2, 3): "1 to 3"}.get(tuple(more), " or ".join(map(str, (least, *more))))
    plan = equation.presets["small"]
    problem = equation.problem(equation.shape_in(plan))
    grid = problem.grid
    fields = ", ".join(f"`{item.name}`" for item in problem.state)
    symmetries = "; ".join(equation.symmetries(grid)) or "none"
    known = "".join(f", given `{item.name}`" for item in equation.static) + (
        ", given a mask" if equation.masked else ""
    )
    lines = [
        f"## {card.title} {{ #{name} }}",
        "",
        f"![{card.title}](images/gallery/{name}.webp){{ .equation }}",
        "",
        formula,
        "",
        card.about,
        "",
        f"`{name}`, {axes} {'axis' if axes == '1' else 'axes'}. State: {fields}{known}. Symmetries: {symmetries}.",
        "",
        *parameters(equation, card),
        "",
        *cost_lines(costs),
        "",
        *commands(name),
    ]
    return "\n".join(lines)


def commands(name: str) -> list[str]:
    """From nothing to a report, once for each recipe; without a recipe `train --data` does what `fit` does."""
    built = {recipe: recipes.build(recipe) for recipe in catalog.names("recipes") if recipe != "demo"}
    presets = {recipe: one.data.preset for recipe, one in built.items() if one.problem == name}
    if "small" not in presets.values():
        presets = {"": "small", **presets}
    return [
        TRAIN.format(problem=name, name=recipe or name, preset=preset, recipe=f"{recipe} " if recipe else "")
        for recipe, preset in sorted(presets.items(), key=lambda item: item[1] != "small")
    ]


def parameters(equation: PDE, card: Card) -> list[str]:
    """The table of parameters: defaults from the class, good values from the card."""
    lines = ["| parameter | default | good values |", "|---|---|---|"]
    for name, item in equation.parameters.model_fields.items():
        mark = "&nbsp;•" if name in equation.varying and name != "extent" else ""
        lines.append(f"| `{name}`{mark} | {_shown(item.default)} | {card.good.get(name, '')} |")
    return lines


def cost_lines(costs: Sequence[Mapping[str, Any]]) -> list[str]:
    """What the presets cost that were measured."""
    lines = []
    for row in costs:
        points = " × ".join(map(str, row["points"]))
        splits = " + ".join(str(count) for count in row["trajectories"].values())
        frames = f"{row['frames']} frames" if row["frames"] > 1 else "solution"
        whole = f"{splits} {'trajectories of ' if row['frames'] > 1 else ''}{frames}"
        lines.append(
            f"- **Cost** of `{row['preset']}`: {points} points, {whole}{'s' if row['frames'] == 1 else ''}, "
            f"**{row['processor_seconds']:g} s** on one core, {row['megabytes']:g} MB"
        )
    return lines or ["- **Cost**: not measured yet"]


def _shown(value: Any) -> str:
    if value is None:
        return "from the grid"
    if isinstance(value, float) and not isinstance(value, bool):
        for times, text in ((20, "20π"), (4, "4π"), (2, "2π")):
            if math.isclose(value, times * math.pi):
                return text
        if 0 < value < 0.1 and math.log2(1 / value).is_integer():
            return f"1/{round(1 / value)}"
        return f"{value:.4g}"
    return f"`{value}`" if isinstance(value, str) else str(value)
