# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""The kernels of the frame encoder: `factformer.nn.fused.encoder` says what they compute."""

from __future__ import annotations

import triton
import triton.language as tl

from factformer.nn.fused._common import gelu, gelu_slope


@triton.jit
def _with_bias(weight, bias, rows, columns, row_limit, width, dtype: tl.constexpr):
    """The tile of a matrix with its bias as one more column."""
    mask = (rows < row_limit)[:, None] & (columns < width)[None, :]
    w = tl.load(weight + rows[:, None] * width + columns[None, :], mask=mask, other=0.0).to(tl.float32)
    b = tl.load(bias + rows, mask=rows < row_limit, other=0.0).to(tl.float32)
    return tl.where((columns == width)[None, :], b[:, None], w).to(dtype)


@triton.jit
def _with_one(source, offset, columns, mask, width, dtype: tl.constexpr):
    """The tile of points with a one after the last column."""
    x = tl.load(source + offset, mask=mask & (columns < width)[None, :], other=0.0).to(tl.float32)
    return tl.where((columns == width)[None, :], 1.0, x).to(dtype)


@triton.jit
def stack_kernel(
    frames,
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
    offset = sample * num_frames * points + t[None, :] * points + p[:, None]
    x = _with_one(frames, offset, t, inside, num_frames, dtype)
    w = _with_bias(weight, bias, d, t, dim, num_frames, dtype)
    z = tl.dot(x, tl.trans(w), input_precision=PRECISION)
    mask = inside & (d < dim)[None, :]
    tl.store(result + (sample * points + p)[:, None] * dim + d[None, :], z.to(dtype), mask=mask)


@triton.jit
def stack_gradient_kernel(
    grad,
    frames,
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
    grad_weight = tl.zeros((BLOCK_D, BLOCK_T), dtype=tl.float32)
    if OF_FRAMES:
        mask = (d < dim)[:, None] & (t < num_frames)[None, :]
        w = tl.load(weight + d[:, None] * num_frames + t[None, :], mask=mask, other=0.0).to(dtype)
    first = part * tiles_per_program
    for tile in range(first, min(total, first + tiles_per_program)):
        sample, p = (tile // tiles).to(tl.int64), (tile % tiles) * BLOCK_P + tl.arange(0, BLOCK_P)
        inside = (p < points)[:, None]
        offset = sample * num_frames * points + t[None, :] * points + p[:, None]
        x = _with_one(frames, offset, t, inside, num_frames, dtype)
        row = (sample * points + p)[:, None] * dim
        g = tl.load(grad + row + d[None, :], mask=inside & (d < dim)[None, :], other=0.0)
        grad_weight = tl.dot(tl.trans(g), x, grad_weight, input_precision=PRECISION)
        if OF_FRAMES:
            back = tl.dot(g, w, input_precision=PRECISION)
            tl.store(grad_frames + offset, back, mask=inside & (t < num_frames)[None, :])
    base = parts + part.to(tl.int64) * dim * (num_frames + 1)
    mask = (d < dim)[:, None] & (t <= num_frames)[None, :]
    tl.store(base + d[:, None] * (num_frames + 1) + t[None, :], grad_weight, mask=mask)


@triton.jit
def lift_kernel(
    frames,
    lift,
    lift_bias,
    weight,
    bias,
    result,
    points,
    num_frames,
    channels,
    dim,
    PRECISION: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_L: tl.constexpr,
    BLOCK_D: tl.constexpr,
    STAGES: tl.constexpr,
):
    sample = tl.program_id(1).to(tl.int64)
    p = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)
    c, d = tl.arange(0, BLOCK_C), tl.arange(0, BLOCK_D)
    inside, inside_d = (p < points)[:, None], d < dim
    dtype: tl.constexpr = result.dtype.element_ty
    chunks = tl.cdiv(dim, BLOCK_L)
    z = tl.zeros((BLOCK_P, BLOCK_D), dtype=tl.float32)
    for k in tl.range(0, num_frames * chunks, num_stages=STAGES):
        t, m = k // chunks, (k % chunks) * BLOCK_L + tl.arange(0, BLOCK_L)
        up = _with_bias(lift, lift_bias, m, c, dim, channels, dtype)
        source = frames + (sample * num_frames + t) * points * channels
        x = _with_one(source, p[:, None] * channels + c[None, :], c, inside, channels, dtype)
        h = tl.dot(x, tl.trans(up), input_precision=PRECISION)
        where = weight + t * dim + d[:, None] * (num_frames * dim) + m[None, :]
        w = tl.load(where, mask=inside_d[:, None] & (m < dim)[None, :], other=0.0)
        z = tl.dot(gelu(h).to(dtype), tl.trans(w), z, input_precision=PRECISION)
    z += tl.load(bias + d, mask=inside_d, other=0.0)[None, :]
    mask = inside & inside_d[None, :]
    tl.store(result + (sample * points + p)[:, None] * dim + d[None, :], z.to(dtype), mask=mask)


@triton.jit
def lift_gradient_kernel(
    grad,
    frames,
    lift,
    lift_bias,
    weight,
    parts,
    lift_parts,
    bias_parts,
    points,
    num_frames,
    channels,
    dim,
    tiles,
    total,
    tiles_per_program,
    PRECISION: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_L: tl.constexpr,
    BLOCK_D: tl.constexpr,
    STAGES: tl.constexpr,
):
    # Programs of the same points and different frames run side by side and share their reads of the gradient.
    chunks = tl.cdiv(dim, BLOCK_L)
    t, chunk, part = tl.program_id(0) // chunks, tl.program_id(0) % chunks, tl.program_id(1).to(tl.int64)
    c, m, d = tl.arange(0, BLOCK_C), chunk * BLOCK_L + tl.arange(0, BLOCK_L), tl.arange(0, BLOCK_D)
    inside_m, inside_d = m < dim, d < dim
    dtype: tl.constexpr = grad.dtype.element_ty
    up = _with_bias(lift, lift_bias, m, c, dim, channels, dtype)
    where = t * dim + d[:, None] * (num_frames * dim) + m[None, :]
    block = inside_d[:, None] & inside_m[None, :]
    w = tl.load(weight + where, mask=block, other=0.0)
    grad_weight = tl.zeros((BLOCK_D, BLOCK_L), dtype=tl.float32)
    grad_lift = tl.zeros((BLOCK_L, BLOCK_C), dtype=tl.float32)
    grad_bias = tl.zeros((BLOCK_D,), dtype=tl.float32)
    first = part.to(tl.int32) * tiles_per_program
    for tile in tl.range(first, min(total, first + tiles_per_program), num_stages=STAGES):
        sample, p = (tile // tiles).to(tl.int64), (tile % tiles) * BLOCK_P + tl.arange(0, BLOCK_P)
        inside = (p < points)[:, None]
        source = frames + (sample * num_frames + t) * points * channels
        x = _with_one(source, p[:, None] * channels + c[None, :], c, inside, channels, dtype)
        whole = grad + sample * points * dim
        g = tl.load(whole + p[:, None] * dim + d[None, :], mask=inside & inside_d[None, :], other=0.0)
        h = tl.dot(x, tl.trans(up), input_precision=PRECISION)
        grad_weight = tl.dot(tl.trans(g), gelu(h).to(dtype), grad_weight, input_precision=PRECISION)
        grad_h = (tl.dot(g, w, input_precision=PRECISION) * gelu_slope(h)).to(dtype)
        grad_lift = tl.dot(tl.trans(grad_h), x, grad_lift, input_precision=PRECISION)
        if tl.program_id(0) == 0:
            grad_bias += tl.sum(g.to(tl.float32), axis=0)
    tl.store(parts + part * dim * num_frames * dim + where, grad_weight, mask=block)
    where = (part * num_frames + t) * dim + m
    mask = inside_m[:, None] & (c <= channels)[None, :]
    tl.store(lift_parts + where[:, None] * (channels + 1) + c[None, :], grad_lift, mask=mask)
    if tl.program_id(0) == 0:
        tl.store(bias_parts + part * dim + d, grad_bias, mask=inside_d)


@triton.jit
def lift_frames_gradient_kernel(
    grad,
    frames,
    lift,
    lift_bias,
    weight,
    grad_frames,
    points,
    num_frames,
    channels,
    dim,
    PRECISION: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_L: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """The gradient of the frames themselves, which training does not need."""
    t, sample = tl.program_id(1), tl.program_id(2).to(tl.int64)
    p = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)
    c, d = tl.arange(0, BLOCK_C), tl.arange(0, BLOCK_D)
    inside, inside_d = (p < points)[:, None], d < dim
    dtype: tl.constexpr = grad.dtype.element_ty
    offset = ((sample * num_frames + t) * points + p)[:, None] * channels + c[None, :]
    x = _with_one(frames, offset, c, inside, channels, dtype)
    g = tl.load(
        grad + (sample * points + p)[:, None] * dim + d[None, :], mask=inside & inside_d[None, :], other=0.0
    )
    back = tl.zeros((BLOCK_P, BLOCK_C), dtype=tl.float32)
    for start in range(0, dim, BLOCK_L):
        m = start + tl.arange(0, BLOCK_L)
        up = _with_bias(lift, lift_bias, m, c, dim, channels, dtype)
        where = weight + t * dim + d[:, None] * (num_frames * dim) + m[None, :]
        w = tl.load(where, mask=inside_d[:, None] & (m < dim)[None, :], other=0.0)
        h = tl.dot(x, tl.trans(up), input_precision=PRECISION)
        grad_h = (tl.dot(g, w, input_precision=PRECISION) * gelu_slope(h)).to(dtype)
        back = tl.dot(grad_h, up, back, input_precision=PRECISION)
    tl.store(grad_frames + offset, back, mask=inside & (c < channels)[None, :])
