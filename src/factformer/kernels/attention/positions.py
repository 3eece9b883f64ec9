# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""The learned map of the Fourier features, with its gradients summed over the points in float32.

The features are a table of the grid, so only the weights have gradients: one tall product and the sums of its columns.
Reference implementation: the linear layer of `factformer.nn.fourier_features.FourierFeatures`.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from factformer.kernels._triton.arithmetic import padded, pieces, rows_of
from factformer.kernels._triton.launch import launch
from factformer.kernels._triton.products import gram
from factformer.kernels._triton.weights import working

BLOCK_ROWS = 64


@triton.jit
def _column_sums_kernel(values, parts, rows, width, rows_per_program, BLOCK_R: tl.constexpr, BLOCK_W: tl.constexpr):
    part, c = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK_W)
    total = tl.zeros((BLOCK_R, BLOCK_W), dtype=tl.float32)
    first = part * rows_per_program
    for start in range(first, min(rows, first + rows_per_program), BLOCK_R):
        r = start + tl.arange(0, BLOCK_R)
        mask = (r < rows)[:, None] & (c < width)[None, :]
        total += tl.load(values + r[:, None] * width + c[None, :], mask=mask, other=0.0).to(tl.float32)
    tl.store(parts + part * width + c, tl.sum(total, axis=0), mask=c < width)


def column_sums(values: Tensor) -> Tensor:
    """Sums over the rows of ``(row, column)``, in float32 and always in the same order."""
    rows, width = values.shape
    steps = triton.cdiv(rows, BLOCK_ROWS)
    per_program = triton.cdiv(steps, pieces(steps, 1, waves=2)) * BLOCK_ROWS
    parts = values.new_empty(triton.cdiv(rows, per_program), width, dtype=torch.float32)
    launch(
        _column_sums_kernel,
        (len(parts),),
        values,
        parts,
        rows,
        width,
        per_program,
        BLOCK_R=BLOCK_ROWS,
        BLOCK_W=padded(width),
    )
    return parts.sum(0)


class _Positions(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, features: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        dtype = features.dtype
        with torch.autocast(features.device.type, enabled=False):
            result = torch.nn.functional.linear(features, working(weight, dtype), working(bias, dtype))
        ctx.save_for_backward(features)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        (features,) = ctx.saved_tensors
        flat = rows_of(grad).flatten(0, -2)
        rows = features.flatten(0, -2)
        return None, gram(flat[None], rows[None])[0], column_sums(flat)


def encode_positions(features: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """``features Wᵀ + b`` of a table of features, which has no gradient, in its own type."""
    result: Tensor = _Positions.apply(features, weight, bias)
    return result
