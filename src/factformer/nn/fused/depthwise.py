# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# mypy: disable-error-code="assignment"
# ruff: noqa: RUF005 (Triton adds tuples, it does not unpack them)
"""Depthwise convolution of channel-last fields on up to four axes, inside kernels that go on with its result.

A tile is a run of points with all their channels. Its neighbours along an axis are found by moving the points'
places, which wrap around or fall outside of the field; the tiles of different offsets overlap, so nearly all reads
are served by the caches and nothing is padded or copied. Plain twin: `factformer.nn.convolution.Convolution`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import triton
import triton.language as tl

from factformer.problem import Boundary


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
    }


@triton.jit
def _moved(place, by, size, wraps: tl.constexpr):
    """Places moved along an axis, and which of them lie on the grid."""
    place += by
    if wraps:
        place = tl.where(place < 0, place + size, tl.where(place >= size, place - size, place))
        return place, place >= 0
    inside = (place >= 0) & (place < size)
    return tl.where(inside, place, 0), inside


@triton.jit
def _neighbours(p, outer, size0, size1, size2, size3, step, SIGN: tl.constexpr, WRAPS: tl.constexpr,
                REACH: tl.constexpr, ABSENT: tl.constexpr):  # fmt: skip
    """First place of the rows that the points ``p`` see at the ``outer``-th offset along all axes but the last."""
    WIDTH: tl.constexpr = 2 * REACH + 1
    rest = p // size3
    by = 0
    number = outer
    if ABSENT < 3:
        by = SIGN * step * (number % WIDTH - REACH)
        number //= WIDTH
    c2, inside = _moved(rest % size2, by, size2, (WRAPS >> 2) & 1)
    rest //= size2
    by = 0
    if ABSENT < 2:
        by = SIGN * step * (number % WIDTH - REACH)
        number //= WIDTH
    c1, within = _moved(rest % size1, by, size1, (WRAPS >> 1) & 1)
    inside &= within
    by = 0
    if ABSENT < 1:
        by = SIGN * step * (number - REACH)
    c0, within = _moved(rest // size1, by, size0, WRAPS & 1)
    return ((c0 * size1 + c1) * size2 + c2) * size3, inside & within


@triton.jit
def correlate(
    source, weight, p, d, points, dim, total,
    size0, size1, size2, size3, step,
    SIGN: tl.constexpr, WRAPS: tl.constexpr, REACH: tl.constexpr, ABSENT: tl.constexpr,
):  # fmt: skip
    """``total + Σ_o w_o source(p + SIGN · step · o)`` of points ``p`` and channels ``d``, in float32.

    ``weight`` is ``(offset, dim)``. With ``SIGN = -1`` this is the transpose of the convolution.
    """
    WIDTH: tl.constexpr = 2 * REACH + 1
    inside_d = (d < dim)[None, :]
    outer_offsets = 1
    for _ in tl.static_range(3 - ABSENT):
        outer_offsets *= WIDTH
    for outer in range(outer_offsets):
        row, inside = _neighbours(p, outer, size0, size1, size2, size3, step, SIGN, WRAPS, REACH, ABSENT)
        for inner in tl.static_range(WIDTH):
            column, within = _moved(p % size3, SIGN * step * (inner - REACH), size3, (WRAPS >> 3) & 1)
            mask = (inside & within & (p < points))[:, None] & inside_d
            x = tl.load(source + (row + column)[:, None] * dim + d[None, :], mask=mask, other=0.0)
            w = tl.load(weight + (outer * WIDTH + inner) * dim + d, mask=d < dim, other=0.0)
            total += x.to(tl.float32) * w[None, :]
    return total


@triton.jit
def depthwise_weight_kernel(
    source, grad, parts, points, dim, tiles, tiles_per_program,
    size0, size1, size2, size3, step,
    WRAPS: tl.constexpr, REACH: tl.constexpr, ABSENT: tl.constexpr,
    BLOCK_P: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """``Σ_p ∂y(p) source(p + step · o)`` for the offsets of one row of the kernel, summed over a part of all points."""
    WIDTH: tl.constexpr = 2 * REACH + 1
    outer, part = tl.program_id(0), tl.program_id(1)
    d = tl.arange(0, BLOCK_D)
    inside_d = (d < dim)[None, :]
    per_sample = tl.cdiv(points, BLOCK_P)
    offsets = tl.arange(0, BLOCK_P)
    sums = ()
    for _ in tl.static_range(WIDTH):
        sums = sums + (tl.zeros((BLOCK_P, BLOCK_D), dtype=tl.float32),)
    first = part * tiles_per_program
    for tile in range(first, min(tiles, first + tiles_per_program)):
        p = (tile % per_sample) * BLOCK_P + offsets
        sample = (tile // per_sample).to(tl.int64) * points * dim
        valid = p < points
        y = tl.load(grad + sample + p[:, None] * dim + d[None, :], mask=valid[:, None] & inside_d, other=0.0)
        y = y.to(tl.float32)
        row, inside = _neighbours(p, outer, size0, size1, size2, size3, step, 1, WRAPS, REACH, ABSENT)
        following = ()
        for inner in tl.static_range(WIDTH):
            column, within = _moved(p % size3, step * (inner - REACH), size3, (WRAPS >> 3) & 1)
            mask = (inside & within & valid)[:, None] & inside_d
            x = tl.load(source + sample + (row + column)[:, None] * dim + d[None, :], mask=mask, other=0.0)
            following = following + (sums[inner] + y * x.to(tl.float32),)
        sums = following
    for inner in tl.static_range(WIDTH):
        where = (part * tl.num_programs(0) + outer) * WIDTH + inner
        tl.store(parts + where * dim + d, tl.sum(sums[inner], axis=0), mask=d < dim)
