# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# mypy: disable-error-code="assignment, var-annotated"
# ruff: noqa: RUF005 (Triton adds tuples, it does not unpack them)
"""Depthwise convolution of channel-last fields on up to four axes, inside kernels that use its result.

A tile holds runs of a few neighbours along the last axis, with all their channels, so that what is read once serves
all points of a run. Neighbours along an axis are found by moving the places of the runs, which wrap around or fall
outside of the field; tiles overlap, so nearly all reads are served by the caches and nothing is padded or copied.
Reference implementation: `factformer.nn.convolution.Convolution`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import triton
import triton.language as tl

from factformer.problem import Boundary

RUN = 4
"""Points of a run. Those of a dilated kernel see different neighbours, so they are taken one by one."""


class Axes(NamedTuple):
    """Sizes of four axes, the first ones of length 1, and the step between neighbours."""

    size0: int
    size1: int
    size2: int
    size3: int
    step: int


@dataclass(frozen=True, kw_only=True)
class Stencil:
    """What a kernel is made for: a bit for each axis that wraps around, how many axes are absent, a line's neighbours.

    ``RUN`` points are taken as one.
    """

    WRAPS: int
    ABSENT: int
    WIDTH: int
    RUN: int


def surroundings(
    shape: Sequence[int], kinds: Sequence[Boundary], kernel_size: int, dilation: int = 1
) -> tuple[Axes, Stencil]:
    """By which a kernel finds the neighbours of a point."""
    absent = 4 - len(shape)
    wraps = sum(1 << (absent + m) for m, kind in enumerate(kinds) if kind == "periodic")
    sizes = [1] * absent + list(shape)
    axes = Axes(sizes[0], sizes[1], sizes[2], sizes[3], dilation)
    run = RUN if dilation == 1 else 1
    return axes, Stencil(WRAPS=wraps, ABSENT=absent, WIDTH=2 * (kernel_size // 2) + 1, RUN=run)


def num_runs(axes: Axes, stencil: Stencil) -> int:
    """How many there are in a field."""
    length: int = triton.cdiv(axes.size3, stencil.RUN)
    return axes.size0 * axes.size1 * axes.size2 * length


@triton.jit
def moved_places(place, by, size, wraps: tl.constexpr):
    """Places moved along an axis, and which of them lie on the grid."""
    place += by
    if wraps:
        place = tl.where(place < 0, place + size, tl.where(place >= size, place - size, place))
    inside = (place >= 0) & (place < size)
    return tl.where(inside, place, 0), inside


@triton.jit
def neighbours(rest, outer, axes, SIGN: tl.constexpr, STENCIL: tl.constexpr):
    """First place of the rows that the rows ``rest`` see at the ``outer``-th offset along all axes but the last."""
    REACH: tl.constexpr = STENCIL.WIDTH // 2
    by = 0
    number = outer
    if STENCIL.ABSENT < 3:
        by = SIGN * axes.step * (number % STENCIL.WIDTH - REACH)
        number //= STENCIL.WIDTH
    c2, inside = moved_places(rest % axes.size2, by, axes.size2, (STENCIL.WRAPS >> 2) & 1)
    rest //= axes.size2
    by = 0
    if STENCIL.ABSENT < 2:
        by = SIGN * axes.step * (number % STENCIL.WIDTH - REACH)
        number //= STENCIL.WIDTH
    c1, within = moved_places(rest % axes.size1, by, axes.size1, (STENCIL.WRAPS >> 1) & 1)
    inside &= within
    by = 0
    if STENCIL.ABSENT < 1:
        by = SIGN * axes.step * (number - REACH)
    c0, within = moved_places(rest // axes.size1, by, axes.size0, STENCIL.WRAPS & 1)
    return ((c0 * axes.size1 + c1) * axes.size2 + c2) * axes.size3, inside & within


@triton.jit
def run_of(number, size3, RUN: tl.constexpr):
    """Row and first place in it of runs."""
    per_row = tl.cdiv(size3, RUN)
    return number // per_row, number % per_row * RUN


@triton.jit
def correlate(source, domain, weight, number, d, runs, dim, totals, axes, SIGN: tl.constexpr, STENCIL: tl.constexpr):
    """``totals + Σ_o w_o source(p + SIGN · step · o)`` of the points of runs and channels ``d``, in float32.

    A tile of runs for each place in them. ``weight`` is ``(offset, dim)``. With ``SIGN = -1`` this is the transpose of
    the convolution. Of a ``domain``, bytes of the points or ``None``, only what lies inside is read.
    """
    RUN: tl.constexpr = STENCIL.RUN
    WIDTH: tl.constexpr = STENCIL.WIDTH
    REACH: tl.constexpr = WIDTH // 2
    OUTER_AXES: tl.constexpr = 3 - STENCIL.ABSENT
    inside_d = d < dim
    rows, first = run_of(number, axes.size3, RUN)
    # In every row of a tile, so that all threads load what they multiply and need not wait for each other.
    channels = tl.broadcast_to(d[None, :], totals[0].shape)
    outer_offsets = 1
    for _ in tl.static_range(OUTER_AXES):
        outer_offsets *= WIDTH
    for outer in range(outer_offsets):
        row, inside = neighbours(rows, outer, axes, SIGN, STENCIL)
        inside &= number < runs
        taps = ()
        for inner in tl.static_range(WIDTH):
            where = weight + (outer * WIDTH + inner) * dim + channels
            taps = taps + (tl.load(where, mask=channels < dim, other=0.0),)
        for place in tl.static_range(RUN + 2 * REACH):
            column, within = moved_places(first, axes.step * (place - REACH), axes.size3, (STENCIL.WRAPS >> 3) & 1)
            if domain is not None:
                within &= tl.load(domain + row + column, mask=inside & within, other=0) != 0
            mask = (inside & within)[:, None] & inside_d[None, :]
            x = tl.load(source + (row + column)[:, None] * dim + d[None, :], mask=mask, other=0.0).to(tl.float32)
            following = ()
            for r in tl.static_range(RUN):
                total = totals[r]
                if place >= r and place - r < WIDTH:  # the offset from the r-th point is place - r - REACH
                    total += x * taps[REACH + SIGN * (place - r - REACH)]
                following = following + (total,)
            totals = following
    return totals
