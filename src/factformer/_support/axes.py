"""Coordinates along the axes of a grid: read from what a user gives, checked, one value for each axis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from factformer._support.text import cut
from factformer.errors import UserError

TOLERANCE = 1e-3
"""Of the spacing, what even points may be off: files keep coordinates in float32."""


def number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise UserError(f"{name} cannot be {cut(value)}: it is a number for each axis") from None


def coordinates_of(m: int, axis: Any) -> tuple[float, ...]:
    """The coordinates of one axis as numbers; a mesh of coordinates is no list of them."""
    shape = tuple(getattr(axis, "shape", (1,)))
    if len(shape) != 1:
        raise UserError(
            f"coordinates of axis {m} must be a list of numbers, got an array of shape {shape}: give those along "
            "the axis alone, such as x[:, 0] of a mesh"
        )
    try:
        return tuple(float(x) for x in axis)
    except (TypeError, ValueError):
        raise UserError(f"coordinates of axis {m} must be a list of numbers, got {cut(axis)}") from None


def evenly_spaced(gaps: Any, points: Any) -> bool:
    """Whether distances between neighbouring ``points``, tensors or arrays, are equal but for rounding.

    Far from 0 the coordinates themselves are rounded: to float32 where they are numbers of that kind.
    """
    gaps, points = (np.asarray(values, dtype=np.float64) for values in (gaps, points))
    with np.errstate(over="ignore"):
        kept = np.float32 if (points.astype(np.float32) == points).all() else np.float64
    rounding = 2 * float(np.finfo(kept).eps) * np.abs(points).max()
    mean = gaps.mean()
    return bool(np.abs(gaps - mean).max() < TOLERANCE * mean + rounding)


def require_increasing(name: str, axis: Sequence[float]) -> None:
    """Raise where coordinates of the axis ``name`` are no increasing numbers."""
    if len(axis) > 1 and all(b < a for a, b in pairwise(axis)):
        raise UserError(
            f"coordinates of {name} must be strictly increasing and these decrease: "
            "turn them around, and the values along that axis with them"
        )
    if len(axis) < 2 or not (all(map(math.isfinite, axis)) and all(b > a for a, b in pairwise(axis))):
        raise UserError(f"coordinates of {name} must be at least 2 strictly increasing finite numbers")


def require_length(m: int, span: float, length: float, wraps: bool) -> None:
    """Explicit coordinates leave no choice of the length, but for a period, of which they are a part."""
    if wraps and not length > span:
        raise UserError(f"axis {m} is periodic: its period in extent must be larger than {span:g}, got {length:g}")
    if not wraps and not math.isclose(length, span, rel_tol=1e-6):
        raise UserError(f"axis {m} has coordinates over a length of {span:g}, but extent says {length:g}")


def per_axis(name: str, value: Any, num_axes: int) -> tuple[Any, ...]:
    """One value for each axis, where a single one stands for all of them."""
    if isinstance(value, str) or not hasattr(value, "__iter__") or getattr(value, "ndim", 1) == 0:
        return (value,) * num_axes
    values = tuple(value)
    if len(values) != num_axes:
        raise UserError(f"{name} has {len(values)} entries for a grid of {num_axes} axes")
    return values
