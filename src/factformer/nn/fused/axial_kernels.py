# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Kernels behind `factformer.nn.fused.axial`, forward."""

from __future__ import annotations

import triton
import triton.language as tl

from factformer.nn.fused._common import gelu, to_nearest


@triton.jit
def matrix(weight, o, i, rows, columns):
    """Rows ``o`` and columns ``i`` of a matrix."""
    mask = (o < rows)[:, None] & (i < columns)[None, :]
    return tl.load(weight + o[:, None] * columns + i[None, :], mask=mask, other=0.0)


@triton.jit
def against(x, w, PRECISION: tl.constexpr):
    """``x wᵀ`` in float32, or nearly so."""
    x, w = to_nearest(x.to(tl.float32), PRECISION), to_nearest(w.to(tl.float32), PRECISION)
    return tl.dot(x, tl.trans(w), input_precision=PRECISION)


@triton.jit
def phi_kernel(
    mean,
    gamma,
    gain,
    bias,
    expand,
    expand_bias,
    contract,
    contract_bias,
    phi,
    factors,
    rows,
    dim,
    eps,
    SAVE: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """φ in float32; rounded, with the mean, it goes to the outer columns of ``factors`` for the backward pass.

    A rounding here moves every entry of the kernels, and through them all gradients: bfloat16 would cost as much
    accuracy as the rest of the layer together, and there are too few rows for it to save time.
    """
    r = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    d = tl.arange(0, BLOCK_D)
    inside = d < dim
    mask = (r < rows)[:, None] & inside[None, :]
    m = tl.load(mean + r[:, None] * dim + d[None, :], mask=mask, other=0.0)
    a = against(m, matrix(gamma, d, d, dim, dim), PRECISION)
    centred = tl.where(inside[None, :], a - (tl.sum(a, axis=1) / dim)[:, None], 0.0)
    scale = tl.rsqrt(tl.sum(centred * centred, axis=1) / dim + eps)[:, None]
    n = centred * scale * tl.load(gain + d, mask=inside, other=0.0)[None, :]
    n = n + tl.load(bias + d, mask=inside, other=0.0)[None, :]
    v = against(n, matrix(expand, d, d, dim, dim), PRECISION)
    v += tl.load(expand_bias + d, mask=inside, other=0.0)[None, :]
    g = against(n, matrix(expand + dim * dim, d, d, dim, dim), PRECISION)
    g += tl.load(expand_bias + dim + d, mask=inside, other=0.0)[None, :]
    p = v * gelu(g)
    out = against(p, matrix(contract, d, d, dim, dim), PRECISION)
    out += tl.load(contract_bias + d, mask=inside, other=0.0)[None, :]
    tl.store(phi + r[:, None] * dim + d[None, :], out, mask=mask)
    if SAVE:
        kept = factors + r[:, None] * 4 * dim + d[None, :]
        tl.store(kept, out.to(factors.dtype.element_ty), mask=mask)
        tl.store(kept + 3 * dim, m.to(factors.dtype.element_ty), mask=mask)


@triton.jit
def _encoded(
    phi,
    weight,
    cosine,
    sine,
    sample,
    head,
    r,
    size,
    dim,
    half,
    PRECISION: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_L: tl.constexpr,
    ROTARY: tl.constexpr,
):
    """Rotated even and odd channels of one head at the points ``r``."""
    d, pair = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_L)
    f = tl.load(
        phi + (sample * size + r)[:, None] * dim + d[None, :], mask=(r < size)[:, None] & (d < dim)[None, :], other=0.0
    )
    mask = (pair < half)[:, None] & (d < dim)[None, :]
    base = weight + (head * 2 * half + 2 * pair)[:, None] * dim + d[None, :]
    even = against(f, tl.load(base, mask=mask, other=0.0), PRECISION)
    odd = against(f, tl.load(base + dim, mask=mask, other=0.0), PRECISION)
    if ROTARY:
        inside = (r < size)[:, None] & (pair < half)[None, :]
        c = tl.load(cosine + r[:, None] * half + pair[None, :], mask=inside, other=0.0)
        s = tl.load(sine + r[:, None] * half + pair[None, :], mask=inside, other=0.0)
        turned = even * c - odd * s
        odd = even * s + odd * c
        even = turned
    return even, odd


@triton.jit
def _store_pairs(target, even, odd, row, r, size, half, BLOCK_L: tl.constexpr):
    pair = tl.arange(0, BLOCK_L)
    mask = (r < size)[:, None] & (pair < half)[None, :]
    base = target + (row * size + r)[:, None] * 2 * half + pair[None, :]
    tl.store(base, even.to(target.dtype.element_ty), mask=mask)
    tl.store(base + half, odd.to(target.dtype.element_ty), mask=mask)


@triton.jit
def operator_kernel(
    phi,
    query_weight,
    key_weight,
    cosine,
    sine,
    weights,
    result,
    queries,
    keys,
    size,
    dim,
    heads,
    half,
    factor,
    SAVE: tl.constexpr,
    ROTARY: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_S: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_L: tl.constexpr,
):
    row = tl.program_id(2).to(tl.int64)
    sample, head = row // heads, row % heads
    i = tl.program_id(0) * BLOCK_S + tl.arange(0, BLOCK_S)
    j = tl.program_id(1) * BLOCK_S + tl.arange(0, BLOCK_S)
    even_i, odd_i = _encoded(
        phi, query_weight, cosine, sine, sample, head, i, size, dim, half, PRECISION, BLOCK_D, BLOCK_L, ROTARY
    )
    if SAVE:  # noqa: SIM102 - a compile-time condition around one of the device
        if tl.program_id(1) == 0:
            _store_pairs(queries, even_i, odd_i, row, i, size, half, BLOCK_L)
    even_j, odd_j = _encoded(
        phi, key_weight, cosine, sine, sample, head, j, size, dim, half, PRECISION, BLOCK_D, BLOCK_L, ROTARY
    )
    if SAVE:  # noqa: SIM102 - a compile-time condition around one of the device
        if tl.program_id(0) == 0:
            _store_pairs(keys, even_j, odd_j, row, j, size, half, BLOCK_L)
    a = against(even_i, even_j, PRECISION) + against(odd_i, odd_j, PRECISION)
    a *= (tl.load(weights + j, mask=j < size, other=0.0) * factor)[None, :]
    mask = (i < size)[:, None] & (j < size)[None, :]
    tl.store(result + (row * size + i)[:, None] * size + j[None, :], a.to(result.dtype.element_ty), mask=mask)
