# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Head normalisation, output network and residual add in one pass.

    out = s + W₂ gelu( W₁ ẑ ),     ẑ = (z - μ_h) ρ_h

The mean and deviation of each head come from the last contraction. In the backward pass the two sums over the
domain that the normalisation needs are contractions of quantities that the weight gradient holds anyway:
``Σ ∂ẑ = (Σ ∂h) · W₁`` and ``Σ ∂ẑ·ẑ = ⟨∂W₁, W₁⟩`` of each sample and head, so no extra pass is made for them.
Plain twin: `factformer.nn.norms.domain_normalize` and `factformer.nn.mlp.MLP`.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from factformer.nn.fused._common import gelu, gelu_slope, padded, pieces, precision, rows_of
from factformer.nn.fused.gram import gram


@triton.jit
def _forward_kernel(
    values, statistics, first, second, residual, result, hidden,
    points, heads, channels, dim,
    SAVE: tl.constexpr, PRECISION: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_D: tl.constexpr,
    STAGES: tl.constexpr,
):
    sample = tl.program_id(1).to(tl.int64)
    p = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)
    c, d = tl.arange(0, BLOCK_C), tl.arange(0, BLOCK_D)
    inside = (p < points)[:, None]
    row = sample * points + p
    pitch = heads * channels
    h = tl.zeros((BLOCK_P, BLOCK_D), dtype=tl.float32)
    for head in tl.range(0, heads, num_stages=STAGES):
        z = tl.load(
            values + row[:, None] * pitch + (head * channels + c)[None, :],
            mask=inside & (c < channels)[None, :], other=0.0,
        )
        w = tl.load(
            first + d[:, None] * pitch + (head * channels + c)[None, :],
            mask=(d < dim)[:, None] & (c < channels)[None, :], other=0.0,
        )
        where = statistics + (sample * heads + head) * 2
        unit = ((z.to(tl.float32) - tl.load(where)) * tl.load(where + 1)).to(w.dtype)
        h = tl.dot(unit, tl.trans(w), h, input_precision=PRECISION)
    offset = row[:, None] * dim + d[None, :]
    mask = inside & (d < dim)[None, :]
    if SAVE:
        tl.store(hidden + offset, h.to(hidden.dtype.element_ty), mask=mask)
    w = tl.load(second + d[:, None] * dim + d[None, :], mask=(d < dim)[:, None] & (d < dim)[None, :], other=0.0)
    out = tl.dot(gelu(h).to(w.dtype), tl.trans(w), input_precision=PRECISION)
    out += tl.load(residual + offset, mask=mask, other=0.0).to(tl.float32)
    tl.store(result + offset, out.to(result.dtype.element_ty), mask=mask)


@triton.jit
def _hidden_gradient_kernel(
    grad, hidden, second, grad_hidden, second_parts, sum_parts, points, dim, points_per_program,
    PRECISION: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_D: tl.constexpr,
):
    """``∂h`` of every point; ``∂W₂`` and the sum of ``∂h`` of one part of a sample."""
    part, sample = tl.program_id(0), tl.program_id(1).to(tl.int64)
    d = tl.arange(0, BLOCK_D)
    inside_d = d < dim
    w = tl.load(second + d[:, None] * dim + d[None, :], mask=inside_d[:, None] & inside_d[None, :], other=0.0)
    grad_second = tl.zeros((BLOCK_D, BLOCK_D), dtype=tl.float32)
    summed = tl.zeros((BLOCK_D,), dtype=tl.float32)
    start = part * points_per_program
    for p0 in range(start, min(points, start + points_per_program), BLOCK_P):
        p = p0 + tl.arange(0, BLOCK_P)
        mask = (p < points)[:, None] & inside_d[None, :]
        offset = (sample * points + p)[:, None] * dim + d[None, :]
        g = tl.load(grad + offset, mask=mask, other=0.0)
        h = tl.load(hidden + offset, mask=mask, other=0.0).to(tl.float32)
        grad_h = tl.dot(g, w, input_precision=PRECISION) * gelu_slope(h)
        tl.store(grad_hidden + offset, grad_h.to(grad_hidden.dtype.element_ty), mask=mask)
        summed += tl.sum(grad_h, axis=0)
        grad_second = tl.dot(tl.trans(g), gelu(h).to(g.dtype), grad_second, input_precision=PRECISION)
    program = sample * tl.num_programs(0) + part
    tl.store(
        second_parts + program * dim * dim + d[:, None] * dim + d[None, :], grad_second,
        mask=inside_d[:, None] & inside_d[None, :],
    )
    tl.store(sum_parts + program * dim + d, summed, mask=inside_d)


@triton.jit
def _values_gradient_kernel(
    grad_hidden, scaled, values, terms, weights, grad_values, points, heads, channels, dim,
    HAS_WEIGHTS: tl.constexpr, PRECISION: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
    BLOCK_D: tl.constexpr, STAGES: tl.constexpr,
):
    """``∂z = ∂h (ρ W₁) + w (α + β z)``."""
    sample = tl.program_id(1).to(tl.int64)
    p = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)
    c, d = tl.arange(0, BLOCK_C), tl.arange(0, BLOCK_D)
    inside = (p < points)[:, None]
    row = sample * points + p
    pitch = heads * channels
    g = tl.load(grad_hidden + row[:, None] * dim + d[None, :], mask=inside & (d < dim)[None, :], other=0.0)
    measure = 1.0
    if HAS_WEIGHTS:
        measure = tl.load(weights + p, mask=p < points, other=0.0)[:, None]
    for head in tl.range(0, heads, num_stages=STAGES):
        offset = row[:, None] * pitch + (head * channels + c)[None, :]
        mask = inside & (c < channels)[None, :]
        z = tl.load(values + offset, mask=mask, other=0.0).to(tl.float32)
        w = tl.load(
            scaled + sample * dim * pitch + d[:, None] * pitch + (head * channels + c)[None, :],
            mask=(d < dim)[:, None] & (c < channels)[None, :], other=0.0,
        )
        where = terms + (sample * heads + head) * 2
        result = tl.dot(g, w, input_precision=PRECISION) + measure * (tl.load(where) + tl.load(where + 1) * z)
        tl.store(grad_values + offset, result.to(grad_values.dtype.element_ty), mask=mask)


class _Output(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, values: Tensor, statistics: Tensor, first: Tensor, second: Tensor, residual: Tensor,
        weights: Tensor | None,
    ) -> Tensor:
        batch, dim = residual.shape[0], residual.shape[-1]
        heads, channels = values.shape[-2:]
        points = residual[0, ..., 0].numel()
        residual = rows_of(residual)
        first, second = first.to(values.dtype), second.to(values.dtype)
        result = torch.empty_like(residual)
        save = any(ctx.needs_input_grad)
        hidden = torch.empty_like(residual) if save else result
        block = 128 if points >= 2**14 else 64
        _forward_kernel[(triton.cdiv(points, block), batch)](
            values, statistics, first, second, residual, result, hidden, points, heads, channels, dim,
            SAVE=save, PRECISION=precision(values.dtype), BLOCK_P=block, BLOCK_C=padded(channels),
            BLOCK_D=padded(dim), STAGES=3, num_warps=8 if block == 128 else 4,
        )
        ctx.save_for_backward(values, statistics, first, second, hidden, weights)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        values, statistics, first, second, hidden, weights = ctx.saved_tensors
        batch, dim = hidden.shape[0], hidden.shape[-1]
        heads, channels = values.shape[-2:]
        points = hidden[0, ..., 0].numel()
        grad = rows_of(grad)
        block = 64
        steps = triton.cdiv(points, block)
        per_program = triton.cdiv(steps, pieces(steps, batch, waves=2)) * block
        number = triton.cdiv(points, per_program)
        grad_hidden = torch.empty_like(hidden)
        second_parts = hidden.new_empty(batch * number, dim, dim, dtype=torch.float32)
        sum_parts = hidden.new_empty(batch, number, dim, dtype=torch.float32)
        _hidden_gradient_kernel[(number, batch)](
            grad, hidden, second, grad_hidden, second_parts, sum_parts, points, dim, per_program,
            PRECISION=precision(hidden.dtype), BLOCK_P=block, BLOCK_D=padded(dim), num_warps=8,
        )
        raw = gram(grad_hidden.view(batch, points, dim), values.view(batch, points, heads * channels))
        grad_first, scaled, terms = normalization_terms(
            raw.view(batch, dim, heads, channels), sum_parts.sum(1), first.float().view(dim, heads, channels),
            statistics, 1.0 / points if weights is None else 1.0,
        )
        grad_values = torch.empty_like(values)
        block = 128 if points >= 2**14 else 64
        _values_gradient_kernel[(triton.cdiv(points, block), batch)](
            grad_hidden, scaled.to(values.dtype), values, terms, weights if weights is not None else values,
            grad_values, points, heads, channels, dim,
            HAS_WEIGHTS=weights is not None, PRECISION=precision(values.dtype), BLOCK_P=block,
            BLOCK_C=padded(channels), BLOCK_D=padded(dim), STAGES=3, num_warps=8 if block == 128 else 4,
        )
        return grad_values, None, grad_first.flatten(1), second_parts.sum(0), grad, None


def normalization_terms(
    raw: Tensor, sums: Tensor, weight: Tensor, statistics: Tensor, measure: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradient of ``W`` in ``h = W ẑ``, and what gives ``∂z = ∂h (ρ W) + w (α + β z)``.

    ``raw = ∂hᵀ z`` is ``(batch, dim, group, channel)``, ``sums = Σ ∂h`` is ``(batch, dim)`` and ``statistics``
    holds ``μ, ρ`` as ``(batch, group, 2)``. Returns ``∂W`` summed over the batch, ``ρ W`` and ``(α, β)``, times
    ``measure``.
    """
    mean, scale = statistics.unbind(-1)
    channels = raw.shape[-1]
    grad = (raw - sums[:, :, None, None] * mean[:, None, :, None]) * scale[:, None, :, None]
    along = (grad * weight).sum((1, 3))
    level = (sums[:, :, None] * weight.sum(-1)).sum(1)
    slope = -scale.square() * along * (measure / channels)
    offset = -scale * level * (measure / channels) - slope * mean
    return grad.sum(0), weight * scale[:, None, :, None], torch.stack([offset, slope], dim=-1)


def output(
    values: Tensor, statistics: Tensor, first: Tensor, second: Tensor, residual: Tensor, weights: Tensor | None
) -> Tensor:
    """``residual + W₂ gelu(W₁ ẑ)`` of values ``(batch, *grid, head, channel)``.

    ``weights`` are the quadrature weights of the points, flat, or ``None`` where they are equal.
    """
    result: Tensor = _Output.apply(values, statistics, first, second, residual, weights)
    return result
