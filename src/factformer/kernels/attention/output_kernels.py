# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Kernels behind `factformer.kernels.attention.output`, forward and backward."""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl

from factformer.kernels._triton.arithmetic import gelu, gelu_slope, zeros
from factformer.kernels._triton.tiles import load_tile, row_of, store_tile


@dataclass(frozen=True, kw_only=True)
class Tiles:
    """What the kernels are made for: tiles of points (P), of the channels of the field (D) and of the values (C)."""

    DESCRIBED: bool
    PRECISION: str
    BLOCK_P: int
    BLOCK_D: int
    STAGES: int
    BLOCK_C: int = 0


@triton.jit
def within(domain, sample, p, points, BLOCK_P: tl.constexpr):
    """Which points of a tile lie inside the domain."""
    r = p + tl.arange(0, BLOCK_P)
    return tl.load(domain + row_of(sample, points) + r, mask=r < points, other=0) != 0


@triton.jit
def output_kernel(
    values,
    folded,
    constant,
    second,
    residual,
    result,
    hidden,
    domain,
    points,
    width,
    dim,
    SAVE: tl.constexpr,
    MASKED: tl.constexpr,
    S: tl.constexpr,
):
    sample, p = tl.program_id(1), tl.program_id(0) * S.BLOCK_P
    d = tl.arange(0, S.BLOCK_D)
    h = zeros(S.BLOCK_P, S.BLOCK_D)
    for start in tl.range(0, width, S.BLOCK_C, num_stages=S.STAGES):
        z = load_tile(values, sample, p, start, points, width, S.DESCRIBED, S.BLOCK_P, S.BLOCK_C)
        w = load_tile(folded, sample, 0, start, dim, width, S.DESCRIBED, S.BLOCK_D, S.BLOCK_C)
        h = tl.dot(z, tl.trans(w), h, input_precision=S.PRECISION)
    h += tl.load(constant + sample * dim + d, mask=d < dim, other=0.0)[None, :]
    if SAVE:
        store_tile(hidden, h, sample, p, 0, points, dim, S.DESCRIBED, S.BLOCK_P, S.BLOCK_D)
    w = load_tile(second, 0, 0, 0, dim, dim, S.DESCRIBED, S.BLOCK_D, S.BLOCK_D)
    past = load_tile(residual, sample, p, 0, points, dim, S.DESCRIBED, S.BLOCK_P, S.BLOCK_D)
    out = tl.dot(gelu(h).to(w.dtype), tl.trans(w), input_precision=S.PRECISION)
    if MASKED:
        out = tl.where(within(domain, sample, p, points, S.BLOCK_P)[:, None], out, 0.0)
    out += past.to(tl.float32)
    store_tile(result, out, sample, p, 0, points, dim, S.DESCRIBED, S.BLOCK_P, S.BLOCK_D)


@triton.jit
def hidden_gradient_kernel(
    grad,
    hidden,
    second,
    grad_hidden,
    second_parts,
    sum_parts,
    domain,
    points,
    dim,
    tiles_per_program,
    MASKED: tl.constexpr,
    S: tl.constexpr,
):
    """``∂h`` of every point, and of the points of a program its sum and ``∂W₂ = ∂outᵀ gelu(h)``."""
    sample = tl.program_id(1)
    d = tl.arange(0, S.BLOCK_D)
    w = load_tile(second, 0, 0, 0, dim, dim, S.DESCRIBED, S.BLOCK_D, S.BLOCK_D)
    total = zeros(S.BLOCK_D, S.BLOCK_D)
    summed = zeros(S.BLOCK_P, S.BLOCK_D)
    first = tl.program_id(0) * tiles_per_program
    for tile in tl.range(
        first, min(first + tiles_per_program, (points + S.BLOCK_P - 1) // S.BLOCK_P), num_stages=S.STAGES
    ):
        p = tile * S.BLOCK_P
        g = load_tile(grad, sample, p, 0, points, dim, S.DESCRIBED, S.BLOCK_P, S.BLOCK_D)
        h = load_tile(hidden, sample, p, 0, points, dim, S.DESCRIBED, S.BLOCK_P, S.BLOCK_D).to(tl.float32)
        grad_h = tl.dot(g, w, input_precision=S.PRECISION) * gelu_slope(h)
        active = gelu(h)
        if MASKED:
            inside = within(domain, sample, p, points, S.BLOCK_P)[:, None]
            grad_h, active = tl.where(inside, grad_h, 0.0), tl.where(inside, active, 0.0)
        total = tl.dot(tl.trans(g), active.to(g.dtype), total, input_precision=S.PRECISION)
        store_tile(grad_hidden, grad_h, sample, p, 0, points, dim, S.DESCRIBED, S.BLOCK_P, S.BLOCK_D)
        summed += grad_h
    program = sample.to(tl.int64) * tl.num_programs(0) + tl.program_id(0)
    tl.store(sum_parts + program * dim + d, tl.sum(summed, axis=0), mask=d < dim)
    mask = (d < dim)[:, None] & (d < dim)[None, :]
    tl.store(second_parts + program * dim * dim + d[:, None] * dim + d[None, :], total, mask=mask)


@triton.jit
def head_terms_kernel(
    raw_parts,
    sum_parts,
    first,
    statistics,
    grad_first,
    terms,
    raw_number,
    sum_number,
    dim,
    heads,
    channels,
    measure,
    BLOCK_D: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """Of a sample and head the gradient of ``W₁`` in ``h = W₁ ẑ``, and ``α, β`` of ``∂z = ∂h (ρ W₁) + w (α + β z)``.

    From parts of ``raw = ∂hᵀ z`` and of ``Σ ∂h``; ``measure`` is one over the number of entries of a head where all
    points weigh the same.
    """
    head, sample = tl.program_id(0), tl.program_id(1).to(tl.int64)
    d, c = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_C)
    mask = (d < dim)[:, None] & (c < channels)[None, :]
    pitch = heads * channels
    inside = d[:, None] * pitch + (head * channels + c)[None, :]
    raw = zeros(BLOCK_D, BLOCK_C)
    for part in tl.range(0, raw_number, num_stages=4):
        raw += tl.load(raw_parts + (sample * raw_number + part) * dim * pitch + inside, mask=mask, other=0.0)
    # Many short parts, as a tile of 16 at a time.
    sums = zeros(16, BLOCK_D)
    for start in range(0, sum_number, 16):
        k = start + tl.arange(0, 16)
        rows = sum_parts + (sample * sum_number + k)[:, None] * dim + d[None, :]
        sums += tl.load(rows, mask=(k < sum_number)[:, None] & (d < dim)[None, :], other=0.0)
    total = tl.sum(sums, axis=0)[:, None]
    where = statistics + (sample * heads + head) * 2
    mean, scale = tl.load(where), tl.load(where + 1)
    weight = tl.load(first + inside, mask=mask, other=0.0).to(tl.float32)
    grad = tl.where(mask, (raw - total * mean) * scale, 0.0)
    along = tl.sum(tl.sum(grad * weight, axis=1), axis=0)
    level = tl.sum(tl.sum(total * weight, axis=1), axis=0)
    slope = -scale * scale * along * measure
    tl.store(grad_first + sample * dim * pitch + inside, grad, mask=mask)
    where = terms + (sample * heads + head) * 2
    tl.store(where, -scale * level * measure - slope * mean)
    tl.store(where + 1, slope)


@triton.jit
def values_gradient_kernel(
    grad_hidden,
    scaled,
    values,
    terms,
    weights,
    grad_values,
    points,
    heads,
    channels,
    dim,
    HAS_WEIGHTS: tl.constexpr,
    OF_SAMPLES: tl.constexpr,
    S: tl.constexpr,
):
    """``∂z = ∂h (ρ W₁) + w (α + β z)``, a head at a time.

    With ``DESCRIBED`` heads are as wide as their tile, so that no tile reaches into the next head.
    """
    sample, p = tl.program_id(1), tl.program_id(0) * S.BLOCK_P
    g = load_tile(grad_hidden, sample, p, 0, points, dim, S.DESCRIBED, S.BLOCK_P, S.BLOCK_D)
    measure = 1.0
    if HAS_WEIGHTS:
        if OF_SAMPLES:
            weights += row_of(sample, points)
        r = p + tl.arange(0, S.BLOCK_P)
        measure = tl.load(weights + r, mask=r < points, other=0.0)[:, None]
    for head in tl.range(0, heads, num_stages=S.STAGES):
        start, end = head * channels, (head + 1) * channels
        if S.DESCRIBED:
            z = load_tile(values, sample, p, start, points, 0, True, S.BLOCK_P, S.BLOCK_C)
            w = load_tile(scaled, sample, 0, start, dim, 0, True, S.BLOCK_D, S.BLOCK_C)
        else:
            pitch = heads * channels
            c, d, r = start + tl.arange(0, S.BLOCK_C), tl.arange(0, S.BLOCK_D), p + tl.arange(0, S.BLOCK_P)
            where = (sample.to(tl.int64) * points + r)[:, None] * pitch + c[None, :]
            mask = (r < points)[:, None] & (c < end)[None, :]
            z = tl.load(values + where, mask=mask, other=0.0)
            base = (sample.to(tl.int64) * dim + d)[:, None] * pitch + c[None, :]
            w = tl.load(scaled + base, mask=(d < dim)[:, None] & (c < end)[None, :], other=0.0)
        term = terms + (sample * heads + head) * 2
        result = tl.dot(g, w, input_precision=S.PRECISION)
        result += measure * (tl.load(term) + tl.load(term + 1) * z.to(tl.float32))
        if S.DESCRIBED:
            store_tile(grad_values, result, sample, p, start, points, 0, True, S.BLOCK_P, S.BLOCK_C)
        else:
            tl.store(grad_values + where, result.to(grad_values.dtype.element_ty), mask=mask)
