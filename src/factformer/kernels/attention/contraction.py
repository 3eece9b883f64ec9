# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Axis contractions ``Σ_j A_ij V_…j…`` of channel-last values, with no copy whatever the axis.

Values ``(batch, *grid, head, channel)`` are seen as ``(batch, outer, points, inner, head, channel)``. A column
is one pair (outer, inner); a program holds a block of rows of ``A`` of one head and walks over columns. The last
contraction also takes the mean and the spread of each head, which the normalisation after it needs.
Reference implementation: `factformer.nn.attention.axial_kernel.contract`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable

from factformer.kernels._triton.arithmetic import padded, rows_of
from factformer.kernels._triton.geometry import Geometry, Tiling, can_describe, describe, shares
from factformer.kernels._triton.launching import launch
from factformer.kernels._triton.limits import chosen, within_limits
from factformer.kernels._triton.weights import product, working
from factformer.kernels.attention.contraction_backward import can_join, joint_gradient, kernel_gradient
from factformer.kernels.attention.contraction_forward import contract_kernel, merge_heads_kernel

WHOLE_LIMIT = 256
"""Up to this length a program keeps its rows of the kernel on the chip and reads each column in one piece."""


class Plan(NamedTuple):
    """How a contraction is cut: its tile, and how the tile comes and goes."""

    tiling: Tiling
    described: bool
    """Tiles are moved by TMA, whole columns of one head at a time."""
    chunks: int
    """Pieces of a column. With two, the kernel's rows are held in registers, since shared memory is full of columns."""
    resident: int
    """Programs that fit on a multiprocessor at a time."""


def contraction_plan(size_out: int, size_in: int, channels: int, described: bool) -> Plan:
    rows, wide = min(padded(size_out), 128), max(1, 128 // padded(channels))
    if chosen(False, False, True):  # one column at a time, and of a long axis half the rows
        long = size_in > 128
        return Plan(Tiling(min(rows, 64) if long else rows, 1, 8, 2 if long else 3), False, 1, 1)
    if size_in > WHOLE_LIMIT:
        return Plan(Tiling(rows, wide, 8, 3), False, 1, 2)
    if not described:
        return Plan(Tiling(rows, wide if size_in <= 128 else max(1, wide // 2), 8, 3), False, 1, 1)
    if size_in > 128:  # two programs on a multiprocessor: one stores while the other multiplies
        return Plan(Tiling(rows, 1, 4, 3), True, 2, 2)
    if max(size_out, size_in) > 64:
        return Plan(Tiling(rows, 1, 8, 3), True, 1, 2)
    return Plan(Tiling(rows, 1, 4, 8), True, 1, 2)


def contract_into(
    kernel: Tensor, values: Tensor, axis: int, *, weights: Tensor | None = None, eps: float | None = None
) -> tuple[Tensor, Tensor | None]:
    """``values ×_axis kernel`` and, with ``eps``, mean and reciprocal deviation ``(batch, head, 2)`` of the heads.

    ``kernel`` is ``(batch, head, out, points)`` with any strides; ``weights`` those of every point of the result, or of
    every sample ``(batch, point)``.
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
    launch(
        contract_kernel,
        (geometry.heads * blocks, parts, geometry.batch),
        kernel,
        describe(values, axis, block_in) if plan.described else values,
        describe(result, axis, tiling.rows) if plan.described else result,
        weights if weights is not None else values,
        collected,
        geometry.contracted(size_out),
        geometry.channels,
        stride_sample,
        kernel.stride(2),
        kernel.stride(3),
        per_program,
        blocks,
        STATISTICS=eps is not None,
        HAS_WEIGHTS=weights is not None,
        OF_SAMPLES=weights is not None and weights.numel() > size_out * columns,
        WHOLE=whole,
        CHUNKS=plan.chunks,
        PADDED=geometry.channels != padded(geometry.channels),
        S=geometry.tiles(tiling, block_in, plan.described, values.dtype),
        num_warps=tiling.warps,
    )
    if eps is None:
        return result, None
    statistics = collected.new_empty(geometry.batch, geometry.heads, 2)
    launch(
        merge_heads_kernel,
        (geometry.batch * geometry.heads,),
        collected,
        statistics,
        number,
        eps,
        BLOCK=min(padded(number), 1024),
    )
    return result, statistics


@within_limits
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
        projected: Tensor | None,
    ) -> tuple[Tensor, Tensor | None]:
        source = rows_of(source)
        matrix = kernel.to(source.dtype)
        weight = None if projection is None else working(projection, source.dtype)
        values = source if weight is None else projected if projected is not None else project(source, weight, heads)
        result, statistics = contract_into(matrix, values, axis, weights=weights, eps=eps)
        # Projected values are made again in the backward pass: a product costs less than keeping the largest tensor.
        ctx.save_for_backward(matrix, source, weight)
        ctx.axis, ctx.heads, ctx.dtype = axis, heads, kernel.dtype
        ctx.set_materialize_grads(False)  # the statistics have none
        if statistics is not None:
            ctx.mark_non_differentiable(statistics)
        return result, statistics

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Any) -> Any:
        kernel, source, weight = ctx.saved_tensors
        grad = rows_of(grad)
        values = source if weight is None else project(source, weight, ctx.heads)
        if can_join(kernel, values):
            grad_kernel, grad_values = joint_gradient(kernel, grad, values, ctx.axis, ctx.dtype)
        else:
            grad_kernel = kernel_gradient(grad, values, ctx.axis, ctx.dtype)
            grad_values, _ = contract_into(kernel.transpose(-1, -2), grad, ctx.axis)
        del values
        if weight is None:
            return grad_kernel, grad_values, *[None] * 6
        with torch.autocast(grad.device.type, enabled=False):
            flat = grad_values.flatten(-2).flatten(0, -2)
            grad_source = (flat @ weight).view_as(source)
            grad_projection = product(flat.t(), source.flatten(0, -2))
        return grad_kernel, grad_source, grad_projection, *[None] * 5


def project(source: Tensor, projection: Tensor, heads: int) -> Tensor:
    """Values ``(batch, *grid, head, channel)`` of a field ``(batch, *grid, dim)``; both factors of one type."""
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
    projected: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """`contract_into` with gradients.

    ``source`` holds values ``(batch, *grid, head, channel)``, or with ``projection`` the field ``(batch, *grid,
    dim)`` that they are a linear map of; where `project` has made them already they come as ``projected``.
    """
    result: tuple[Tensor, Tensor | None] = _Contraction.apply(
        kernel, source, projection, axis, heads, weights, eps, projected
    )
    return result
