# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Kernels of the frame encoder, forward; `factformer.kernels.encoder.op` says what they compute."""

from __future__ import annotations

import triton
import triton.language as tl

from factformer.kernels._triton.arithmetic import gelu
from factformer.kernels._triton.in_place import offsets


@triton.jit
def with_bias(weight, bias, rows, columns, row_limit, width, dtype: tl.constexpr):
    """The tile of a matrix with its bias as one more column."""
    mask = (rows < row_limit)[:, None] & (columns < width)[None, :]
    w = tl.load(weight + rows[:, None] * width + columns[None, :], mask=mask, other=0.0).to(tl.float32)
    b = tl.load(bias + rows, mask=rows < row_limit, other=0.0).to(tl.float32)
    return tl.where((columns == width)[None, :], b[:, None], w).to(dtype)


@triton.jit
def with_one(source, offset, columns, mask, width, mean, deviation, dtype: tl.constexpr):
    """The normalised tile of points with a one after the last column."""
    x = tl.load(source + offset, mask=mask & (columns < width)[None, :], other=0.0).to(tl.float32)
    return tl.where((columns == width)[None, :], 1.0, (x - mean) / deviation).to(dtype)


@triton.jit
def channel_statistics(statistics, c, channels):
    """Mean and deviation of every channel, as rows to go with a tile of points."""
    mean = tl.load(statistics + c, mask=c < channels, other=0.0)
    return mean[None, :], tl.load(statistics + channels + c, mask=c < channels, other=1.0)[None, :]


@triton.jit
def stack_kernel(
    frames,
    statistics,
    weight,
    bias,
    result,
    points,
    num_frames,
    dim,
    PRECISION: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    sample = tl.program_id(1).to(tl.int64)
    p = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)
    t, d = tl.arange(0, BLOCK_T), tl.arange(0, BLOCK_D)
    inside = (p < points)[:, None]
    dtype: tl.constexpr = result.dtype.element_ty
    mean, deviation = tl.load(statistics), tl.load(statistics + 1)
    offset = sample * num_frames * points + t[None, :] * points + p[:, None]
    x = with_one(frames, offset, t, inside, num_frames, mean, deviation, dtype)
    w = with_bias(weight, bias, d, t, dim, num_frames, dtype)
    z = tl.dot(x, tl.trans(w), input_precision=PRECISION)
    mask = inside & (d < dim)[None, :]
    tl.store(result + (sample * points + p)[:, None] * dim + d[None, :], z.to(dtype), mask=mask)


@triton.jit
def lift_kernel(
    frames,
    statistics,
    lift,
    lift_bias,
    lifted,
    places,
    points,
    num_frames,
    channels,
    dim,
    AXES: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    sample = tl.program_id(1).to(tl.int64)
    p = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)
    c, d = tl.arange(0, BLOCK_C), tl.arange(0, BLOCK_D)
    inside = (p < points)[:, None]
    dtype: tl.constexpr = lifted.dtype.element_ty
    mean, deviation = channel_statistics(statistics, c, channels)
    up = tl.trans(with_bias(lift, lift_bias, d, c, dim, channels, dtype))
    frames += sample * num_frames * points * channels
    lifted += sample * points * num_frames * dim
    where = p.to(tl.int64)[:, None] * (num_frames * dim) + d[None, :]
    mask = inside & (d < dim)[None, :]
    offset = offsets(p, c, channels, places, AXES)
    for _ in range(num_frames):
        x = with_one(frames, offset, c, inside, channels, mean, deviation, dtype)
        h = tl.dot(x, up, input_precision=PRECISION)
        tl.store(lifted + where, gelu(h).to(dtype), mask=mask)
        frames += points * channels
        lifted += dim
