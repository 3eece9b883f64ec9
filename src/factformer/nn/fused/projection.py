# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""The values of all heads, ``V = x Wᵀ``, in short programs.

The library's product is as fast, but its programs stay on the chip until the end, and the kernels of the axes, which
are few, small and wait for each other, then wait for it. Between short programs they find their places.
"""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from factformer.nn.fused._common import padded, precision
from factformer.nn.fused.tiles import can_move, load_tile, moved, store_tile


class ProjectionTiling(NamedTuple):
    """Points of a program, channels of the values that it makes at a time, warps, pipeline stages."""

    points: int
    channels: int
    warps: int
    stages: int


def projection_tiling(points: int) -> ProjectionTiling:
    return ProjectionTiling(128, 64, 4, 2)


@triton.jit
def _project_kernel(
    source,
    weight,
    result,
    points,
    dim,
    width,
    DESCRIBED: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_C: tl.constexpr,
    STAGES: tl.constexpr,
):
    p = tl.program_id(0) * BLOCK_P
    x = load_tile(source, 0, p, 0, points, dim, DESCRIBED, BLOCK_P, BLOCK_D)
    for start in tl.range(0, width, BLOCK_C, num_stages=STAGES):
        w = load_tile(weight, 0, start, 0, width, dim, DESCRIBED, BLOCK_C, BLOCK_D)
        values = tl.dot(x, tl.trans(w), input_precision=PRECISION)
        store_tile(result, values, 0, p, start, points, width, DESCRIBED, BLOCK_P, BLOCK_C)


def project(source: Tensor, weight: Tensor, heads: int) -> Tensor:
    """Values ``(batch, *grid, head, channel)`` of a field ``(batch, *grid, dim)``, both dense; no gradients."""
    width, dim = weight.shape
    flat = source.flatten(0, -2)
    points = len(flat)
    result = source.new_empty(points, width)
    cut, block_d = projection_tiling(points), padded(dim)
    block_c = min(padded(width), cut.channels)
    described = can_move(flat, weight, result)
    _project_kernel[(triton.cdiv(points, cut.points),)](
        moved(flat, 1, cut.points, block_d, described),
        moved(weight, 1, block_c, block_d, described),
        moved(result, 1, cut.points, block_c, described),
        points,
        dim,
        width,
        DESCRIBED=described,
        PRECISION=precision(source.dtype),
        BLOCK_P=cut.points,
        BLOCK_D=block_d,
        BLOCK_C=block_c,
        STAGES=cut.stages,
        num_warps=cut.warps,
    )
    return result.view(*source.shape[:-1], heads, -1)
