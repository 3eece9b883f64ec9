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

from factformer.nn.fused._common import gelu, gelu_slope, padded, precision, rows_of
from factformer.nn.fused.fold import fold
from factformer.nn.fused.gram import gram

BLOCK_POINTS = 64


@triton.jit
def _output_kernel(
    values,
    folded,
    constant,
    second,
    residual,
    result,
    hidden,
    points,
    width,
    dim,
    SAVE: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_D: tl.constexpr,
    STAGES: tl.constexpr,
):
    sample = tl.program_id(1).to(tl.int64)
    p = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)
    d = tl.arange(0, BLOCK_D)
    inside, inside_d = (p < points)[:, None], d < dim
    row = sample * points + p
    folded += sample * dim * width
    h = tl.zeros((BLOCK_P, BLOCK_D), dtype=tl.float32)
    for start in tl.range(0, width, BLOCK_K, num_stages=STAGES):
        c = start + tl.arange(0, BLOCK_K)
        inside_c = (c < width)[None, :]
        z = tl.load(values + row[:, None] * width + c[None, :], mask=inside & inside_c, other=0.0)
        w = tl.load(folded + d[:, None] * width + c[None, :], mask=inside_d[:, None] & inside_c, other=0.0)
        h = tl.dot(z, tl.trans(w), h, input_precision=PRECISION)
    h += tl.load(constant + sample * dim + d, mask=inside_d, other=0.0)[None, :]
    offset = row[:, None] * dim + d[None, :]
    mask = inside & inside_d[None, :]
    if SAVE:
        tl.store(hidden + offset, h.to(hidden.dtype.element_ty), mask=mask)
    w = tl.load(second + d[:, None] * dim + d[None, :], mask=inside_d[:, None] & inside_d[None, :], other=0.0)
    out = tl.dot(gelu(h).to(w.dtype), tl.trans(w), input_precision=PRECISION)
    out += tl.load(residual + offset, mask=mask, other=0.0).to(tl.float32)
    tl.store(result + offset, out.to(result.dtype.element_ty), mask=mask)


@triton.jit
def _hidden_gradient_kernel(
    grad,
    hidden,
    second,
    grad_hidden,
    activated,
    sum_parts,
    points,
    dim,
    PRECISION: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """``∂h`` and ``gelu(h)`` of every point, and the sum of ``∂h`` over a tile."""
    sample = tl.program_id(1).to(tl.int64)
    p = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)
    d = tl.arange(0, BLOCK_D)
    inside_d = d < dim
    mask = (p < points)[:, None] & inside_d[None, :]
    offset = (sample * points + p)[:, None] * dim + d[None, :]
    g = tl.load(grad + offset, mask=mask, other=0.0)
    h = tl.load(hidden + offset, mask=mask, other=0.0).to(tl.float32)
    w = tl.load(second + d[:, None] * dim + d[None, :], mask=inside_d[:, None] & inside_d[None, :], other=0.0)
    tl.store(activated + offset, gelu(h).to(activated.dtype.element_ty), mask=mask)
    grad_h = tl.dot(g, w, input_precision=PRECISION) * gelu_slope(h)
    tl.store(grad_hidden + offset, grad_h.to(grad_hidden.dtype.element_ty), mask=mask)
    program = sample * tl.num_programs(0) + tl.program_id(0)
    tl.store(sum_parts + program * dim + d, tl.sum(grad_h, axis=0), mask=inside_d)


@triton.jit
def _values_gradient_kernel(
    grad_hidden,
    scaled,
    values,
    terms,
    weights,
    grad_values,
    points,
    heads,
    channels,
    dim,
    HAS_WEIGHTS: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_D: tl.constexpr,
    STAGES: tl.constexpr,
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
            mask=(d < dim)[:, None] & (c < channels)[None, :],
            other=0.0,
        )
        where = terms + (sample * heads + head) * 2
        result = tl.dot(g, w, input_precision=PRECISION) + measure * (tl.load(where) + tl.load(where + 1) * z)
        tl.store(grad_values + offset, result.to(grad_values.dtype.element_ty), mask=mask)


class _Output(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        values: Tensor,
        statistics: Tensor,
        first: Tensor,
        second: Tensor,
        residual: Tensor,
        weights: Tensor | None,
    ) -> Tensor:
        batch, dim = residual.shape[0], residual.shape[-1]
        heads, channels = values.shape[-2:]
        points = residual[0, ..., 0].numel()
        residual = rows_of(residual)
        second = second.to(values.dtype)
        folded, constant = fold(first, statistics, values.dtype)
        result = torch.empty_like(residual)
        save = any(ctx.needs_input_grad)
        hidden = torch.empty_like(residual) if save else result
        width = heads * channels
        _output_kernel[(triton.cdiv(points, BLOCK_POINTS), batch)](
            values,
            folded,
            constant,
            second,
            residual,
            result,
            hidden,
            points,
            width,
            dim,
            SAVE=save,
            PRECISION=precision(values.dtype),
            BLOCK_P=BLOCK_POINTS,
            BLOCK_K=min(padded(width), 64),
            BLOCK_D=padded(dim),
            STAGES=3,
            num_warps=4,
        )
        ctx.save_for_backward(values, statistics, first, second, hidden, weights, folded)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        values, statistics, first, second, hidden, weights, folded = ctx.saved_tensors
        batch, dim = hidden.shape[0], hidden.shape[-1]
        heads, channels = values.shape[-2:]
        points = hidden[0, ..., 0].numel()
        grad = rows_of(grad)
        tiles = triton.cdiv(points, BLOCK_POINTS)
        grad_hidden, activated = torch.empty_like(hidden), torch.empty_like(hidden)
        sum_parts = hidden.new_empty(batch, tiles, dim, dtype=torch.float32)
        _hidden_gradient_kernel[(tiles, batch)](
            grad,
            hidden,
            second,
            grad_hidden,
            activated,
            sum_parts,
            points,
            dim,
            PRECISION=precision(hidden.dtype),
            BLOCK_P=BLOCK_POINTS,
            BLOCK_D=padded(dim),
            num_warps=8,
        )
        rows = grad_hidden.view(batch, points, dim)
        grad_second = gram(grad.view(1, -1, dim), activated.view(1, -1, dim)).squeeze(0)
        del activated
        raw = gram(rows, values.view(batch, points, heads * channels))
        grad_first, terms = normalization_terms(
            raw.view(batch, dim, heads, channels),
            sum_parts.sum(1),
            first.view(dim, heads, channels),
            statistics,
            1.0 / points if weights is None else 1.0,
        )
        grad_values = torch.empty_like(values)
        block = 128 if points >= 2**14 else 64
        _values_gradient_kernel[(triton.cdiv(points, block), batch)](
            grad_hidden,
            folded,
            values,
            terms,
            weights if weights is not None else values,
            grad_values,
            points,
            heads,
            channels,
            dim,
            HAS_WEIGHTS=weights is not None,
            PRECISION=precision(values.dtype),
            BLOCK_P=block,
            BLOCK_C=padded(channels),
            BLOCK_D=padded(dim),
            STAGES=3,
            num_warps=8 if block == 128 else 4,
        )
        return grad_values, None, grad_first.flatten(1), grad_second, grad, None


def normalization_terms(
    raw: Tensor, sums: Tensor, weight: Tensor, statistics: Tensor, measure: float
) -> tuple[Tensor, Tensor]:
    """Gradient of ``W`` in ``h = W ẑ``, and what gives ``∂z = ∂h (ρ W) + w (α + β z)``.

    ``raw = ∂hᵀ z`` is ``(batch, dim, group, channel)``, ``sums = Σ ∂h`` is ``(batch, dim)`` and ``statistics``
    holds ``μ, ρ`` as ``(batch, group, 2)``. Returns ``∂W`` summed over the batch and ``(α, β)`` times
    ``measure``.
    """
    mean, scale = statistics.unbind(-1)
    channels = raw.shape[-1]
    grad = (raw - sums[:, :, None, None] * mean[:, None, :, None]) * scale[:, None, :, None]
    along = (grad * weight).sum((1, 3))
    level = (sums[:, :, None] * weight.sum(-1)).sum(1)
    slope = -scale.square() * along * (measure / channels)
    offset = -scale * level * (measure / channels) - slope * mean
    return grad.sum(0), torch.stack([offset, slope], dim=-1)


def output(
    values: Tensor, statistics: Tensor, first: Tensor, second: Tensor, residual: Tensor, weights: Tensor | None
) -> Tensor:
    """``residual + W₂ gelu(W₁ ẑ)`` of values ``(batch, *grid, head, channel)``.

    ``weights`` are the quadrature weights of the points, flat, or ``None`` where they are equal.
    """
    result: Tensor = _Output.apply(values, statistics, first, second, residual, weights)
    return result
