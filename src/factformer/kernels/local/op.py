# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# mypy: disable-error-code="assignment"
# ruff: noqa: RUF005 (Triton adds tuples, it does not unpack them)
"""The local branch in two passes: depthwise convolution; LayerNorm, pointwise network and residual add.

    out = u + W₂ gelu( W₁ LayerNorm( D ⋆ u ) + b₁ ) + b₂

Kept for the backward pass: the field and its convolution.
Reference implementation: `factformer.nn.local_branch.LocalBranch`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from factformer.kernels._triton.arithmetic import gelu, gelu_slope, padded, pieces, precision, rows_of
from factformer.kernels._triton.launch import launch
from factformer.kernels._triton.products import gram
from factformer.kernels._triton.weights import working
from factformer.kernels.local.convolution import correlate, depthwise_weight_kernel, run_of, runs, surroundings

if TYPE_CHECKING:
    from factformer.models.factformer_plus import LocalBranch

CONVOLVED_RUNS, CONVOLVED_WARPS = 8, 4
WEIGHED_RUNS, WEIGHED_WARPS = 8, 4
NETWORK_POINTS, NETWORK_HIDDEN, NETWORK_WARPS = 64, 64, 4
GRADIENT_POINTS, GRADIENT_HIDDEN, GRADIENT_WARPS = 64, 32, 4
"""Tiles: runs or points, hidden channels at a time, warps. From 64 points on the largest matrix instructions serve."""


@triton.jit
def _convolution_kernel(
    source,
    weight,
    start,
    result,
    points,
    dim,
    size0,
    size1,
    size2,
    size3,
    step,
    WRAPS: tl.constexpr,
    REACH: tl.constexpr,
    ABSENT: tl.constexpr,
    RUN: tl.constexpr,
    TRANSPOSED: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """``start`` and the convolution of ``source``: a bias per channel, or of its transpose a field."""
    sample = tl.program_id(1).to(tl.int64) * points * dim
    runs = points // size3 * tl.cdiv(size3, RUN)
    number = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    d = tl.arange(0, BLOCK_D)
    inside_d = (d < dim)[None, :]
    row, first = run_of(number, size3, RUN)
    offset = sample + (row * size3 + first)[:, None] * dim + d[None, :]
    totals = ()
    for r in tl.static_range(RUN):
        if TRANSPOSED:
            mask = ((number < runs) & (first + r < size3))[:, None] & inside_d
            total = tl.load(start + offset + r * dim, mask=mask, other=0.0).to(tl.float32)
        else:
            total = tl.zeros((BLOCK_R, BLOCK_D), dtype=tl.float32)
            total += tl.load(start + d, mask=d < dim, other=0.0)[None, :]
        totals = totals + (total,)
    totals = correlate(
        source + sample,
        weight,
        number,
        d,
        runs,
        dim,
        totals,
        size0,
        size1,
        size2,
        size3,
        step,
        -1 if TRANSPOSED else 1,
        WRAPS,
        REACH,
        ABSENT,
        RUN,
    )
    for r in tl.static_range(RUN):
        mask = ((number < runs) & (first + r < size3))[:, None] & inside_d
        tl.store(result + offset + r * dim, totals[r].to(result.dtype.element_ty), mask=mask)


@triton.jit
def _network_kernel(
    field,
    convolved,
    gain,
    shift,
    first,
    first_bias,
    second,
    second_bias,
    result,
    rows,
    dim,
    hidden,
    eps,
    PRECISION: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_H: tl.constexpr,
):
    """Norm, pointwise network and residual add."""
    p = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)
    d = tl.arange(0, BLOCK_D)
    inside_d = d < dim
    mask = (p < rows)[:, None] & inside_d[None, :]
    offset = p.to(tl.int64)[:, None] * dim + d[None, :]
    unit, _ = _normalized(tl.load(convolved + offset, mask=mask, other=0.0).to(tl.float32), inside_d, dim, eps)
    g = tl.load(gain + d, mask=inside_d, other=0.0)[None, :]
    x = (unit * g + tl.load(shift + d, mask=inside_d, other=0.0)[None, :]).to(first.dtype.element_ty)
    out = tl.zeros((BLOCK_P, BLOCK_D), dtype=tl.float32)
    for start in range(0, hidden, BLOCK_H):
        k = start + tl.arange(0, BLOCK_H)
        w1 = tl.load(first + k[:, None] * dim + d[None, :], mask=(k < hidden)[:, None] & inside_d[None, :], other=0.0)
        w2 = tl.load(
            second + d[:, None] * hidden + k[None, :], mask=inside_d[:, None] & (k < hidden)[None, :], other=0.0
        )
        h = tl.dot(x, tl.trans(w1), input_precision=PRECISION)
        h += tl.load(first_bias + k, mask=k < hidden, other=0.0)[None, :]
        out = tl.dot(gelu(h).to(w2.dtype), tl.trans(w2), out, input_precision=PRECISION)
    out += tl.load(field + offset, mask=mask, other=0.0).to(tl.float32)
    out += tl.load(second_bias + d, mask=inside_d, other=0.0)[None, :]
    tl.store(result + offset, out.to(result.dtype.element_ty), mask=mask)


@triton.jit
def _normalized(y, inside_d, dim, eps):
    """Rows of zero mean and unit deviation, and the reciprocal deviation they had."""
    mean = tl.sum(y, axis=1) / dim
    centred = tl.where(inside_d[None, :], y - mean[:, None], 0.0)
    scale = tl.rsqrt(tl.sum(centred * centred, axis=1) / dim + eps)
    return centred * scale[:, None], scale


@triton.jit
def _pointwise_gradient_kernel(
    grad,
    convolved,
    gain,
    shift,
    first,
    first_bias,
    second,
    normed,
    activated,
    grad_hidden,
    grad_convolved,
    parts,
    points,
    dim,
    hidden,
    eps,
    PRECISION: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_H: tl.constexpr,
):
    """Back through the network and the norm; what the weights' gradients need is made again and written."""
    p = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)
    row = p.to(tl.int64)
    d = tl.arange(0, BLOCK_D)
    inside_d = d < dim
    inside = (p < points)[:, None]
    mask = inside & inside_d[None, :]
    offset = row[:, None] * dim + d[None, :]
    parts += tl.program_id(0) * (hidden + 4 * dim)
    unit, scale = _normalized(tl.load(convolved + offset, mask=mask, other=0.0).to(tl.float32), inside_d, dim, eps)
    g = tl.load(gain + d, mask=inside_d, other=0.0)[None, :]
    x = (unit * g + tl.load(shift + d, mask=inside_d, other=0.0)[None, :]).to(first.dtype.element_ty)
    tl.store(normed + offset, x, mask=mask)
    y = tl.load(grad + offset, mask=mask, other=0.0)
    tl.store(parts + hidden + d, tl.sum(y.to(tl.float32), axis=0), mask=inside_d)
    grad_x = tl.zeros((BLOCK_P, BLOCK_D), dtype=tl.float32)
    for start in range(0, hidden, BLOCK_H):
        k = start + tl.arange(0, BLOCK_H)
        w1 = tl.load(first + k[:, None] * dim + d[None, :], mask=(k < hidden)[:, None] & inside_d[None, :], other=0.0)
        w2 = tl.load(
            second + d[:, None] * hidden + k[None, :], mask=inside_d[:, None] & (k < hidden)[None, :], other=0.0
        )
        h = tl.dot(x, tl.trans(w1), input_precision=PRECISION)
        h += tl.load(first_bias + k, mask=k < hidden, other=0.0)[None, :]
        grad_h = tl.dot(y, w2, input_precision=PRECISION) * gelu_slope(h)
        wide = row[:, None] * hidden + k[None, :]
        inside_k = inside & (k < hidden)[None, :]
        tl.store(activated + wide, gelu(h).to(activated.dtype.element_ty), mask=inside_k)
        tl.store(parts + k, tl.sum(grad_h, axis=0), mask=k < hidden)
        rounded = grad_h.to(w1.dtype)
        tl.store(grad_hidden + wide, rounded, mask=inside_k)
        grad_x = tl.dot(rounded, w1, grad_x, input_precision=PRECISION)
    tl.store(parts + hidden + dim + d, tl.sum(grad_x * unit, axis=0), mask=inside_d)
    tl.store(parts + hidden + 2 * dim + d, tl.sum(grad_x, axis=0), mask=inside_d)
    grad_x *= g
    along = tl.sum(grad_x * unit, axis=1)[:, None] / dim
    level = tl.sum(grad_x, axis=1)[:, None] / dim
    grad_y = tl.where(mask, scale[:, None] * (grad_x - level - unit * along), 0.0)
    tl.store(parts + hidden + 3 * dim + d, tl.sum(grad_y, axis=0), mask=inside_d)
    tl.store(grad_convolved + offset, grad_y.to(grad_convolved.dtype.element_ty), mask=mask)


class _Local(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, field: Tensor, around: dict[str, Any], eps: float, *parameters: Tensor) -> Tensor:
        field = rows_of(field)
        weight, bias, gain, shift, first, first_bias, second, second_bias = parameters
        batch, dim, dtype = field.shape[0], field.shape[-1], field.dtype
        points, hidden = field[0, ..., 0].numel(), first.shape[0]
        offsets = weight.flatten(1).t().contiguous()
        convolved, result = torch.empty_like(field), torch.empty_like(field)
        first, second = working(first, dtype), working(second, dtype)
        launch(
            _convolution_kernel,
            (triton.cdiv(runs(around), CONVOLVED_RUNS), batch),
            field,
            offsets,
            bias,
            convolved,
            points,
            dim,
            **around,
            TRANSPOSED=False,
            BLOCK_R=CONVOLVED_RUNS,
            BLOCK_D=padded(dim),
            num_warps=CONVOLVED_WARPS,
        )
        rows = batch * points
        launch(
            _network_kernel,
            (triton.cdiv(rows, NETWORK_POINTS),),
            field,
            convolved,
            gain,
            shift,
            first,
            first_bias,
            second,
            second_bias,
            result,
            rows,
            dim,
            hidden,
            eps,
            PRECISION=precision(dtype),
            BLOCK_P=NETWORK_POINTS,
            BLOCK_D=padded(dim),
            BLOCK_H=min(padded(hidden), NETWORK_HIDDEN),
            num_warps=NETWORK_WARPS,
            num_stages=2,
        )
        ctx.save_for_backward(field, convolved, offsets, gain, shift, first, first_bias, second)
        ctx.around, ctx.eps, ctx.shape = around, eps, weight.shape
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        field, convolved, offsets, gain, shift, first, first_bias, second = ctx.saved_tensors
        grad = rows_of(grad)
        batch, dim, dtype = field.shape[0], field.shape[-1], field.dtype
        points, hidden = field[0, ..., 0].numel(), first.shape[0]
        rows = batch * points
        tiles = triton.cdiv(rows, GRADIENT_POINTS)
        normed, grad_convolved, grad_field = (torch.empty_like(field) for _ in range(3))
        activated, grad_hidden = (field.new_empty(1, rows, hidden) for _ in range(2))
        parts = field.new_empty(tiles, hidden + 4 * dim, dtype=torch.float32)
        launch(
            _pointwise_gradient_kernel,
            (tiles,),
            grad,
            convolved,
            gain,
            shift,
            first,
            first_bias,
            second,
            normed,
            activated,
            grad_hidden,
            grad_convolved,
            parts,
            rows,
            dim,
            hidden,
            ctx.eps,
            PRECISION=precision(dtype),
            BLOCK_P=GRADIENT_POINTS,
            BLOCK_D=padded(dim),
            BLOCK_H=min(padded(hidden), GRADIENT_HIDDEN),
            num_warps=GRADIENT_WARPS,
            num_stages=2,
        )
        grad_second = gram(grad.view(1, rows, dim), activated).squeeze(0)
        grad_first = gram(grad_hidden, normed.view(1, rows, dim)).squeeze(0)
        del activated, grad_hidden, normed
        launch(
            _convolution_kernel,
            (triton.cdiv(runs(ctx.around), CONVOLVED_RUNS), batch),
            grad_convolved,
            offsets,
            grad,
            grad_field,
            points,
            dim,
            **ctx.around,
            TRANSPOSED=True,
            BLOCK_R=CONVOLVED_RUNS,
            BLOCK_D=padded(dim),
            num_warps=CONVOLVED_WARPS,
        )
        width = 2 * ctx.around["REACH"] + 1
        outer = len(offsets) // width
        tiles = triton.cdiv(runs(ctx.around), WEIGHED_RUNS) * batch
        per_program = triton.cdiv(tiles, pieces(tiles, outer, waves=6))
        number = triton.cdiv(tiles, per_program)
        weight_parts = field.new_empty(number, len(offsets), dim, dtype=torch.float32)
        launch(
            depthwise_weight_kernel,
            (outer, number),
            field,
            grad_convolved,
            weight_parts,
            points,
            dim,
            tiles,
            per_program,
            **ctx.around,
            BLOCK_R=WEIGHED_RUNS,
            BLOCK_D=padded(dim),
            num_warps=WEIGHED_WARPS,
        )
        sums = parts.sum(0)
        grad_first_bias, grad_second_bias, grad_gain, grad_shift, grad_bias = sums.split([hidden, dim, dim, dim, dim])
        return (
            grad_field,
            None,
            None,
            weight_parts.sum(0).t().reshape(ctx.shape),
            grad_bias,
            grad_gain,
            grad_shift,
            grad_first,
            grad_first_bias,
            grad_second,
            grad_second_bias,
        )


def local_block(branch: LocalBranch, field: Tensor, dtype: torch.dtype, weight: Tensor, step: int) -> Tensor:
    """``field + branch(field)`` of a field ``(batch, *grid, dim)``, in ``dtype``.

    ``weight`` and ``step`` are those of the convolution at the grid (`Convolution.at`).
    """
    convolution, norm, mlp = branch.convolution, branch.norm, branch.mlp
    around = surroundings(field.shape[1:-1], convolution.padding, weight.shape[-1], step)
    parameters = (
        weight,
        convolution.bias,
        norm.weight,
        norm.bias,
        mlp[0].weight,
        mlp[0].bias,
        mlp[2].weight,
        mlp[2].bias,
    )
    result: Tensor = _Local.apply(field.to(dtype), around, norm.eps, *parameters)
    return result
