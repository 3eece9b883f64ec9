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

from collections.abc import Mapping, Sequence
from typing import Any

import triton
import triton.language as tl

from factformer.problem import Boundary

RUN = 4
"""Points of a run. Those of a dilated kernel see different neighbours, so they are taken one by one."""


def surroundings(
    shape: Sequence[int], kinds: Sequence[Boundary], kernel_size: int, dilation: int = 1
) -> dict[str, Any]:
    """Arguments by which a kernel finds the neighbours of a point: sizes of four axes, the first ones of length 1."""
    absent = 4 - len(shape)
    sizes = [1] * absent + list(shape)
    wraps = [kind == "periodic" for kind in kinds]
    return {
        "size1": sizes[1],
        "size2": sizes[2],
        "size3": sizes[3],
        "size0": sizes[0],
        "step": dilation,
        "WRAPS": sum(1 << (absent + m) for m, wrap in enumerate(wraps) if wrap),
        "REACH": kernel_size // 2,
        "ABSENT": absent,
        "RUN": RUN if dilation == 1 else 1,
    }


def runs(around: Mapping[str, Any]) -> int:
    """How many there are in a field."""
    length: int = triton.cdiv(around["size3"], around["RUN"])
    return int(around["size0"] * around["size1"] * around["size2"] * length)


@triton.jit
def moved_places(place, by, size, wraps: tl.constexpr):
    """Places moved along an axis, and which of them lie on the grid."""
    place += by
    if wraps:
        place = tl.where(place < 0, place + size, tl.where(place >= size, place - size, place))
    inside = (place >= 0) & (place < size)
    return tl.where(inside, place, 0), inside


@triton.jit
def neighbours(
    rest,
    outer,
    size0,
    size1,
    size2,
    size3,
    step,
    SIGN: tl.constexpr,
    WRAPS: tl.constexpr,
    REACH: tl.constexpr,
    ABSENT: tl.constexpr,
):
    """First place of the rows that the rows ``rest`` see at the ``outer``-th offset along all axes but the last."""
    WIDTH: tl.constexpr = 2 * REACH + 1
    by = 0
    number = outer
    if ABSENT < 3:
        by = SIGN * step * (number % WIDTH - REACH)
        number //= WIDTH
    c2, inside = moved_places(rest % size2, by, size2, (WRAPS >> 2) & 1)
    rest //= size2
    by = 0
    if ABSENT < 2:
        by = SIGN * step * (number % WIDTH - REACH)
        number //= WIDTH
    c1, within = moved_places(rest % size1, by, size1, (WRAPS >> 1) & 1)
    inside &= within
    by = 0
    if ABSENT < 1:
        by = SIGN * step * (number - REACH)
    c0, within = moved_places(rest // size1, by, size0, WRAPS & 1)
    return ((c0 * size1 + c1) * size2 + c2) * size3, inside & within


@triton.jit
def run_of(number, size3, RUN: tl.constexpr):
    """Row and first place in it of runs."""
    per_row = tl.cdiv(size3, RUN)
    return number // per_row, number % per_row * RUN


@triton.jit
def correlate(
    source,
    domain,
    weight,
    number,
    d,
    runs,
    dim,
    totals,
    size0,
    size1,
    size2,
    size3,
    step,
    SIGN: tl.constexpr,
    WRAPS: tl.constexpr,
    REACH: tl.constexpr,
    ABSENT: tl.constexpr,
    RUN: tl.constexpr,
):
    """``totals + Σ_o w_o source(p + SIGN · step · o)`` of the points of runs and channels ``d``, in float32.

    A tile of runs for each place in them. ``weight`` is ``(offset, dim)``. With ``SIGN = -1`` this is the transpose of
    the convolution. Of a ``domain``, bytes of the points or ``None``, only what lies inside is read.
    """
    WIDTH: tl.constexpr = 2 * REACH + 1
    inside_d = d < dim
    rows, first = run_of(number, size3, RUN)
    # In every row of a tile, so that all threads load what they multiply and need not wait for each other.
    channels = tl.broadcast_to(d[None, :], totals[0].shape)
    outer_offsets = 1
    for _ in tl.static_range(3 - ABSENT):
        outer_offsets *= WIDTH
    for outer in range(outer_offsets):
        row, inside = neighbours(rows, outer, size0, size1, size2, size3, step, SIGN, WRAPS, REACH, ABSENT)
        inside &= number < runs
        taps = ()
        for inner in tl.static_range(WIDTH):
            where = weight + (outer * WIDTH + inner) * dim + channels
            taps = taps + (tl.load(where, mask=channels < dim, other=0.0),)
        for place in tl.static_range(RUN + 2 * REACH):
            column, within = moved_places(first, step * (place - REACH), size3, (WRAPS >> 3) & 1)
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
