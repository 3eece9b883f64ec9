# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# mypy: disable-error-code="assignment, var-annotated"
# ruff: noqa: RUF005 (Triton adds tuples, it does not unpack them)
"""Kernels of the local branch, backward: network and norm; the weights of the convolution."""

from __future__ import annotations

import triton
import triton.language as tl

from factformer.kernels._triton.arithmetic import gelu, gelu_slope, zeros
from factformer.kernels.local.forward import hidden_layer, normalized
from factformer.kernels.local.neighbours import moved_places, neighbours, run_of


@triton.jit
def pointwise_gradient_kernel(
    grad, convolved, network, normed, activated, grad_hidden, grad_convolved, parts, factor, sizes, TILES: tl.constexpr
):
    """Back through the network and the norm; what the weights' gradients need is made again and written.

    A ``factor`` of every point, by which its convolution was multiplied, or ``None``.
    """
    points, dim, hidden, eps = sizes
    p = tl.program_id(0) * TILES.BLOCK_P + tl.arange(0, TILES.BLOCK_P)
    row = p.to(tl.int64)
    d = tl.arange(0, TILES.BLOCK_D)
    inside_d = d < dim
    inside = (p < points)[:, None]
    mask = inside & inside_d[None, :]
    offset = row[:, None] * dim + d[None, :]
    parts += tl.program_id(0) * (hidden + 4 * dim)
    x, unit, scale, gain = normalized(convolved, network, offset, mask, d, dim, eps)
    tl.store(normed + offset, x, mask=mask)
    y = tl.load(grad + offset, mask=mask, other=0.0)
    tl.store(parts + hidden + d, tl.sum(y.to(tl.float32), axis=0), mask=inside_d)
    grad_x = zeros(TILES.BLOCK_P, TILES.BLOCK_D)
    for start in range(0, hidden, TILES.BLOCK_H):
        k = start + tl.arange(0, TILES.BLOCK_H)
        h, w1, w2 = hidden_layer(x, network, k, d, sizes, TILES)
        grad_h = tl.dot(y, w2, input_precision=TILES.PRECISION) * gelu_slope(h)
        wide = row[:, None] * hidden + k[None, :]
        inside_k = inside & (k < hidden)[None, :]
        tl.store(activated + wide, gelu(h).to(activated.dtype.element_ty), mask=inside_k)
        tl.store(parts + k, tl.sum(grad_h, axis=0), mask=k < hidden)
        rounded = grad_h.to(w1.dtype)
        tl.store(grad_hidden + wide, rounded, mask=inside_k)
        grad_x = tl.dot(rounded, w1, grad_x, input_precision=TILES.PRECISION)
    tl.store(parts + hidden + dim + d, tl.sum(grad_x * unit, axis=0), mask=inside_d)
    tl.store(parts + hidden + 2 * dim + d, tl.sum(grad_x, axis=0), mask=inside_d)
    grad_x *= gain
    along = tl.sum(grad_x * unit, axis=1)[:, None] / dim
    level = tl.sum(grad_x, axis=1)[:, None] / dim
    grad_y = tl.where(mask, scale[:, None] * (grad_x - level - unit * along), 0.0)
    tl.store(parts + hidden + 3 * dim + d, tl.sum(grad_y, axis=0), mask=inside_d)
    if factor is not None:
        grad_y *= tl.load(factor + row, mask=p < points, other=0.0)[:, None]
    tl.store(grad_convolved + offset, grad_y.to(grad_convolved.dtype.element_ty), mask=mask)


@triton.jit
def depthwise_weight_kernel(
    source,
    grad,
    parts,
    domain,
    points,
    dim,
    tiles,
    tiles_per_program,
    axes,
    STENCIL: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """``Σ_p ∂y(p) source(p + step · o)`` for the offsets of one row of the kernel, summed over a part of all points."""
    RUN: tl.constexpr = STENCIL.RUN
    WIDTH: tl.constexpr = STENCIL.WIDTH
    REACH: tl.constexpr = WIDTH // 2
    size3 = axes.size3
    outer, part = tl.program_id(0), tl.program_id(1)
    d = tl.arange(0, BLOCK_D)
    inside_d = (d < dim)[None, :]
    runs = points // size3 * tl.cdiv(size3, RUN)
    per_sample = tl.cdiv(runs, BLOCK_R)
    sums = ()
    for _ in tl.static_range(WIDTH):
        sums = sums + (zeros(BLOCK_R, BLOCK_D),)
    begin = part * tiles_per_program
    for tile in range(begin, min(tiles, begin + tiles_per_program)):
        number = (tile % per_sample) * BLOCK_R + tl.arange(0, BLOCK_R)
        sample = (tile // per_sample).to(tl.int64) * points * dim
        rows, first = run_of(number, size3, RUN)
        ys = ()
        for r in tl.static_range(RUN):
            mask = ((number < runs) & (first + r < size3))[:, None] & inside_d
            where = grad + sample + (rows * size3 + first + r)[:, None] * dim + d[None, :]
            ys = ys + (tl.load(where, mask=mask, other=0.0).to(tl.float32),)
        row, inside = neighbours(rows, outer, axes, 1, STENCIL)
        inside &= number < runs
        for place in tl.static_range(RUN + 2 * REACH):
            column, within = moved_places(first, axes.step * (place - REACH), size3, (STENCIL.WRAPS >> 3) & 1)
            if domain is not None:
                here = domain + (tile // per_sample).to(tl.int64) * points + row + column
                within &= tl.load(here, mask=inside & within, other=0) != 0
            mask = (inside & within)[:, None] & inside_d
            where = source + sample + (row + column)[:, None] * dim + d[None, :]
            x = tl.load(where, mask=mask, other=0.0).to(tl.float32)
            following = ()
            for inner in tl.static_range(WIDTH):
                total = sums[inner]
                if place >= inner and place - inner < RUN:
                    total += ys[place - inner] * x
                following = following + (total,)
            sums = following
    for inner in tl.static_range(WIDTH):
        where = (part * tl.num_programs(0) + outer) * WIDTH + inner
        tl.store(parts + where * dim + d, tl.sum(sums[inner], axis=0), mask=d < dim)
