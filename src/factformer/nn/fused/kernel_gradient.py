# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""The gradient of the kernel of an axis contraction: a product over all columns and channels."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from factformer.nn.fused._common import padded, pieces, precision
from factformer.nn.fused.geometry import Geometry, Tiling


def gradient_tiling(size_out: int, size_in: int, channels: int) -> Tiling:
    return Tiling(min(padded(size_out), 128), max(1, (128 if size_out <= 64 else 64) // padded(channels)), 4, 3)


@triton.jit
def _kernel_gradient_kernel(
    grad,
    values,
    parts,
    size_out,
    size_in,
    inner,
    columns,
    heads,
    channels,
    columns_per_program,
    out_blocks,
    in_blocks,
    PRECISION: tl.constexpr,
    BLOCK_OUT: tl.constexpr,
    BLOCK_IN: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_C: tl.constexpr,
    STAGES: tl.constexpr,
):
    """``∂A_ij = Σ_columns,channels ∂Z_i V_j`` of one part of the columns."""
    tiles = out_blocks * in_blocks
    head, tile = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    part, sample = tl.program_id(1), tl.program_id(2).to(tl.int64)
    i = (tile // in_blocks) * BLOCK_OUT + tl.arange(0, BLOCK_OUT)
    j = (tile % in_blocks) * BLOCK_IN + tl.arange(0, BLOCK_IN)
    n = tl.arange(0, BLOCK_Q * BLOCK_C)
    c = n % BLOCK_C
    pitch = heads * channels
    grad += sample * columns * size_out * pitch + head * channels
    values += sample * columns * size_in * pitch + head * channels
    total = tl.zeros((BLOCK_OUT, BLOCK_IN), dtype=tl.float32)
    first = part * columns_per_program
    for q0 in tl.range(first, min(columns, first + columns_per_program), BLOCK_Q, num_stages=STAGES):
        q = q0 + n // BLOCK_C
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
        total = tl.dot(g, tl.trans(v), total, input_precision=PRECISION)
    base = parts + ((part * tl.num_programs(2) + sample) * heads + head) * size_out * size_in
    mask = (i < size_out)[:, None] & (j < size_in)[None, :]
    tl.store(base + i[:, None] * size_in + j[None, :], total, mask=mask)


def kernel_gradient(grad: Tensor, values: Tensor, axis: int) -> Tensor:
    """``∂A`` of ``values ×_axis A`` in float32."""
    geometry = Geometry.of(values.shape, axis)
    size_out, columns = grad.shape[axis + 1], geometry.outer * geometry.inner
    tiling = gradient_tiling(size_out, geometry.size_in, geometry.channels)
    block_in = min(padded(geometry.size_in), 128)
    out_blocks, in_blocks = triton.cdiv(size_out, tiling.rows), triton.cdiv(geometry.size_in, block_in)
    steps = triton.cdiv(columns, tiling.columns)
    programs = out_blocks * in_blocks * geometry.heads * geometry.batch
    per_program = triton.cdiv(steps, pieces(steps, programs, waves=4)) * tiling.columns
    parts = triton.cdiv(columns, per_program)
    collected = values.new_empty(parts, geometry.batch, geometry.heads, size_out, geometry.size_in, dtype=torch.float32)
    _kernel_gradient_kernel[(out_blocks * in_blocks * geometry.heads, parts, geometry.batch)](
        grad,
        values,
        collected,
        size_out,
        geometry.size_in,
        geometry.inner,
        columns,
        geometry.heads,
        geometry.channels,
        per_program,
        out_blocks,
        in_blocks,
        PRECISION=precision(values.dtype),
        BLOCK_OUT=tiling.rows,
        BLOCK_IN=block_in,
        BLOCK_Q=tiling.columns,
        BLOCK_C=padded(geometry.channels),
        STAGES=tiling.stages,
        num_warps=tiling.warps,
    )
    return collected.sum(0) if parts > 1 else collected.squeeze(0)
