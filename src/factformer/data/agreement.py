"""Whether data are of the problem that somebody expects, and problems changed where the data do not say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from factformer.errors import UserError
from factformer.grid import Grid
from factformer.problem import Problem


def changed_problem(problem: Problem, **changes: Any) -> Problem:
    """The problem with some attributes replaced; ``outputs`` may name fields instead of describing them."""
    if "outputs" in changes:
        known = {item.name: item for item in problem.outputs}
        chosen = [item if not isinstance(item, str) else known.get(item) for item in changes["outputs"]]
        if None in chosen or any(known.get(item.name) != item for item in chosen if item):
            raise UserError(f"the data hold the fields {list(known)}, asked for {list(changes['outputs'])}")
        changes = {"inputs": problem.inputs if problem.steady else (), **changes, "outputs": tuple(chosen)}
    grid: Grid | None = changes.get("grid")
    if grid is not None and grid.shape != problem.grid.shape:
        raise UserError(f"the data have grid {problem.grid.shape}, asked for {grid.shape}")
    if grid is not None and "boundary" not in changes:
        fallback = "reflect" if problem.boundary == "periodic" else problem.boundary
        changes = {**changes, "boundary": "periodic" if all(grid.periodic) else fallback}
    try:
        return replace(problem, **changes)
    except TypeError:
        names = ", ".join(problem.to_dict())
        raise UserError(f"a problem has the attributes {names}, got {', '.join(changes)}") from None


def describe_difference(expected: Problem, found: Problem) -> str:
    """The first of fields, grid, boundary and frame interval in which two problems differ; empty if none."""
    pairs: list[tuple[str, Any, Any]] = [
        (
            "fields",
            [(f.name, f.num_channels) for f in expected.outputs],
            [(f.name, f.num_channels) for f in found.outputs],
        ),
        (
            "input fields",
            [(f.name, f.num_channels) for f in expected.inputs],
            [(f.name, f.num_channels) for f in found.inputs],
        ),
        ("grid", expected.grid.shape, found.grid.shape),
        ("periodic axes", expected.grid.periodic, found.grid.periodic),
        ("boundary", expected.boundary, found.boundary),
        ("steady", expected.steady, found.steady),
    ]
    for name, wanted, got in pairs:
        if wanted != got:
            return f"{name} {wanted} expected, {got} found"
    if not np.allclose(expected.grid.extent, found.grid.extent, rtol=1e-5):
        return f"grid extent {expected.grid.extent} expected, {found.grid.extent} found"
    if not expected.steady and not np.isclose(expected.frame_dt, found.frame_dt, rtol=1e-5):
        return f"frame interval {expected.frame_dt:g} expected, {found.frame_dt:g} found"
    return ""
