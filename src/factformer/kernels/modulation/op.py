# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Scale and shift of each channel of a latent field, one pass forward and one backward.

    y = z (1 + s) + t,      ∂z = ∂y (1 + s),      ∂s = Σ ∂y z,      ∂t = Σ ∂y

The sums over the points are added up in float32 and always in the same order.
Reference implementation: `factformer.nn.conditions.Modulation.plain`.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from factformer.kernels._triton.arithmetic import padded, pieces, rows_of
from factformer.kernels._triton.launching import launch
from factformer.kernels._triton.limits import within_limits

ENTRIES = 4096
"""Of a tile: points times channels."""
GRADIENT_ENTRIES = 2048
"""Of a tile that two sums of its size lie beside in registers."""


@triton.jit
def _modulate_kernel(field, both, result, points, dim, BLOCK_P: tl.constexpr, BLOCK_D: tl.constexpr):
    sample, d = tl.program_id(1).to(tl.int64), tl.arange(0, BLOCK_D)
    p = tl.program_id(0).to(tl.int64) * BLOCK_P + tl.arange(0, BLOCK_P)
    scale = tl.load(both + sample * 2 * dim + d, mask=d < dim, other=0.0)
    shift = tl.load(both + sample * 2 * dim + dim + d, mask=d < dim, other=0.0)
    where = (sample * points + p)[:, None] * dim + d[None, :]
    mask = (p < points)[:, None] & (d < dim)[None, :]
    z = tl.load(field + where, mask=mask, other=0.0).to(tl.float32)
    y = z * (1.0 + scale)[None, :] + shift[None, :]
    tl.store(result + where, y.to(result.dtype.element_ty), mask=mask)


@triton.jit
def _modulate_gradient_kernel(
    grad, field, both, grad_field, parts, points, dim, per_program, BLOCK_P: tl.constexpr, BLOCK_D: tl.constexpr
):
    sample, d = tl.program_id(1).to(tl.int64), tl.arange(0, BLOCK_D)
    scale = tl.load(both + sample * 2 * dim + d, mask=d < dim, other=0.0)
    of_scale = tl.zeros((BLOCK_P, BLOCK_D), dtype=tl.float32)
    of_shift = tl.zeros((BLOCK_P, BLOCK_D), dtype=tl.float32)
    first = tl.program_id(0) * per_program
    for start in range(first, min(points, first + per_program), BLOCK_P):
        p = start + tl.arange(0, BLOCK_P)
        where = (sample * points + p)[:, None] * dim + d[None, :]
        mask = (p < points)[:, None] & (d < dim)[None, :]
        g = tl.load(grad + where, mask=mask, other=0.0).to(tl.float32)
        z = tl.load(field + where, mask=mask, other=0.0).to(tl.float32)
        tl.store(grad_field + where, (g * (1.0 + scale)[None, :]).to(grad_field.dtype.element_ty), mask=mask)
        of_scale += g * z
        of_shift += g
    part = parts + (sample * tl.num_programs(0) + tl.program_id(0)) * 2 * dim + d
    tl.store(part, tl.sum(of_scale, axis=0), mask=d < dim)
    tl.store(part + dim, tl.sum(of_shift, axis=0), mask=d < dim)


@within_limits
class _Modulate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, field: Tensor, both: Tensor) -> Tensor:
        field, both = rows_of(field), rows_of(both)
        batch, points, dim = field.shape
        result = torch.empty_like(field)
        block = padded(dim)
        rows = max(1, ENTRIES // block)
        launch(
            _modulate_kernel,
            (triton.cdiv(points, rows), batch),
            field,
            both,
            result,
            points,
            dim,
            BLOCK_P=rows,
            BLOCK_D=block,
        )
        ctx.save_for_backward(field, both)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        field, both = ctx.saved_tensors
        batch, points, dim = field.shape
        block = padded(dim)
        rows = max(1, GRADIENT_ENTRIES // block)
        tiles = triton.cdiv(points, rows)
        per_program = triton.cdiv(tiles, pieces(tiles, batch)) * rows
        programs = triton.cdiv(points, per_program)
        grad_field = torch.empty_like(field)
        parts = field.new_empty(batch, programs, 2 * dim, dtype=torch.float32)
        launch(
            _modulate_gradient_kernel,
            (programs, batch),
            rows_of(grad),
            field,
            both,
            grad_field,
            parts,
            points,
            dim,
            per_program,
            BLOCK_P=rows,
            BLOCK_D=block,
        )
        return grad_field, parts.sum(1)


def modulate(field: Tensor, both: Tensor) -> Tensor:
    """``z (1 + s) + t`` of a field ``(batch, *grid, dim)``, with scale and shift side by side in ``both``."""
    result: Tensor = _Modulate.apply(field.flatten(1, -2), both)
    return result.view_as(field)
