# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Kernels behind `factformer.nn.fused.axial`, forward and backward."""

from __future__ import annotations

import triton
import triton.language as tl

from factformer.nn.fused._common import gelu, gelu_slope


@triton.jit
def _matrix(weight, o, i, rows, columns):
    """Rows ``o`` and columns ``i`` of a matrix."""
    mask = (o < rows)[:, None] & (i < columns)[None, :]
    return tl.load(weight + o[:, None] * columns + i[None, :], mask=mask, other=0.0)


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
    rows,
    dim,
    eps,
    PRECISION: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    r = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    d = tl.arange(0, BLOCK_D)
    inside = d < dim
    mask = (r < rows)[:, None] & inside[None, :]
    kind = phi.dtype.element_ty
    m = tl.load(mean + r[:, None] * dim + d[None, :], mask=mask, other=0.0).to(kind)
    a = tl.dot(m, tl.trans(_matrix(gamma, d, d, dim, dim).to(kind)), input_precision=PRECISION)
    centred = tl.where(inside[None, :], a - (tl.sum(a, axis=1) / dim)[:, None], 0.0)
    scale = tl.rsqrt(tl.sum(centred * centred, axis=1) / dim + eps)[:, None]
    n = centred * scale * tl.load(gain + d, mask=inside, other=0.0)[None, :]
    n = (n + tl.load(bias + d, mask=inside, other=0.0)[None, :]).to(kind)
    v = tl.dot(n, tl.trans(_matrix(expand, d, d, dim, dim).to(kind)), input_precision=PRECISION)
    v += tl.load(expand_bias + d, mask=inside, other=0.0)[None, :]
    g = tl.dot(n, tl.trans(_matrix(expand + dim * dim, d, d, dim, dim).to(kind)), input_precision=PRECISION)
    g += tl.load(expand_bias + dim + d, mask=inside, other=0.0)[None, :]
    p = (v * gelu(g)).to(kind)
    out = tl.dot(p, tl.trans(_matrix(contract, d, d, dim, dim).to(kind)), input_precision=PRECISION)
    out += tl.load(contract_bias + d, mask=inside, other=0.0)[None, :]
    tl.store(phi + r[:, None] * dim + d[None, :], out.to(kind), mask=mask)


@triton.jit
def phi_gradient_kernel(
    mean,
    gamma,
    gain,
    bias,
    expand,
    expand_bias,
    contract,
    grad,
    grad_mean,
    grad_gamma,
    normed,
    grad_expand,
    product,
    sum_parts,
    rows,
    dim,
    eps,
    PRECISION: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Gradient of the mean, and the factors of the weight gradients: ∂a, n, ∂(v, g), p."""
    r = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    d = tl.arange(0, BLOCK_D)
    inside = d < dim
    mask = (r < rows)[:, None] & inside[None, :]
    offset = r[:, None] * dim + d[None, :]
    kind = grad.dtype.element_ty
    m = tl.load(mean + offset, mask=mask, other=0.0).to(kind)
    w_gamma = _matrix(gamma, d, d, dim, dim).to(kind)
    a = tl.dot(m, tl.trans(w_gamma), input_precision=PRECISION)
    centred = tl.where(inside[None, :], a - (tl.sum(a, axis=1) / dim)[:, None], 0.0)
    scale = tl.rsqrt(tl.sum(centred * centred, axis=1) / dim + eps)[:, None]
    unit = centred * scale
    weight = tl.load(gain + d, mask=inside, other=0.0)[None, :]
    n = (unit * weight + tl.load(bias + d, mask=inside, other=0.0)[None, :]).to(kind)
    tl.store(normed + offset, n, mask=mask)
    w_value = _matrix(expand, d, d, dim, dim).to(kind)
    w_gate = _matrix(expand + dim * dim, d, d, dim, dim).to(kind)
    v = tl.dot(n, tl.trans(w_value), input_precision=PRECISION)
    v += tl.load(expand_bias + d, mask=inside, other=0.0)[None, :]
    g = tl.dot(n, tl.trans(w_gate), input_precision=PRECISION)
    g += tl.load(expand_bias + dim + d, mask=inside, other=0.0)[None, :]
    gate = gelu(g)
    tl.store(product + offset, (v * gate).to(kind), mask=mask)
    out = tl.load(grad + offset, mask=mask, other=0.0)
    base = sum_parts + tl.program_id(0) * 5 * dim
    tl.store(base + 4 * dim + d, tl.sum(out.to(tl.float32), axis=0), mask=inside)
    grad_p = tl.dot(out, _matrix(contract, d, d, dim, dim).to(kind), input_precision=PRECISION)
    grad_v = tl.where(mask, grad_p * gate, 0.0)
    grad_g = tl.where(mask, grad_p * v * gelu_slope(g), 0.0)
    tl.store(base + d, tl.sum(grad_v, axis=0), mask=inside)
    tl.store(base + dim + d, tl.sum(grad_g, axis=0), mask=inside)
    wide = r[:, None] * 2 * dim + d[None, :]
    tl.store(grad_expand + wide, grad_v.to(kind), mask=mask)
    tl.store(grad_expand + wide + dim, grad_g.to(kind), mask=mask)
    grad_n = tl.dot(grad_v.to(kind), w_value, input_precision=PRECISION)
    grad_n = tl.dot(grad_g.to(kind), w_gate, grad_n, input_precision=PRECISION)
    tl.store(base + 2 * dim + d, tl.sum(grad_n * unit, axis=0), mask=inside)
    tl.store(base + 3 * dim + d, tl.sum(grad_n, axis=0), mask=inside)
    grad_n = grad_n * weight
    along = tl.sum(grad_n * unit, axis=1)[:, None] / dim
    level = tl.sum(grad_n, axis=1)[:, None] / dim
    grad_a = tl.where(mask, scale * (grad_n - level - unit * along), 0.0).to(kind)
    tl.store(grad_gamma + offset, grad_a, mask=mask)
    tl.store(grad_mean + offset, tl.dot(grad_a, w_gamma, input_precision=PRECISION), mask=mask)


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
    even = tl.dot(f, tl.trans(tl.load(base, mask=mask, other=0.0).to(f.dtype)), input_precision=PRECISION)
    odd = tl.dot(f, tl.trans(tl.load(base + dim, mask=mask, other=0.0).to(f.dtype)), input_precision=PRECISION)
    if ROTARY:
        inside = (r < size)[:, None] & (pair < half)[None, :]
        c = tl.load(cosine + r[:, None] * half + pair[None, :], mask=inside, other=0.0)
        s = tl.load(sine + r[:, None] * half + pair[None, :], mask=inside, other=0.0)
        turned = even * c - odd * s
        odd = even * s + odd * c
        even = turned
    return even.to(f.dtype), odd.to(f.dtype)


@triton.jit
def _store_pairs(target, even, odd, row, r, size, half, BLOCK_L: tl.constexpr):
    pair = tl.arange(0, BLOCK_L)
    mask = (r < size)[:, None] & (pair < half)[None, :]
    base = target + (row * size + r)[:, None] * 2 * half + pair[None, :]
    tl.store(base, even, mask=mask)
    tl.store(base + half, odd, mask=mask)


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
    a = tl.dot(even_i, tl.trans(even_j), input_precision=PRECISION)
    a = tl.dot(odd_i, tl.trans(odd_j), a, input_precision=PRECISION)
    a *= (tl.load(weights + j, mask=j < size, other=0.0) * factor)[None, :]
    mask = (i < size)[:, None] & (j < size)[None, :]
    tl.store(result + (row * size + i)[:, None] * size + j[None, :], a.to(result.dtype.element_ty), mask=mask)


@triton.jit
def operator_gradient_kernel(
    grad,
    encoded,
    cosine,
    sine,
    weights,
    result,
    size,
    heads,
    half,
    factor,
    ROTARY: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_S: tl.constexpr,
    BLOCK_L: tl.constexpr,
):
    """Gradients of queries (second program index 0) and keys (1) before the rotation, as ``(row, 2, channel)``."""
    row, which = tl.program_id(2).to(tl.int64), tl.program_id(1)
    sample, head = row // heads, row % heads
    r = tl.program_id(0) * BLOCK_S + tl.arange(0, BLOCK_S)
    pair = tl.arange(0, BLOCK_L)
    others = encoded + (1 - which).to(tl.int64) * tl.num_programs(2) * size * 2 * half
    stride_r = tl.where(which == 0, size, 1)
    stride_s = tl.where(which == 0, 1, size)
    even = tl.zeros((BLOCK_S, BLOCK_L), dtype=tl.float32)
    odd = tl.zeros((BLOCK_S, BLOCK_L), dtype=tl.float32)
    kind = encoded.dtype.element_ty
    for start in range(0, size, BLOCK_S):
        s = start + tl.arange(0, BLOCK_S)
        mask = (r < size)[:, None] & (s < size)[None, :]
        x = tl.load(grad + row * size * size + r[:, None] * stride_r + s[None, :] * stride_s, mask=mask, other=0.0)
        w_r = tl.load(weights + r, mask=r < size, other=0.0)[:, None]
        w_s = tl.load(weights + s, mask=s < size, other=0.0)[None, :]
        x = x.to(tl.float32) * tl.where(which == 0, w_s, w_r) * factor
        inside = (s < size)[:, None] & (pair < half)[None, :]
        base = others + (row * size + s)[:, None] * 2 * half + pair[None, :]
        even = tl.dot(x.to(kind), tl.load(base, mask=inside, other=0.0), even, input_precision=PRECISION)
        odd = tl.dot(x.to(kind), tl.load(base + half, mask=inside, other=0.0), odd, input_precision=PRECISION)
    inside = (r < size)[:, None] & (pair < half)[None, :]
    if ROTARY:
        c = tl.load(cosine + r[:, None] * half + pair[None, :], mask=inside, other=0.0)
        s = tl.load(sine + r[:, None] * half + pair[None, :], mask=inside, other=0.0)
        turned = even * c + odd * s
        odd = odd * c - even * s
        even = turned
    base = result + (((sample * size + r) * 2 + which) * heads + head)[:, None] * 2 * half + 2 * pair[None, :]
    tl.store(base, even.to(kind), mask=inside)
    tl.store(base + 1, odd.to(kind), mask=inside)
