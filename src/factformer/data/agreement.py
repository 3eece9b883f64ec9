"""Whether data are of the problem that somebody expects, and problems changed where the data do not say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor

from factformer.errors import UserError
from factformer.grid import Grid
from factformer.problem import Field, Problem


def changed_problem(problem: Problem, **changes: Any) -> Problem:
    """The problem with some attributes replaced; ``state`` may name fields instead of describing them."""
    if "state" in changes:
        known = {item.name: item for item in problem.state}
        chosen = [item if not isinstance(item, str) else known.get(item) for item in changes["state"]]
        if None in chosen or any(known.get(item.name) != item for item in chosen if item):
            there, wanted = (
                ", ".join(item if isinstance(item, str) else f"{item.name} ({item.num_channels})" for item in fields)
                for fields in (problem.state, changes["state"])
            )
            raise UserError(f"the data hold the fields {there}, asked for {wanted}")
        changes = {**changes, "state": tuple(chosen)}
    grid: Grid | None = changes.get("grid")
    if grid is not None and grid.shape != problem.grid.shape:
        raise UserError(f"the data have grid {problem.grid.shape}, asked for {grid.shape}")
    if grid is not None and "boundary" not in changes:
        fallback = "reflect" if problem.boundary == "periodic" else problem.boundary
        changes = {**changes, "boundary": "periodic" if all(grid.periodic) else fallback}
    require_open_end(grid or problem.grid, changes.get("boundary"))
    try:
        return replace(problem, **changes)
    except TypeError as error:
        if changes.keys() <= problem.to_dict().keys():
            raise UserError(f"a problem cannot have {changes}: {error}") from None
        names = ", ".join(problem.to_dict())
        raise UserError(f"a problem has the attributes {names}, got {', '.join(changes)}") from None


def require_open_end(grid: Grid, boundary: str | None) -> None:
    """Raise where a boundary is asked for that no axis has."""
    if all(grid.periodic) and boundary not in (None, "periodic"):
        raise UserError(f"boundary {boundary!r} asked for, but every axis is periodic: leave it out, or periodic=false")


def describe_difference(expected: Problem, found: Problem) -> str:
    """The first of fields, grid, boundary and frame interval in which two problems differ; empty if none."""
    pairs: list[tuple[str, Any, Any]] = [
        ("fields", _listed(expected.state), _listed(found.state)),
        ("static fields", _listed(expected.static), _listed(found.static)),
        ("forcing", _listed(expected.forcing), _listed(found.forcing)),
        ("parameters", expected.parameters, found.parameters),
        ("masked", expected.masked, found.masked),
        ("grid", expected.grid.shape, found.grid.shape),
        ("periodic axes", expected.grid.periodic, found.grid.periodic),
        ("boundary", expected.boundary, found.boundary),
        ("a problem that is", _kind(expected), _kind(found)),
    ]
    for name, wanted, got in pairs:
        if wanted != got:
            return f"{name} {wanted} expected, {got} found"
    geometry = describe_geometry(expected.grid, found.grid)
    if geometry:
        return geometry
    if expected.num_context_frames and not np.isclose(expected.frame_dt, found.frame_dt, rtol=1e-5, atol=0):
        return f"frame interval {expected.frame_dt:g} expected, {found.frame_dt:g} found"
    return ""


def _kind(problem: Problem) -> str:
    return "evolving" if problem.num_context_frames else "steady"


def _listed(fields: tuple[Field, ...]) -> list[tuple[str, int]]:
    return [(item.name, item.num_channels) for item in fields]


def frame_stride(frame_dt: float, of_data: float, tolerance: float = 1e-6) -> int:
    """How many frames of the data one interval ``frame_dt`` is; 0 where that is no whole number."""
    ratio = frame_dt / of_data
    stride = round(ratio)
    return stride if abs(ratio - stride) <= tolerance * ratio else 0


def describe_parameters(expected: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    """In which parameters that both of them tell two datasets differ; empty if in none."""
    others = [name for name in expected if name in found and not _alike(expected[name], found[name])]
    return ", ".join(f"{name}={found[name]} instead of {expected[name]}" for name in others)


def _alike(one: Any, other: Any) -> bool:
    numbers = all(isinstance(value, (int, float)) for value in (one, other))
    return bool(np.isclose(one, other, rtol=1e-5, atol=0)) if numbers else one == other


def describe_geometry(expected: Grid, found: Grid) -> str:
    """What is different about the places of the points, on equal axes or at another resolution; empty if nothing."""
    if not np.allclose(expected.extent, found.extent, rtol=1e-5, atol=0):
        return f"grid extent {expected.extent} expected, {found.extent} found"
    for m in range(expected.num_axes):
        even = expected.is_even(m), found.is_even(m)
        kinds = [grid.points[m] if grid.is_uniform(m) else "nodes" for grid in (expected, found)]
        if all(even) and not expected.periodic[m] and kinds[0] != kinds[1]:
            return f"{kinds[0]} expected along axis {m}, {kinds[1]} found"
        if expected.shape[m] != found.shape[m]:
            if even[0] != even[1]:
                wanted, there = (("even" if flag else "uneven") for flag in even)
                return f"{wanted} spacing expected along axis {m}, {there} found"
            continue
        if expected.is_uniform(m) and found.is_uniform(m):
            continue
        if float((expected.weights(m) - found.weights(m)).abs().max()) > 0.01 / expected.shape[m]:
            return f"other coordinates expected along axis {m} than those found"
    return ""


def require_finite(
    values: Tensor, split: str, trajectories: Sequence[int], advice: str = "make or convert the data again"
) -> None:
    """Raise where data of these trajectories, one for each row of ``values``, are not finite."""
    if not bool(values.isfinite().all()):
        bad = trajectories[int((~values.isfinite()).flatten(1).any(1).nonzero()[0])]
        raise UserError(f"the {split} split holds NaN or infinite values in trajectory {bad}; {advice}")
