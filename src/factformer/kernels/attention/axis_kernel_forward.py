# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Kernels behind `factformer.kernels.attention.axis_kernel`, forward."""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl

from factformer.kernels._triton.arithmetic import gelu, to_nearest, zeros


@dataclass(frozen=True, kw_only=True)
class RowTiles:
    """What the kernels of φ are made for: tiles of rows and channels."""

    MASKED: bool
    PRECISION: str
    BLOCK_R: int
    BLOCK_D: int


@dataclass(frozen=True, kw_only=True)
class OperatorTiles:
    """What the kernels of ``A`` are made for: tiles of points (S), pairs (L) and channels (D), parts at a time (N)."""

    ROTARY: bool
    PRECISION: str
    BLOCK_S: int
    BLOCK_L: int
    BLOCK_D: int = 0
    BLOCK_N: int = 0


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
    total = zeros(BLOCK)
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
    parameters,
    phi,
    lengths,
    squares,
    factors,
    rows,
    dim,
    encoded,
    eps,
    SAVE: tl.constexpr,
    S: tl.constexpr,
):
    """φ in float32; rounded, with the mean, it goes to the outer columns of ``factors`` for the backward pass.

    A rounding here moves every entry of the kernels, and through them all gradients: bfloat16 would cost as much
    accuracy as the rest of the layer together, and there are too few rows for it to save time. ``lengths`` are those
    of the rows, squared, and ``squares`` the sums over a part of both weights: the size that the kernel will have.
    """
    PRECISION: tl.constexpr = S.PRECISION
    gamma, gain, bias, expand, expand_bias, contract, contract_bias, query_weight, key_weight = parameters
    r = tl.program_id(0) * S.BLOCK_R + tl.arange(0, S.BLOCK_R)
    d = tl.arange(0, S.BLOCK_D)
    inside = d < dim
    mask = (r < rows)[:, None] & inside[None, :]
    m = tl.load(mean + r[:, None] * dim + d[None, :], mask=mask, other=0.0)
    if S.MASKED:
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
    tl.store(share, _share_of_squares(query_weight, encoded * dim, S.BLOCK_D * 16))
    tl.store(share + 1, _share_of_squares(key_weight, encoded * dim, S.BLOCK_D * 16))
    if SAVE:
        kept = factors + r[:, None] * 4 * dim + d[None, :]
        tl.store(kept, out.to(factors.dtype.element_ty), mask=mask)
        tl.store(kept + 3 * dim, m.to(factors.dtype.element_ty), mask=mask)


@triton.jit
def _encoded(f, weight, rotations, head, r, pair, size, dim, half, S: tl.constexpr):
    """Rotated even and odd channels ``pair`` of one head at the points ``r``, where φ is ``f``."""
    PRECISION: tl.constexpr = S.PRECISION
    d = tl.arange(0, S.BLOCK_D)
    mask = (pair < half)[:, None] & (d < dim)[None, :]
    base = weight + (head * 2 * half + 2 * pair)[:, None] * dim + d[None, :]
    even = against(f, tl.load(base, mask=mask, other=0.0), PRECISION)
    odd = against(f, tl.load(base + dim, mask=mask, other=0.0), PRECISION)
    if S.ROTARY:
        inside = (r < size)[:, None] & (pair < half)[None, :]
        c = tl.load(rotations[0] + r[:, None] * half + pair[None, :], mask=inside, other=0.0)
        s = tl.load(rotations[1] + r[:, None] * half + pair[None, :], mask=inside, other=0.0)
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
    rotations,
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
    S: tl.constexpr,
):
    """A tile of the kernel, times a power of two that keeps it near one whatever size the weights have grown to.

    Reference implementation of that factor: `factformer.nn.attention.axial_kernel.near_one`. ``units`` keeps it for the
    gradient.
    """
    PRECISION: tl.constexpr = S.PRECISION
    row = tl.program_id(2).to(tl.int64)
    sample, head = row // heads, row % heads
    i = tl.program_id(0) * S.BLOCK_S + tl.arange(0, S.BLOCK_S)
    j = tl.program_id(1) * S.BLOCK_S + tl.arange(0, S.BLOCK_S)
    d = tl.arange(0, S.BLOCK_D)
    phi += sample * size * dim
    f_i, f_j = matrix(phi, i, d, size, dim), matrix(phi, j, d, size, dim)
    a = zeros(S.BLOCK_S, S.BLOCK_S)
    # A few channels at a time: all of them do not fit into the registers, nor do several turns into shared memory.
    for start in tl.range(0, half, S.BLOCK_L, num_stages=1):
        pair = start + tl.arange(0, S.BLOCK_L)
        even_i, odd_i = _encoded(f_i, query_weight, rotations, head, i, pair, size, dim, half, S)
        even_j, odd_j = _encoded(f_j, key_weight, rotations, head, j, pair, size, dim, half, S)
        if SAVE:
            if tl.program_id(1) == 0:
                _store_pairs(queries, even_i, odd_i, row, i, pair, size, half)
            if tl.program_id(0) == 0:
                _store_pairs(keys, even_j, odd_j, row, j, pair, size, half)
        a += against(even_i, even_j, PRECISION) + against(odd_i, odd_j, PRECISION)
    unit = factor / _size_of_kernel(lengths + sample * size, squares, size, number, S.BLOCK_N)
    if SAVE:  # noqa: SIM102 - a compile-time condition around one of the device
        if tl.program_id(0) + tl.program_id(1) + head == 0:
            tl.store(units + sample, unit)
    a *= (tl.load(weights + j, mask=j < size, other=0.0) * unit)[None, :]
    mask = (i < size)[:, None] & (j < size)[None, :]
    tl.store(result + (row * size + i)[:, None] * size + j[None, :], a.to(result.dtype.element_ty), mask=mask)
