# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Kernels behind `factformer.kernels.attention.axis_kernel`, forward."""

from __future__ import annotations

import triton
import triton.language as tl

from factformer.kernels._triton.arithmetic import gelu, to_nearest


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
def _share_of_squares(weight, length, BLOCK: tl.constexpr):
    """Sum of the squares of this program's share of ``length`` numbers."""
    per_program = tl.cdiv(length, tl.num_programs(0))
    first = tl.program_id(0) * per_program
    end = min(length, first + per_program)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(first, end, BLOCK):
        k = start + tl.arange(0, BLOCK)
        w = tl.load(weight + k, mask=k < end, other=0.0).to(tl.float32)
        total += w * w
    return tl.sum(total, axis=0)


@triton.jit
def _size_of_kernel(lengths, squares, size, number, BLOCK: tl.constexpr):
    """``max |φ|² |W_q| |W_k|``, which no entry exceeds, down to a power of two: no digit changes where it divides."""
    longest, query_square, key_square = 0.0, 0.0, 0.0
    for start in range(0, size, BLOCK):
        k = start + tl.arange(0, BLOCK)
        length = tl.load(lengths + k, mask=k < size, other=0.0)
        longest = tl.maximum(longest, tl.max(tl.where(length < float("inf"), length, 0.0), axis=0))
    for start in range(0, number, BLOCK):
        k = start + tl.arange(0, BLOCK)
        query_square += tl.sum(tl.load(squares + 2 * k, mask=k < number, other=0.0), axis=0)
        key_square += tl.sum(tl.load(squares + 2 * k + 1, mask=k < number, other=0.0), axis=0)
    bound = longest * tl.sqrt(query_square) * tl.sqrt(key_square)
    bound = tl.minimum(tl.maximum(bound, 1e-30), 1e30)
    return (bound.to(tl.int32, bitcast=True) & 0x7F800000).to(tl.float32, bitcast=True)


@triton.jit
def phi_kernel(
    mean,
    line_factors,
    gamma,
    gain,
    bias,
    expand,
    expand_bias,
    contract,
    contract_bias,
    query_weight,
    key_weight,
    phi,
    lengths,
    squares,
    factors,
    rows,
    dim,
    encoded,
    eps,
    MASKED: tl.constexpr,
    SAVE: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """φ in float32; rounded, with the mean, it goes to the outer columns of ``factors`` for the backward pass.

    A rounding here moves every entry of the kernels, and through them all gradients: bfloat16 would cost as much
    accuracy as the rest of the layer together, and there are too few rows for it to save time. ``lengths`` are those
    of the rows, squared, and ``squares`` the sums over a part of both weights: the size that the kernel will have.
    """
    r = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    d = tl.arange(0, BLOCK_D)
    inside = d < dim
    mask = (r < rows)[:, None] & inside[None, :]
    m = tl.load(mean + r[:, None] * dim + d[None, :], mask=mask, other=0.0)
    if MASKED:
        m = m * tl.load(line_factors + r, mask=r < rows, other=0.0)[:, None]
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
    tl.store(lengths + r, tl.sum(out * out, axis=1), mask=r < rows)
    share = squares + tl.program_id(0) * 2
    tl.store(share, _share_of_squares(query_weight, encoded * dim, BLOCK_D * 16))
    tl.store(share + 1, _share_of_squares(key_weight, encoded * dim, BLOCK_D * 16))
    if SAVE:
        kept = factors + r[:, None] * 4 * dim + d[None, :]
        tl.store(kept, out.to(factors.dtype.element_ty), mask=mask)
        tl.store(kept + 3 * dim, m.to(factors.dtype.element_ty), mask=mask)


@triton.jit
def _encoded(
    f,
    weight,
    cosine,
    sine,
    head,
    r,
    pair,
    size,
    dim,
    half,
    PRECISION: tl.constexpr,
    BLOCK_D: tl.constexpr,
    ROTARY: tl.constexpr,
):
    """Rotated even and odd channels ``pair`` of one head at the points ``r``, where φ is ``f``."""
    d = tl.arange(0, BLOCK_D)
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
def _store_pairs(target, even, odd, row, r, pair, size, half):
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
    lengths,
    squares,
    result,
    queries,
    keys,
    units,
    size,
    dim,
    heads,
    half,
    number,
    factor,
    SAVE: tl.constexpr,
    ROTARY: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_S: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_L: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """A tile of the kernel, times a power of two that keeps it near one whatever size the weights have grown to.

    Reference implementation of that factor: `factformer.nn.attention.axial_kernel.near_one`. ``units`` keeps it for the
    gradient.
    """
    row = tl.program_id(2).to(tl.int64)
    sample, head = row // heads, row % heads
    i = tl.program_id(0) * BLOCK_S + tl.arange(0, BLOCK_S)
    j = tl.program_id(1) * BLOCK_S + tl.arange(0, BLOCK_S)
    d = tl.arange(0, BLOCK_D)
    phi += sample * size * dim
    f_i, f_j = matrix(phi, i, d, size, dim), matrix(phi, j, d, size, dim)
    a = tl.zeros((BLOCK_S, BLOCK_S), dtype=tl.float32)
    # A few channels at a time: all of them do not fit into the registers, nor do several turns into shared memory.
    for start in tl.range(0, half, BLOCK_L, num_stages=1):
        pair = start + tl.arange(0, BLOCK_L)
        even_i, odd_i = _encoded(
            f_i, query_weight, cosine, sine, head, i, pair, size, dim, half, PRECISION, BLOCK_D, ROTARY
        )
        even_j, odd_j = _encoded(
            f_j, key_weight, cosine, sine, head, j, pair, size, dim, half, PRECISION, BLOCK_D, ROTARY
        )
        if SAVE:
            if tl.program_id(1) == 0:
                _store_pairs(queries, even_i, odd_i, row, i, pair, size, half)
            if tl.program_id(0) == 0:
                _store_pairs(keys, even_j, odd_j, row, j, pair, size, half)
        a += against(even_i, even_j, PRECISION) + against(odd_i, odd_j, PRECISION)
    unit = factor / _size_of_kernel(lengths + sample * size, squares, size, number, BLOCK_N)
    if SAVE:  # noqa: SIM102 - a compile-time condition around one of the device
        if tl.program_id(0) + tl.program_id(1) + head == 0:
            tl.store(units + sample, unit)
    a *= (tl.load(weights + j, mask=j < size, other=0.0) * unit)[None, :]
    mask = (i < size)[:, None] & (j < size)[None, :]
    tl.store(result + (row * size + i)[:, None] * size + j[None, :], a.to(result.dtype.element_ty), mask=mask)
