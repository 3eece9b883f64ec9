# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Kernels behind `factformer.kernels.attention.contraction`: the contraction, and the statistics of its result."""

from __future__ import annotations

import triton
import triton.language as tl

from factformer.kernels._triton.arithmetic import zeros


@triton.jit
def _kernel_rows(kernel, i, j, size_out, size_in, stride_out, stride_in, IN_REGISTERS: tl.constexpr, S: tl.constexpr):
    a = tl.load(
        kernel + i[:, None] * stride_out + j[None, :] * stride_in,
        mask=(i < size_out)[:, None] & (j < size_in)[None, :],
        other=0.0,
    )
    if IN_REGISTERS:
        # The product with the identity is exact, and its result lies in the registers where the next one wants it.
        k = tl.arange(0, a.shape[1])
        a = tl.dot(a, (k[:, None] == k[None, :]).to(a.dtype), input_precision=S.PRECISION).to(a.dtype)
    return a


@triton.jit
def contract_kernel(
    kernel,
    values,
    result,
    weights,
    parts,
    sizes,
    channels,
    stride_sample,
    stride_out,
    stride_in,
    columns_per_program,
    row_blocks,
    STATISTICS: tl.constexpr,
    HAS_WEIGHTS: tl.constexpr,
    OF_SAMPLES: tl.constexpr,
    WHOLE: tl.constexpr,
    CHUNKS: tl.constexpr,
    PADDED: tl.constexpr,
    S: tl.constexpr,
):
    size_out, size_in, inner, columns, heads = sizes
    # Heads and row blocks of the same columns run side by side, so that their reads share cache lines.
    head, block = tl.program_id(0) // row_blocks, tl.program_id(0) % row_blocks
    part, sample = tl.program_id(1), tl.program_id(2).to(tl.int64)
    i = block * S.BLOCK_OUT + tl.arange(0, S.BLOCK_OUT)
    j = tl.arange(0, S.BLOCK_IN)
    n = tl.arange(0, S.BLOCK_Q * S.BLOCK_C)
    column, c = tl.arange(0, S.BLOCK_Q), n % S.BLOCK_C
    pitch = heads * channels
    kernel += (sample * heads + head) * stride_sample
    if S.DESCRIBED:
        outer = (sample * (columns // inner)).to(tl.int32)
    else:
        values += sample * columns * size_in * pitch + head * channels
        result += sample * columns * size_out * pitch + head * channels
    if OF_SAMPLES:
        weights += sample * columns * size_out
    if STATISTICS:
        counts = zeros(S.BLOCK_OUT, S.BLOCK_Q)
        level = zeros(S.BLOCK_OUT, S.BLOCK_Q)
        spread = zeros(S.BLOCK_OUT, S.BLOCK_Q)
    if WHOLE:
        a = _kernel_rows(kernel, i, j, size_out, size_in, stride_out, stride_in, CHUNKS > 1, S)
        if CHUNKS > 1:
            b = _kernel_rows(kernel, i, S.BLOCK_IN + j, size_out, size_in, stride_out, stride_in, True, S)
    first = part * columns_per_program
    for q0 in tl.range(
        first, min(columns, first + columns_per_program), S.BLOCK_Q, num_stages=S.STAGES if WHOLE else 1
    ):
        if S.DESCRIBED:
            x, y = outer + q0 // inner, (q0 % inner) * heads + head
            z = tl.dot(a, values.load([x, y, 0, 0]).reshape(S.BLOCK_IN, S.BLOCK_C), input_precision=S.PRECISION)
            if CHUNKS > 1:
                v = values.load([x, y, S.BLOCK_IN, 0]).reshape(S.BLOCK_IN, S.BLOCK_C)
                z = tl.dot(b, v, z, input_precision=S.PRECISION)
            result.store([x, y, block * S.BLOCK_OUT, 0], z.to(result.dtype).reshape(1, 1, S.BLOCK_OUT, S.BLOCK_C))
        else:
            q = q0 + n // S.BLOCK_C
            inside = (q < columns) & (c < channels)
            outside, within = (q // inner).to(tl.int64), q % inner
            source = (outside * size_in * inner + within) * pitch + c
            target = (outside * size_out * inner + within) * pitch + c
            if WHOLE:
                v = tl.load(
                    values + j[:, None] * (inner * pitch) + source[None, :],
                    mask=(j < size_in)[:, None] & inside[None, :],
                    other=0.0,
                )
                z = tl.dot(a, v, input_precision=S.PRECISION)
            else:
                z = zeros(S.BLOCK_OUT, S.BLOCK_Q * S.BLOCK_C)
                for k in tl.range(0, size_in, S.BLOCK_IN, num_stages=S.STAGES):
                    v = tl.load(
                        values + (k + j)[:, None] * (inner * pitch) + source[None, :],
                        mask=(k + j < size_in)[:, None] & inside[None, :],
                        other=0.0,
                    )
                    a = _kernel_rows(kernel, i, k + j, size_out, size_in, stride_out, stride_in, False, S)
                    z = tl.dot(a, v, z, input_precision=S.PRECISION)
            mask = (i < size_out)[:, None] & inside[None, :]
            tl.store(result + i[:, None] * (inner * pitch) + target[None, :], z.to(result.dtype.element_ty), mask=mask)
        if STATISTICS:
            # Mean and spread over the channels of each row and column, merged column by column (Chan et al. 1979):
            # sums of squares would cancel, and a sum over the tile would make all threads wait for each other.
            q = q0 + column
            w = ((i < size_out)[:, None] & (q < columns)[None, :]).to(tl.float32)
            if HAS_WEIGHTS:
                point = ((q // inner) * size_out * inner + q % inner)[None, :] + (i * inner)[:, None]
                w = tl.load(weights + point, mask=w > 0.0, other=0.0)
            tile = tl.reshape(z, (S.BLOCK_OUT, S.BLOCK_Q, S.BLOCK_C))
            mean = tl.sum(tile, axis=2) / channels
            away = tile - mean[:, :, None]
            if PADDED:
                away = tl.where((tl.arange(0, S.BLOCK_C) < channels)[None, None, :], away, 0.0)
            counts += w
            shift = mean - level
            level += shift * (w / tl.maximum(counts, 1e-30))
            spread += w * (tl.sum(away * away, axis=2) + channels * shift * (mean - level))
    if STATISTICS:
        count = tl.maximum(tl.sum(tl.sum(counts, axis=1), axis=0), 1e-30)
        mean = tl.sum(tl.sum(counts * level, axis=1), axis=0) / count
        spread += channels * counts * (level - mean) * (level - mean)
        where = ((sample * heads + head) * tl.num_programs(1) + part) * row_blocks + block
        tl.store(parts + where * 3, count * channels)
        tl.store(parts + where * 3 + 1, mean)
        tl.store(parts + where * 3 + 2, tl.sum(tl.sum(spread, axis=1), axis=0))


@triton.jit
def merge_heads_kernel(parts, statistics, number, eps, BLOCK: tl.constexpr):
    """Mean and reciprocal deviation of a group from the counts, means and spreads of its parts."""
    group = tl.program_id(0).to(tl.int64)
    total, mean, spread = 0.0, 0.0, 0.0
    for start in range(0, number, BLOCK):
        k = start + tl.arange(0, BLOCK)
        base = parts + (group * number + k) * 3
        count = tl.load(base, mask=k < number, other=0.0)
        level = tl.load(base + 1, mask=k < number, other=0.0)
        within = tl.load(base + 2, mask=k < number, other=0.0)
        new = tl.sum(count, axis=0)
        middle = tl.sum(count * level, axis=0) / new
        share = new / (total + new)
        spread += tl.sum(within + count * (level - middle) * (level - middle), axis=0)
        spread += (middle - mean) * (middle - mean) * total * share
        mean += (middle - mean) * share
        total += new
    tl.store(statistics + group * 2, mean)
    tl.store(statistics + group * 2 + 1, 1.0 / tl.sqrt(spread / total + eps))
