# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""The kernels of the frame encoder: `factformer.kernels.encoder.op` says what they compute."""

from __future__ import annotations

import triton
import triton.language as tl

from factformer.kernels._triton.arithmetic import gelu, gelu_slope


@triton.jit
def _with_bias(weight, bias, rows, columns, row_limit, width, dtype: tl.constexpr):
    """The tile of a matrix with its bias as one more column."""
    mask = (rows < row_limit)[:, None] & (columns < width)[None, :]
    w = tl.load(weight + rows[:, None] * width + columns[None, :], mask=mask, other=0.0).to(tl.float32)
    b = tl.load(bias + rows, mask=rows < row_limit, other=0.0).to(tl.float32)
    return tl.where((columns == width)[None, :], b[:, None], w).to(dtype)


@triton.jit
def _with_one(source, offset, columns, mask, width, mean, deviation, dtype: tl.constexpr):
    """The normalised tile of points with a one after the last column."""
    x = tl.load(source + offset, mask=mask & (columns < width)[None, :], other=0.0).to(tl.float32)
    return tl.where((columns == width)[None, :], 1.0, (x - mean) / deviation).to(dtype)


@triton.jit
def _channels(statistics, c, channels):
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
    x = _with_one(frames, offset, t, inside, num_frames, mean, deviation, dtype)
    w = _with_bias(weight, bias, d, t, dim, num_frames, dtype)
    z = tl.dot(x, tl.trans(w), input_precision=PRECISION)
    mask = inside & (d < dim)[None, :]
    tl.store(result + (sample * points + p)[:, None] * dim + d[None, :], z.to(dtype), mask=mask)


@triton.jit
def stack_gradient_kernel(
    grad,
    frames,
    statistics,
    weight,
    grad_frames,
    parts,
    points,
    num_frames,
    dim,
    tiles,
    total,
    tiles_per_program,
    OF_FRAMES: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    part = tl.program_id(0)
    t, d = tl.arange(0, BLOCK_T), tl.arange(0, BLOCK_D)
    dtype: tl.constexpr = grad.dtype.element_ty
    mean, deviation = tl.load(statistics), tl.load(statistics + 1)
    grad_weight = tl.zeros((BLOCK_D, BLOCK_T), dtype=tl.float32)
    if OF_FRAMES:
        mask = (d < dim)[:, None] & (t < num_frames)[None, :]
        w = tl.load(weight + d[:, None] * num_frames + t[None, :], mask=mask, other=0.0).to(dtype)
    first = part * tiles_per_program
    for tile in range(first, min(total, first + tiles_per_program)):
        sample, p = (tile // tiles).to(tl.int64), (tile % tiles) * BLOCK_P + tl.arange(0, BLOCK_P)
        inside = (p < points)[:, None]
        offset = sample * num_frames * points + t[None, :] * points + p[:, None]
        x = _with_one(frames, offset, t, inside, num_frames, mean, deviation, dtype)
        row = (sample * points + p)[:, None] * dim
        g = tl.load(grad + row + d[None, :], mask=inside & (d < dim)[None, :], other=0.0)
        grad_weight = tl.dot(tl.trans(g), x, grad_weight, input_precision=PRECISION)
        if OF_FRAMES:
            back = tl.dot(g, w, input_precision=PRECISION) / deviation
            tl.store(grad_frames + offset, back, mask=inside & (t < num_frames)[None, :])
    base = parts + part.to(tl.int64) * dim * (num_frames + 1)
    mask = (d < dim)[:, None] & (t <= num_frames)[None, :]
    tl.store(base + d[:, None] * (num_frames + 1) + t[None, :], grad_weight, mask=mask)


@triton.jit
def lift_kernel(
    frames,
    statistics,
    lift,
    lift_bias,
    lifted,
    points,
    num_frames,
    channels,
    dim,
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
    mean, deviation = _channels(statistics, c, channels)
    up = tl.trans(_with_bias(lift, lift_bias, d, c, dim, channels, dtype))
    frames += sample * num_frames * points * channels
    lifted += sample * points * num_frames * dim
    where = p.to(tl.int64)[:, None] * (num_frames * dim) + d[None, :]
    mask = inside & (d < dim)[None, :]
    for _ in range(num_frames):
        x = _with_one(frames, p[:, None] * channels + c[None, :], c, inside, channels, mean, deviation, dtype)
        h = tl.dot(x, up, input_precision=PRECISION)
        tl.store(lifted + where, gelu(h).to(dtype), mask=mask)
        frames += points * channels
        lifted += dim


@triton.jit
def lift_gradient_kernel(
    grad,
    frames,
    statistics,
    lift,
    lift_bias,
    grad_frames,
    parts,
    points,
    num_frames,
    channels,
    dim,
    tiles,
    total,
    tiles_per_program,
    OF_FRAMES: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """From the gradient of the lifted frames to those of the lift and, if wanted, of the frames."""
    part = tl.program_id(0)
    c, d = tl.arange(0, BLOCK_C), tl.arange(0, BLOCK_D)
    dtype: tl.constexpr = grad.dtype.element_ty
    mean, deviation = _channels(statistics, c, channels)
    down = _with_bias(lift, lift_bias, d, c, dim, channels, dtype)
    up = tl.trans(down)
    grad_lift = tl.zeros((BLOCK_D, BLOCK_C), dtype=tl.float32)
    first = part * tiles_per_program
    for tile in range(first, min(total, first + tiles_per_program)):
        # Frames of the same points follow each other: their gradients lie side by side.
        t, block = tile % num_frames, tile // num_frames
        sample, p = (block // tiles).to(tl.int64), (block % tiles) * BLOCK_P + tl.arange(0, BLOCK_P)
        inside = (p < points)[:, None]
        source = (sample * num_frames + t) * points * channels
        offset = p[:, None] * channels + c[None, :]
        x = _with_one(frames + source, offset, c, inside, channels, mean, deviation, dtype)
        row = (sample * points + p)[:, None] * (num_frames * dim) + t * dim
        g = tl.load(grad + row + d[None, :], mask=inside & (d < dim)[None, :], other=0.0).to(tl.float32)
        h = tl.dot(x, up, input_precision=PRECISION)
        grad_h = (g * gelu_slope(h)).to(dtype)
        grad_lift = tl.dot(tl.trans(grad_h), x, grad_lift, input_precision=PRECISION)
        if OF_FRAMES:
            back = tl.dot(grad_h, down, input_precision=PRECISION) / deviation
            tl.store(grad_frames + source + offset, back, mask=inside & (c < channels)[None, :])
    where = parts + (part.to(tl.int64) * dim + d[:, None]) * (channels + 1) + c[None, :]
    tl.store(where, grad_lift, mask=(d < dim)[:, None] & (c <= channels)[None, :])
