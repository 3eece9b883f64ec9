# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Axis contractions ``Σ_j A_ij V_…j…`` of channel-last values, with no copy whatever the axis.

Values ``(batch, *grid, head, channel)`` are seen as ``(batch, outer, points, inner, head, channel)``. A column
is one pair (outer, inner); a program holds a block of rows of ``A`` of one head and walks over columns. The last
contraction also takes the mean and the spread of each head, which the normalisation after it needs.
Plain twin: `factformer.nn.axial_kernel.contract`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from factformer.nn.fused._common import padded, precision, rows_of
from factformer.nn.fused.geometry import Geometry, Tiling, can_describe, describe, shares
from factformer.nn.fused.kernel_gradient import can_join, joint_gradient, kernel_gradient

WHOLE_LIMIT = 256
"""Up to this length a program keeps its rows of the kernel on the chip and reads each column in one piece."""


class Plan(NamedTuple):
    """How a contraction is cut: its tile, and how the tile comes and goes."""

    tiling: Tiling
    described: bool
    """Tiles are moved by the copy engine, whole columns of one head at a time."""
    chunks: int
    """Pieces of a column. With two, the kernel's rows are held in registers, since shared memory is full of columns."""
    resident: int
    """Programs that fit on a multiprocessor at a time."""


def contraction_plan(size_out: int, size_in: int, channels: int, described: bool) -> Plan:
    rows, wide = min(padded(size_out), 128), max(1, 128 // padded(channels))
    if size_in > WHOLE_LIMIT:
        return Plan(Tiling(rows, wide, 8, 3), False, 1, 2)
    if not described:
        return Plan(Tiling(rows, wide if size_in <= 128 else max(1, wide // 2), 8, 3), False, 1, 1)
    if size_in > 128:  # two programs on a multiprocessor: one stores while the other multiplies
        return Plan(Tiling(rows, 1, 4, 3), True, 2, 2)
    if max(size_out, size_in) > 64:
        return Plan(Tiling(rows, 1, 8, 3), True, 1, 2)
    return Plan(Tiling(rows, 1, 4, 8), True, 1, 2)


@triton.jit
def _kernel_rows(
    kernel, i, j, size_out, size_in, stride_out, stride_in, IN_REGISTERS: tl.constexpr, PRECISION: tl.constexpr
):
    a = tl.load(
        kernel + i[:, None] * stride_out + j[None, :] * stride_in,
        mask=(i < size_out)[:, None] & (j < size_in)[None, :],
        other=0.0,
    )
    if IN_REGISTERS:
        # The product with the identity is exact, and its result lies in the registers where the next one wants it.
        k = tl.arange(0, a.shape[1])
        a = tl.dot(a, (k[:, None] == k[None, :]).to(a.dtype), input_precision=PRECISION).to(a.dtype)
    return a


@triton.jit
def _contract_kernel(
    kernel,
    values,
    result,
    weights,
    parts,
    size_out,
    size_in,
    inner,
    columns,
    heads,
    channels,
    stride_sample,
    stride_out,
    stride_in,
    columns_per_program,
    row_blocks,
    STATISTICS: tl.constexpr,
    HAS_WEIGHTS: tl.constexpr,
    WHOLE: tl.constexpr,
    DESCRIBED: tl.constexpr,
    CHUNKS: tl.constexpr,
    PADDED: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_OUT: tl.constexpr,
    BLOCK_IN: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_C: tl.constexpr,
    STAGES: tl.constexpr,
):
    # Heads and row blocks of the same columns run side by side, so that their reads share cache lines.
    head, block = tl.program_id(0) // row_blocks, tl.program_id(0) % row_blocks
    part, sample = tl.program_id(1), tl.program_id(2).to(tl.int64)
    i = block * BLOCK_OUT + tl.arange(0, BLOCK_OUT)
    j = tl.arange(0, BLOCK_IN)
    n = tl.arange(0, BLOCK_Q * BLOCK_C)
    column, c = tl.arange(0, BLOCK_Q), n % BLOCK_C
    pitch = heads * channels
    kernel += (sample * heads + head) * stride_sample
    if DESCRIBED:
        outer = (sample * (columns // inner)).to(tl.int32)
    else:
        values += sample * columns * size_in * pitch + head * channels
        result += sample * columns * size_out * pitch + head * channels
    if STATISTICS:
        counts = tl.zeros((BLOCK_OUT, BLOCK_Q), dtype=tl.float32)
        level = tl.zeros((BLOCK_OUT, BLOCK_Q), dtype=tl.float32)
        spread = tl.zeros((BLOCK_OUT, BLOCK_Q), dtype=tl.float32)
    if WHOLE:
        a = _kernel_rows(kernel, i, j, size_out, size_in, stride_out, stride_in, CHUNKS > 1, PRECISION)
        if CHUNKS > 1:
            b = _kernel_rows(kernel, i, BLOCK_IN + j, size_out, size_in, stride_out, stride_in, True, PRECISION)
    first = part * columns_per_program
    for q0 in tl.range(first, min(columns, first + columns_per_program), BLOCK_Q, num_stages=STAGES if WHOLE else 1):
        if DESCRIBED:
            x, y = outer + q0 // inner, (q0 % inner) * heads + head
            z = tl.dot(a, values.load([x, y, 0, 0]).reshape(BLOCK_IN, BLOCK_C), input_precision=PRECISION)
            if CHUNKS > 1:
                v = values.load([x, y, BLOCK_IN, 0]).reshape(BLOCK_IN, BLOCK_C)
                z = tl.dot(b, v, z, input_precision=PRECISION)
            result.store([x, y, block * BLOCK_OUT, 0], z.to(result.dtype).reshape(1, 1, BLOCK_OUT, BLOCK_C))
        else:
            q = q0 + n // BLOCK_C
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
                z = tl.dot(a, v, input_precision=PRECISION)
            else:
                z = tl.zeros((BLOCK_OUT, BLOCK_Q * BLOCK_C), dtype=tl.float32)
                for k in tl.range(0, size_in, BLOCK_IN, num_stages=STAGES):
                    v = tl.load(
                        values + (k + j)[:, None] * (inner * pitch) + source[None, :],
                        mask=(k + j < size_in)[:, None] & inside[None, :],
                        other=0.0,
                    )
                    a = _kernel_rows(kernel, i, k + j, size_out, size_in, stride_out, stride_in, False, PRECISION)
                    z = tl.dot(a, v, z, input_precision=PRECISION)
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
            tile = tl.reshape(z, (BLOCK_OUT, BLOCK_Q, BLOCK_C))
            mean = tl.sum(tile, axis=2) / channels
            away = tile - mean[:, :, None]
            if PADDED:
                away = tl.where((tl.arange(0, BLOCK_C) < channels)[None, None, :], away, 0.0)
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
def _merge_heads_kernel(parts, statistics, number, eps, BLOCK: tl.constexpr):
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


def contract_into(
    kernel: Tensor, values: Tensor, axis: int, *, weights: Tensor | None = None, eps: float | None = None
) -> tuple[Tensor, Tensor | None]:
    """``values ×_axis kernel`` and, with ``eps``, mean and reciprocal deviation ``(batch, head, 2)`` of the heads.

    ``kernel`` is ``(batch, head, out, points)`` with any strides; ``weights`` those of every point of the result.
    """
    geometry = Geometry.of(values.shape, axis)
    size_out, columns = kernel.shape[2], geometry.outer * geometry.inner
    shape = (*values.shape[: axis + 1], size_out, *values.shape[axis + 2 :])
    result = torch.empty(shape, dtype=values.dtype, device=values.device)
    plan = contraction_plan(size_out, geometry.size_in, geometry.channels, can_describe(values))
    tiling, whole = plan.tiling, geometry.size_in <= WHOLE_LIMIT
    blocks = triton.cdiv(size_out, tiling.rows)
    per_program = tiling.columns
    if whole:  # else nothing stays on the chip from column to column
        groups = blocks * geometry.heads * geometry.batch
        per_program *= shares(triton.cdiv(columns, tiling.columns), groups, plan.resident, 2)
    parts = triton.cdiv(columns, per_program)
    number = parts * blocks
    collected = values.new_empty(
        geometry.batch, geometry.heads, number if eps is not None else 0, 3, dtype=torch.float32
    )
    stride_sample = kernel.stride(1)
    if kernel.stride(0) != stride_sample * geometry.heads:
        kernel = kernel.contiguous()
        stride_sample = kernel.stride(1)
    block_in = padded(triton.cdiv(padded(geometry.size_in), plan.chunks)) if whole else 64
    _contract_kernel[(geometry.heads * blocks, parts, geometry.batch)](
        kernel,
        describe(values, axis, block_in) if plan.described else values,
        describe(result, axis, tiling.rows) if plan.described else result,
        weights if weights is not None else values,
        collected,
        size_out,
        geometry.size_in,
        geometry.inner,
        columns,
        geometry.heads,
        geometry.channels,
        stride_sample,
        kernel.stride(2),
        kernel.stride(3),
        per_program,
        blocks,
        STATISTICS=eps is not None,
        HAS_WEIGHTS=weights is not None,
        WHOLE=whole,
        DESCRIBED=plan.described,
        CHUNKS=plan.chunks,
        PADDED=geometry.channels != padded(geometry.channels),
        PRECISION=precision(values.dtype),
        BLOCK_OUT=tiling.rows,
        BLOCK_IN=block_in,
        BLOCK_Q=tiling.columns,
        BLOCK_C=padded(geometry.channels),
        STAGES=tiling.stages,
        num_warps=tiling.warps,
    )
    if eps is None:
        return result, None
    statistics = collected.new_empty(geometry.batch, geometry.heads, 2)
    _merge_heads_kernel[(geometry.batch * geometry.heads,)](
        collected, statistics, number, eps, BLOCK=min(padded(number), 1024)
    )
    return result, statistics


class _Contraction(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        kernel: Tensor,
        source: Tensor,
        projection: Tensor | None,
        axis: int,
        heads: int,
        weights: Tensor | None,
        eps: float | None,
    ) -> tuple[Tensor, Tensor | None]:
        source = rows_of(source)
        working = kernel.to(source.dtype)
        projected = None if projection is None else projection.to(source.dtype)
        values = source if projected is None else _project(source, projected, heads)
        result, statistics = contract_into(working, values, axis, weights=weights, eps=eps)
        # Projected values are made again in the backward pass: a product costs less than keeping the largest tensor.
        ctx.save_for_backward(working, source, projected)
        ctx.axis, ctx.heads, ctx.dtype = axis, heads, kernel.dtype
        if statistics is not None:
            ctx.mark_non_differentiable(statistics)
        return result, statistics

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Any) -> Any:
        kernel, source, projected = ctx.saved_tensors
        grad = rows_of(grad)
        values = source if projected is None else _project(source, projected, ctx.heads)
        if can_join(kernel, values):
            grad_kernel, grad_values = joint_gradient(kernel, grad, values, ctx.axis, ctx.dtype)
        else:
            grad_kernel = kernel_gradient(grad, values, ctx.axis, ctx.dtype)
            grad_values, _ = contract_into(kernel.transpose(-1, -2), grad, ctx.axis)
        del values
        if projected is None:
            return grad_kernel, grad_values, None, None, None, None, None
        with torch.autocast(grad.device.type, enabled=False):
            flat = grad_values.flatten(-2).flatten(0, -2)
            grad_source = (flat @ projected).view_as(source)
            grad_projection = (flat.t() @ source.flatten(0, -2)).float()
        return grad_kernel, grad_source, grad_projection, None, None, None, None


def _project(source: Tensor, projection: Tensor, heads: int) -> Tensor:
    with torch.autocast(source.device.type, enabled=False):
        flat = source.flatten(0, -2) @ projection.t()
    return flat.view(*source.shape[:-1], heads, -1)


def contraction(
    kernel: Tensor,
    source: Tensor,
    axis: int,
    *,
    projection: Tensor | None = None,
    heads: int = 1,
    weights: Tensor | None = None,
    eps: float | None = None,
) -> tuple[Tensor, Tensor | None]:
    """`contract_into` with gradients.

    ``source`` holds values ``(batch, *grid, head, channel)``, or with ``projection`` the field ``(batch, *grid,
    dim)`` that they are a linear map of.
    """
    result: tuple[Tensor, Tensor | None] = _Contraction.apply(kernel, source, projection, axis, heads, weights, eps)
    return result
