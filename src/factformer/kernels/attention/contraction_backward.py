# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Gradients of an axis contraction: of the kernel, a product over all columns and channels, and of the values.

Both read the gradient of the result. On axes short enough for both accumulators they are made in one pass.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from factformer.kernels._triton.arithmetic import padded, zeros
from factformer.kernels._triton.geometry import Geometry, Tiling, can_describe, describe, shares
from factformer.kernels._triton.launching import launch
from factformer.kernels._triton.sums import add_parts

JOINT_LIMIT = 256
"""Axes up to this length have both gradients made in one pass."""


def gradient_tiling(size_out: int, size_in: int, channels: int, described: bool) -> Tiling:
    """Tile of ``∂A``; it is as wide as 128 columns at most."""
    if described and size_out > 128:
        return Tiling(256, 1, 8, 4)
    if described:
        return Tiling(min(padded(size_out), 128), 1, 4 if size_out <= 64 else 8, 4)
    return Tiling(min(padded(size_out), 128), max(1, (128 if size_out <= 64 else 64) // padded(channels)), 4, 3)


def joint_tiling(size: int) -> tuple[Tiling, int]:
    """Tile of both gradients, and how many programs fit on a multiprocessor."""
    return (Tiling(64, 1, 4, 3), 3) if size <= 64 else (Tiling(128, 1, 8, 3), 1)


@triton.jit
def _kernel_gradient_kernel(
    grad, values, parts, sizes, channels, columns_per_program, out_blocks, in_blocks, S: tl.constexpr
):
    """``∂A_ij = Σ_columns,channels ∂Z_i V_j`` of one part of the columns."""
    size_out, size_in, inner, columns, heads = sizes
    tiles = out_blocks * in_blocks
    head, tile = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    part, sample = tl.program_id(1), tl.program_id(2).to(tl.int64)
    first_i, first_j = (tile // in_blocks) * S.BLOCK_OUT, (tile % in_blocks) * S.BLOCK_IN
    i = first_i + tl.arange(0, S.BLOCK_OUT)
    j = first_j + tl.arange(0, S.BLOCK_IN)
    n = tl.arange(0, S.BLOCK_Q * S.BLOCK_C)
    c = n % S.BLOCK_C
    pitch = heads * channels
    if S.DESCRIBED:
        outer = (sample * (columns // inner)).to(tl.int32)
    else:
        grad += sample * columns * size_out * pitch + head * channels
        values += sample * columns * size_in * pitch + head * channels
    total = zeros(S.BLOCK_OUT, S.BLOCK_IN)
    first = part * columns_per_program
    for q0 in tl.range(first, min(columns, first + columns_per_program), S.BLOCK_Q, num_stages=S.STAGES):
        if S.DESCRIBED:
            x, y = outer + q0 // inner, (q0 % inner) * heads + head
            g = grad.load([x, y, first_i, 0]).reshape(S.BLOCK_OUT, S.BLOCK_C)
            v = values.load([x, y, first_j, 0]).reshape(S.BLOCK_IN, S.BLOCK_C)
        else:
            q = q0 + n // S.BLOCK_C
            inside = (q < columns) & (q < first + columns_per_program) & (c < channels)
            outside, within = (q // inner).to(tl.int64), q % inner
            g = tl.load(
                grad + i[:, None] * (inner * pitch) + ((outside * size_out * inner + within) * pitch + c)[None, :],
                mask=(i < size_out)[:, None] & inside[None, :],
                other=0.0,
            )
            v = tl.load(
                values + j[:, None] * (inner * pitch) + ((outside * size_in * inner + within) * pitch + c)[None, :],
                mask=(j < size_in)[:, None] & inside[None, :],
                other=0.0,
            )
        total = tl.dot(g, tl.trans(v), total, input_precision=S.PRECISION)
    base = parts + ((part * tl.num_programs(2) + sample) * heads + head) * size_out * size_in
    mask = (i < size_out)[:, None] & (j < size_in)[None, :]
    tl.store(base + i[:, None] * size_in + j[None, :], total, mask=mask)


@triton.jit
def _joint_gradient_kernel(kernel, grad, values, result, parts, sizes, columns_per_program, in_blocks, S: tl.constexpr):
    """``∂A`` of one part of the columns and ``∂V = Aᵀ ∂Z`` of these columns, for a block of the points of ``V``."""
    size_out, size_in, inner, columns, heads = sizes
    head, first_j = tl.program_id(0) // in_blocks, (tl.program_id(0) % in_blocks) * S.BLOCK_IN
    part, sample = tl.program_id(1), tl.program_id(2).to(tl.int64)
    i, j = tl.arange(0, S.BLOCK_OUT), first_j + tl.arange(0, S.BLOCK_IN)
    row = sample * heads + head
    mask = (i < size_out)[:, None] & (j < size_in)[None, :]
    a = tl.load(kernel + row * size_out * size_in + i[:, None] * size_in + j[None, :], mask=mask, other=0.0)
    total = zeros(S.BLOCK_OUT, S.BLOCK_IN)
    outer = (sample * (columns // inner)).to(tl.int32)
    first = part * columns_per_program
    for q in tl.range(first, min(columns, first + columns_per_program), num_stages=S.STAGES):
        x, y = outer + q // inner, (q % inner) * heads + head
        g = grad.load([x, y, 0, 0]).reshape(S.BLOCK_OUT, S.BLOCK_C)
        v = values.load([x, y, first_j, 0]).reshape(S.BLOCK_IN, S.BLOCK_C)
        total = tl.dot(g, tl.trans(v), total, input_precision=S.PRECISION)
        back = tl.dot(tl.trans(a), g, input_precision=S.PRECISION)
        result.store([x, y, first_j, 0], back.to(result.dtype).reshape(1, 1, S.BLOCK_IN, S.BLOCK_C))
    base = parts + (part * tl.num_programs(2) * heads + row) * size_out * size_in
    tl.store(base + i[:, None] * size_in + j[None, :], total, mask=mask)


def can_join(kernel: Tensor, values: Tensor) -> bool:
    """Whether `joint_gradient` serves."""
    return max(kernel.shape[-2:]) <= JOINT_LIMIT and can_describe(values)


def joint_gradient(
    kernel: Tensor, grad: Tensor, values: Tensor, axis: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """``∂A`` in ``dtype`` and ``∂V`` of ``values ×_axis A``."""
    geometry = Geometry.of(values.shape, axis)
    size_out, size_in = kernel.shape[-2:]
    columns = geometry.outer * geometry.inner
    block_out, block_in = padded(size_out), min(padded(size_in), 128)
    in_blocks = triton.cdiv(size_in, block_in)
    tiling, resident = joint_tiling(max(size_out, size_in))
    per_program = shares(columns, geometry.heads * geometry.batch * in_blocks, resident, 4)
    number = triton.cdiv(columns, per_program)
    parts = values.new_empty(number, geometry.batch, geometry.heads, size_out, size_in, dtype=torch.float32)
    result = torch.empty_like(values)
    launch(
        _joint_gradient_kernel,
        (geometry.heads * in_blocks, number, geometry.batch),
        kernel.contiguous(),
        describe(grad, axis, block_out),
        describe(values, axis, block_in),
        describe(result, axis, block_in),
        parts,
        geometry.contracted(size_out),
        per_program,
        in_blocks,
        S=geometry.tiles(tiling._replace(rows=block_out), block_in, True, values.dtype),
        num_warps=tiling.warps,
    )
    return add_parts(parts, dtype), result


def kernel_gradient(grad: Tensor, values: Tensor, axis: int, dtype: torch.dtype) -> Tensor:
    """``∂A`` of ``values ×_axis A`` in ``dtype``."""
    geometry = Geometry.of(values.shape, axis)
    size_out, columns = grad.shape[axis + 1], geometry.outer * geometry.inner
    described = can_describe(values)
    tiling = gradient_tiling(size_out, geometry.size_in, geometry.channels, described)
    block_in = min(padded(geometry.size_in), 128)
    out_blocks, in_blocks = triton.cdiv(size_out, tiling.rows), triton.cdiv(geometry.size_in, block_in)
    programs = out_blocks * in_blocks * geometry.heads * geometry.batch
    per_program = shares(triton.cdiv(columns, tiling.columns), programs, 1 if described else 2, 4) * tiling.columns
    parts = triton.cdiv(columns, per_program)
    collected = values.new_empty(parts, geometry.batch, geometry.heads, size_out, geometry.size_in, dtype=torch.float32)
    launch(
        _kernel_gradient_kernel,
        (out_blocks * in_blocks * geometry.heads, parts, geometry.batch),
        describe(grad, axis, tiling.rows) if described else grad,
        describe(values, axis, block_in) if described else values,
        collected,
        geometry.contracted(size_out),
        geometry.channels,
        per_program,
        out_blocks,
        in_blocks,
        S=geometry.tiles(tiling, block_in, described, values.dtype),
        num_warps=tiling.warps,
    )
    return add_parts(collected, dtype)
