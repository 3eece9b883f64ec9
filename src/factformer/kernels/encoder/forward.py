# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Kernels of the frame encoder, forward; `factformer.kernels.encoder.op` says what they compute."""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl

from factformer.kernels._triton.arithmetic import gelu
from factformer.kernels._triton.in_place import offsets


@dataclass(frozen=True, kw_only=True)
class Tiles:
    """What the kernels are made for: tiles of points (P), frames or channels with a one behind (C), and outputs (D)."""

    PRECISION: str
    BLOCK_P: int
    BLOCK_C: int
    BLOCK_D: int


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
def stack_kernel(frames, statistics, weight, bias, result, sizes, S: tl.constexpr):
    points, num_frames, dim = sizes
    sample = tl.program_id(1).to(tl.int64)
    p = tl.program_id(0) * S.BLOCK_P + tl.arange(0, S.BLOCK_P)
    t, d = tl.arange(0, S.BLOCK_C), tl.arange(0, S.BLOCK_D)
    inside = (p < points)[:, None]
    dtype: tl.constexpr = result.dtype.element_ty
    mean, deviation = tl.load(statistics), tl.load(statistics + 1)
    offset = sample * num_frames * points + t[None, :] * points + p[:, None]
    x = with_one(frames, offset, t, inside, num_frames, mean, deviation, dtype)
    w = with_bias(weight, bias, d, t, dim, num_frames, dtype)
    z = tl.dot(x, tl.trans(w), input_precision=S.PRECISION)
    mask = inside & (d < dim)[None, :]
    tl.store(result + (sample * points + p)[:, None] * dim + d[None, :], z.to(dtype), mask=mask)


@triton.jit
def lift_kernel(frames, statistics, lift, lift_bias, lifted, places, sizes, AXES: tl.constexpr, S: tl.constexpr):
    points, num_frames, channels, dim = sizes
    sample = tl.program_id(1).to(tl.int64)
    p = tl.program_id(0) * S.BLOCK_P + tl.arange(0, S.BLOCK_P)
    c, d = tl.arange(0, S.BLOCK_C), tl.arange(0, S.BLOCK_D)
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
        h = tl.dot(x, up, input_precision=S.PRECISION)
        tl.store(lifted + where, gelu(h).to(dtype), mask=mask)
        frames += points * channels
        lifted += dim
