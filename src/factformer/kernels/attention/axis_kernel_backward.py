# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Kernels behind `factformer.kernels.attention.axis_kernel`, backward."""

from __future__ import annotations

import triton
import triton.language as tl

from factformer.kernels._triton.arithmetic import gelu, gelu_slope, zeros
from factformer.kernels.attention.axis_kernel_forward import matrix


@triton.jit
def _encoded_gradient(grad, others, weights, r, size, half, factor, TRANSPOSED: tl.constexpr, S: tl.constexpr):
    """``Σ_s ∂A_rs w_s k̃_s`` of the queries ``r``, or of the keys ``Σ_s ∂A_sr w_r q̃_s``: even and odd channels."""
    pair = tl.arange(0, S.BLOCK_L)
    even = zeros(S.BLOCK_S, S.BLOCK_L)
    odd = zeros(S.BLOCK_S, S.BLOCK_L)
    kind = others.dtype.element_ty
    w_r = tl.load(weights + r, mask=r < size, other=0.0) * factor
    for start in range(0, size, S.BLOCK_S):
        s = start + tl.arange(0, S.BLOCK_S)
        if TRANSPOSED:  # rows as they lie in memory, turned on the chip
            mask = (s < size)[:, None] & (r < size)[None, :]
            x = tl.load(grad + s[:, None] * size + r[None, :], mask=mask, other=0.0).to(tl.float32)
            x = tl.trans((x * w_r[None, :]).to(kind))
        else:
            mask = (r < size)[:, None] & (s < size)[None, :]
            w_s = tl.load(weights + s, mask=s < size, other=0.0) * factor
            x = tl.load(grad + r[:, None] * size + s[None, :], mask=mask, other=0.0).to(tl.float32)
            x = (x * w_s[None, :]).to(kind)
        inside = (s < size)[:, None] & (pair < half)[None, :]
        base = others + s[:, None] * 2 * half + pair[None, :]
        even = tl.dot(x, tl.load(base, mask=inside, other=0.0), even, input_precision=S.PRECISION)
        odd = tl.dot(x, tl.load(base + half, mask=inside, other=0.0), odd, input_precision=S.PRECISION)
    return even, odd


@triton.jit
def operator_gradient_kernel(
    grad, encoded, rotations, weights, units, grads, size, heads, half, width, S: tl.constexpr
):
    """Gradients of queries (second program index 0) and keys (1) before the rotation.

    They are the first columns of ``grads``, whose rows are ``width`` wide: all queries, then all keys.
    """
    row, which = tl.program_id(2).to(tl.int64), tl.program_id(1)
    sample, head = row // heads, row % heads
    r = tl.program_id(0) * S.BLOCK_S + tl.arange(0, S.BLOCK_S)
    pair = tl.arange(0, S.BLOCK_L)
    factor = tl.load(units + sample)
    grad += row * size * size
    queries = encoded + row * size * 2 * half
    keys = queries + tl.num_programs(2).to(tl.int64) * size * 2 * half
    if which == 0:
        even, odd = _encoded_gradient(grad, keys, weights, r, size, half, factor, False, S)
    else:
        even, odd = _encoded_gradient(grad, queries, weights, r, size, half, factor, True, S)
    inside = (r < size)[:, None] & (pair < half)[None, :]
    if S.ROTARY:
        c = tl.load(rotations[0] + r[:, None] * half + pair[None, :], mask=inside, other=0.0)
        s = tl.load(rotations[1] + r[:, None] * half + pair[None, :], mask=inside, other=0.0)
        turned = even * c + odd * s
        odd = odd * c - even * s
        even = turned
    channel = tl.arange(0, 2 * S.BLOCK_L)
    base = grads + (sample * size + r)[:, None] * width + ((which * heads + head) * 2 * half + channel)[None, :]
    mask = (r < size)[:, None] & (channel < 2 * half)[None, :]
    tl.store(base, tl.interleave(even, odd).to(grads.dtype.element_ty), mask=mask)


@triton.jit
def phi_gradient_kernel(
    mean,
    line_factors,
    parameters,
    grads,
    factors,
    grad_mean,
    sum_parts,
    rows,
    dim,
    width,
    eps,
    RELOAD: tl.constexpr,
    S: tl.constexpr,
):
    """Gradient of the mean from ∂φ, and what the weight gradients are products of.

    ``grads`` has rows of ``width`` that end in ∂φ, ∂v, ∂g, ∂a; ``factors`` holds φ, p, n, m. The first of each are
    there already. With ``RELOAD`` matrices are read again instead of kept: four of them fill a large shared memory.
    """
    PRECISION: tl.constexpr = S.PRECISION
    gamma, gain, bias, expand, expand_bias, contract = parameters
    r = tl.program_id(0) * S.BLOCK_R + tl.arange(0, S.BLOCK_R)
    d = tl.arange(0, S.BLOCK_D)
    inside = d < dim
    mask = (r < rows)[:, None] & inside[None, :]
    offset = r[:, None] * dim + d[None, :]
    left = grads + r[:, None].to(tl.int64) * width + (width - 4 * dim) + d[None, :]
    right = factors + r[:, None] * 4 * dim + d[None, :]
    kind = grads.dtype.element_ty
    m = tl.load(mean + offset, mask=mask, other=0.0)
    if S.MASKED:
        factor = tl.load(line_factors + r, mask=r < rows, other=0.0)[:, None]
        m = m * factor
    m = m.to(kind)
    w_gamma = matrix(gamma, d, d, dim, dim).to(kind)
    a = tl.dot(m, tl.trans(w_gamma), input_precision=PRECISION)
    centred = tl.where(inside[None, :], a - (tl.sum(a, axis=1) / dim)[:, None], 0.0)
    scale = tl.rsqrt(tl.sum(centred * centred, axis=1) / dim + eps)[:, None]
    unit = centred * scale
    weight = tl.load(gain + d, mask=inside, other=0.0)[None, :]
    n = (unit * weight + tl.load(bias + d, mask=inside, other=0.0)[None, :]).to(kind)
    tl.store(right + 2 * dim, n, mask=mask)
    w_value = matrix(expand, d, d, dim, dim).to(kind)
    w_gate = matrix(expand + dim * dim, d, d, dim, dim).to(kind)
    v = tl.dot(n, tl.trans(w_value), input_precision=PRECISION)
    v += tl.load(expand_bias + d, mask=inside, other=0.0)[None, :]
    g = tl.dot(n, tl.trans(w_gate), input_precision=PRECISION)
    g += tl.load(expand_bias + dim + d, mask=inside, other=0.0)[None, :]
    gate = gelu(g)
    tl.store(right + dim, (v * gate).to(kind), mask=mask)
    out = tl.load(left, mask=mask, other=0.0)
    base = sum_parts + tl.program_id(0) * 5 * dim
    tl.store(base + 4 * dim + d, tl.sum(out.to(tl.float32), axis=0), mask=inside)
    grad_p = tl.dot(out, matrix(contract, d, d, dim, dim).to(kind), input_precision=PRECISION)
    grad_v = tl.where(mask, grad_p * gate, 0.0)
    grad_g = tl.where(mask, grad_p * v * gelu_slope(g), 0.0)
    tl.store(base + d, tl.sum(grad_v, axis=0), mask=inside)
    tl.store(base + dim + d, tl.sum(grad_g, axis=0), mask=inside)
    tl.store(left + dim, grad_v.to(kind), mask=mask)
    tl.store(left + 2 * dim, grad_g.to(kind), mask=mask)
    if RELOAD:
        w_value = matrix(expand, d, d, dim, dim).to(kind)
        w_gate = matrix(expand + dim * dim, d, d, dim, dim).to(kind)
    grad_n = tl.dot(grad_v.to(kind), w_value, input_precision=PRECISION)
    grad_n = tl.dot(grad_g.to(kind), w_gate, grad_n, input_precision=PRECISION)
    tl.store(base + 2 * dim + d, tl.sum(grad_n * unit, axis=0), mask=inside)
    tl.store(base + 3 * dim + d, tl.sum(grad_n, axis=0), mask=inside)
    grad_n = grad_n * weight
    along = tl.sum(grad_n * unit, axis=1)[:, None] / dim
    level = tl.sum(grad_n, axis=1)[:, None] / dim
    grad_a = tl.where(mask, scale * (grad_n - level - unit * along), 0.0).to(kind)
    tl.store(left + 3 * dim, grad_a, mask=mask)
    if RELOAD:
        w_gamma = matrix(gamma, d, d, dim, dim).to(kind)
    grad_m = tl.dot(grad_a, w_gamma, input_precision=PRECISION)
    if S.MASKED:
        grad_m = grad_m * factor
    tl.store(grad_mean + offset, grad_m, mask=mask)


@triton.jit
def products_kernel(
    grads,
    factors,
    parts,
    rows,
    dim,
    width,
    rows_per_program,
    encoded_tiles,
    PRECISION: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """All weight gradients of an axis at once, a tile and a part of the rows per program.

    Queries and keys go with φ, ∂φ with p, ∂v and ∂g with n, ∂a with m.
    """
    tile, part = tl.program_id(0), tl.program_id(1)
    extra = tile - encoded_tiles
    first = tl.where(extra < 0, tile * BLOCK_D, width - 4 * dim + extra * dim)
    end = tl.where(extra < 0, width - 4 * dim, first + dim)
    factor = tl.where(extra < 0, 0, tl.where(extra < 2, extra + 1, extra))
    a, b = first + tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_D)
    total = zeros(BLOCK_D, BLOCK_D)
    start = part * rows_per_program
    for r0 in range(start, min(rows, start + rows_per_program), BLOCK_R):
        r = (r0 + tl.arange(0, BLOCK_R)).to(tl.int64)
        x = tl.load(grads + r[:, None] * width + a[None, :], mask=(r < rows)[:, None] & (a < end)[None, :], other=0.0)
        y = tl.load(
            factors + r[:, None] * 4 * dim + (factor * dim + b)[None, :],
            mask=(r < rows)[:, None] & (b < dim)[None, :],
            other=0.0,
        )
        total = tl.dot(tl.trans(x), y, total, input_precision=PRECISION)
    base = parts + part.to(tl.int64) * width * dim
    tl.store(base + a[:, None] * dim + b[None, :], total, mask=(a < end)[:, None] & (b < dim)[None, :])
