"""What of an n-D field is shown: named components, planes through the middle, and colour limits.

A picture has its first axis to the right and its second one up, so arrays come out as (frame, up, right).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from factformer.errors import UserError
from factformer.grid import Grid
from factformer.problem import Field

Array = NDArray[np.floating[Any]]
SUBSCRIPTS = "₁₂₃₄"
LONGEST = 6.0
"""Sides that a picture is longer than the other at most: still longer boxes are not drawn to scale."""


@dataclass(frozen=True)
class Component:
    """One channel of a field group, with the name a reader sees."""

    label: str
    group: str
    channel: int


def components(fields: Sequence[Field]) -> list[Component]:
    """The channels of all field groups in order; those of a vector carry the number of their axis."""
    result: list[Component] = []
    for item in fields:
        for c in range(item.num_channels):
            label = item.name if item.num_channels == 1 else f"{item.name}{_subscript(c)}"
            result.append(Component(label, item.name, len(result)))
    return result


@dataclass(frozen=True)
class Plane:
    """Two axes to show (one for a line) and the index at which each of the others is cut."""

    axes: tuple[int, ...]
    cuts: tuple[tuple[int, int], ...] = ()

    def take(self, frames: Array) -> Array:
        """``(frame, *grid)`` → ``(frame, up, right)``, or ``(frame, 1, right)`` on a grid of one axis."""
        index: list[slice | int] = [slice(None)] * frames.ndim
        for axis, position in self.cuts:
            index[axis + 1] = position
        values = frames[tuple(index)]
        return values[:, None, :] if len(self.axes) == 1 else np.swapaxes(values, 1, 2)

    def label(self, coordinates: Sequence[Sequence[float] | Array] | None = None) -> str:
        """Such as ``x₁–x₃ plane, x₂ = 4.0``."""
        shown = "–".join(axis_name(a) for a in self.axes)
        if not self.cuts:
            return f"{shown} plane" if len(self.axes) == 2 else shown
        where = ", ".join(
            f"{axis_name(a)} = " + (f"{coordinates[a][i]:.3g}" if coordinates is not None else "middle")
            for a, i in self.cuts
        )
        return f"{shown} plane, {where}"


def middle_planes(shape: Sequence[int]) -> list[Plane]:
    """Every plane of two axes through the middle of the others: 1 in two axes, 3 in three, 6 in four.

    The one spanned by the last two axes comes first, the cut at the middle of the first axes.
    """
    if len(shape) == 1:
        return [Plane((0,))]
    pairs = sorted(combinations(range(len(shape)), 2), reverse=True)
    return [Plane(pair, tuple((m, n // 2) for m, n in enumerate(shape) if m not in pair)) for pair in pairs]


def cell_edges(axis: int, shape: Sequence[int], grid: Grid | None) -> Array:
    """Ends of the cells that the points of an axis are drawn as, one more than points, across the whole box.

    Evenly spaced points have equal cells; others reach half-way to their neighbours. Without a grid every cell has
    length 1.
    """
    size = shape[axis]
    if grid is None:
        return np.arange(size + 1.0)
    points, length = grid.axis(axis).numpy(), grid.extent[axis]
    start = 0.0 if grid.is_uniform(axis) else points[0]
    if grid.is_even(axis):
        return np.linspace(start, start + length, size + 1)
    between = (points[1:] + points[:-1]) / 2
    first, last = points[0], points[-1]
    if grid.periodic[axis]:
        last = (points[-1] + points[0] + length) / 2
        first = last - length
    return np.concatenate([[first], between, [last]])


def box_aspect(right: Array, up: Array) -> float:
    """Height over width of the box that cell edges span."""
    return float((up[-1] - up[0]) / (right[-1] - right[0]))


def picture_aspect(right: Array, up: Array) -> float:
    """Height over width of the picture of that box: the same, up to `LONGEST`."""
    return min(max(box_aspect(right, up), 1 / LONGEST), LONGEST)


def to_scale(right: Array, up: Array) -> bool:
    """Whether the picture of a box has its proportions."""
    return box_aspect(right, up) == picture_aspect(right, up)


def axis_name(axis: int) -> str:
    return f"x{_subscript(axis)}"


@dataclass(frozen=True)
class Limits:
    """Colour limits; ``signed`` ones are symmetric about zero and take a diverging map."""

    low: float
    high: float
    signed: bool


def color_limits(truth: Array, *, percentile: float = 99.8) -> Limits:
    """Limits that prediction and truth share, from the truth alone; a few extreme points may saturate.

    The field counts as signed when both signs reach 10 % of its largest magnitude.
    """
    finite = truth[np.isfinite(truth)]
    if finite.size == 0:
        raise UserError("the true frames hold no finite value, so there is nothing to draw")
    low, high = (float(v) for v in np.percentile(finite, [100 - percentile, percentile]))
    largest = max(-low, high, 1e-30)
    if min(-low, high) > 0.1 * largest:
        return Limits(-largest, largest, True)
    return Limits(low, high if high > low else low + max(abs(low), 1.0) * 1e-3, False)


def difference_limits(difference: Array, *, percentile: float = 99.8) -> Limits:
    """Limits of a difference: symmetric about zero."""
    finite = np.abs(difference[np.isfinite(difference)])
    largest = float(np.percentile(finite, percentile)) if finite.size else 0.0
    largest = largest if largest > 0 else 1e-6
    return Limits(-largest, largest, True)


def _subscript(index: int) -> str:
    return SUBSCRIPTS[index] if index < len(SUBSCRIPTS) else str(index + 1)
