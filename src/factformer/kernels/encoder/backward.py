# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Kernels of the frame encoder, backward; `factformer.kernels.encoder.op` says what they compute."""

from __future__ import annotations

import triton
import triton.language as tl

from factformer.kernels._triton.arithmetic import gelu_slope, zeros
from factformer.kernels._triton.in_place import offsets
from factformer.kernels.encoder.forward import channel_statistics, with_bias, with_one


@triton.jit
def stack_gradient_kernel(
    grad,
    frames,
    statistics,
    weight,
    grad_frames,
    parts,
    sizes,
    tiles,
    total,
    tiles_per_program,
    OF_FRAMES: tl.constexpr,
    S: tl.constexpr,
):
    points, num_frames, dim = sizes
    part = tl.program_id(0)
    t, d = tl.arange(0, S.BLOCK_C), tl.arange(0, S.BLOCK_D)
    dtype: tl.constexpr = grad.dtype.element_ty
    mean, deviation = tl.load(statistics), tl.load(statistics + 1)
    grad_weight = zeros(S.BLOCK_D, S.BLOCK_C)
    if OF_FRAMES:
        mask = (d < dim)[:, None] & (t < num_frames)[None, :]
        w = tl.load(weight + d[:, None] * num_frames + t[None, :], mask=mask, other=0.0).to(dtype)
    first = part * tiles_per_program
    for tile in range(first, min(total, first + tiles_per_program)):
        sample, p = (tile // tiles).to(tl.int64), (tile % tiles) * S.BLOCK_P + tl.arange(0, S.BLOCK_P)
        inside = (p < points)[:, None]
        offset = sample * num_frames * points + t[None, :] * points + p[:, None]
        x = with_one(frames, offset, t, inside, num_frames, mean, deviation, dtype)
        row = (sample * points + p)[:, None] * dim
        g = tl.load(grad + row + d[None, :], mask=inside & (d < dim)[None, :], other=0.0)
        grad_weight = tl.dot(tl.trans(g), x, grad_weight, input_precision=S.PRECISION)
        if OF_FRAMES:
            back = tl.dot(g, w, input_precision=S.PRECISION) / deviation
            tl.store(grad_frames + offset, back, mask=inside & (t < num_frames)[None, :])
    base = parts + part.to(tl.int64) * dim * (num_frames + 1)
    mask = (d < dim)[:, None] & (t <= num_frames)[None, :]
    tl.store(base + d[:, None] * (num_frames + 1) + t[None, :], grad_weight, mask=mask)


@triton.jit
def lift_gradient_kernel(
    grad,
    frames,
    statistics,
    lift,
    lift_bias,
    grad_frames,
    parts,
    places,
    sizes,
    tiles,
    total,
    tiles_per_program,
    AXES: tl.constexpr,
    OF_FRAMES: tl.constexpr,
    S: tl.constexpr,
):
    """From the gradient of the lifted frames to those of the lift and, if wanted, of the frames."""
    points, num_frames, channels, dim = sizes
    part = tl.program_id(0)
    c, d = tl.arange(0, S.BLOCK_C), tl.arange(0, S.BLOCK_D)
    dtype: tl.constexpr = grad.dtype.element_ty
    mean, deviation = channel_statistics(statistics, c, channels)
    down = with_bias(lift, lift_bias, d, c, dim, channels, dtype)
    up = tl.trans(down)
    grad_lift = zeros(S.BLOCK_D, S.BLOCK_C)
    first = part * tiles_per_program
    for tile in range(first, min(total, first + tiles_per_program)):
        # Frames of the same points follow each other: their gradients lie side by side.
        t, block = tile % num_frames, tile // num_frames
        sample, p = (block // tiles).to(tl.int64), (block % tiles) * S.BLOCK_P + tl.arange(0, S.BLOCK_P)
        inside = (p < points)[:, None]
        source = (sample * num_frames + t) * points * channels
        offset = offsets(p, c, channels, places, AXES)
        x = with_one(frames + source, offset, c, inside, channels, mean, deviation, dtype)
        row = (sample * points + p)[:, None] * (num_frames * dim) + t * dim
        g = tl.load(grad + row + d[None, :], mask=inside & (d < dim)[None, :], other=0.0).to(tl.float32)
        h = tl.dot(x, up, input_precision=S.PRECISION)
        grad_h = (g * gelu_slope(h)).to(dtype)
        grad_lift = tl.dot(tl.trans(grad_h), x, grad_lift, input_precision=S.PRECISION)
        if OF_FRAMES:
            back = tl.dot(grad_h, down, input_precision=S.PRECISION) / deviation
            tl.store(grad_frames + source + offset, back, mask=inside & (c < channels)[None, :])
    where = parts + (part.to(tl.int64) * dim + d[:, None]) * (channels + 1) + c[None, :]
    tl.store(where, grad_lift, mask=(d < dim)[:, None] & (c <= channels)[None, :])
