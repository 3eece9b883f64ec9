# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Head normalisation, output network and residual add in one pass.

    out = s + χ W₂ gelu( W₁ ẑ ),     ẑ = (z - μ_h) ρ_h

χ is one, or with a mask zero outside the domain.

The mean and deviation of each head come from the last contraction. In the backward pass the two sums over the
domain that the normalisation needs are contractions of quantities that the weight gradient holds anyway:
``Σ ∂ẑ = (Σ ∂h) · W₁`` and ``Σ ∂ẑ·ẑ = ⟨∂W₁, W₁⟩`` of each sample and head, so no extra pass is made for them.
Reference implementation: `factformer.nn.norms.domain_normalize` and `factformer.nn.mlp.MLP`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable

from factformer.kernels._triton.arithmetic import padded, precision, rows_of
from factformer.kernels._triton.geometry import shares
from factformer.kernels._triton.launching import launch
from factformer.kernels._triton.limits import chosen, within_limits
from factformer.kernels._triton.normalized_weights import fold
from factformer.kernels._triton.products import gram_parts
from factformer.kernels._triton.tiles import can_move, moved
from factformer.kernels._triton.weights import working
from factformer.kernels.attention.output_kernels import (
    Tiles,
    head_terms_kernel,
    hidden_gradient_kernel,
    output_kernel,
    values_gradient_kernel,
)


class OutputTiling(NamedTuple):
    """Points at a time, warps, pipeline stages, registers per thread."""

    points: int
    warps: int
    stages: int
    registers: int | None = None


def output_tiling(points: int) -> OutputTiling:
    return chosen(OutputTiling(128, 4, 3), OutputTiling(64, 4, 3))


def hidden_tiling(points: int) -> OutputTiling:
    return chosen(OutputTiling(64, 8, 3), OutputTiling(32, 8, 2))


def values_tiling(points: int) -> OutputTiling:
    return OutputTiling(64, 4, 4)


@within_limits
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
        domain: Tensor | None,
    ) -> Tensor:
        batch, dim = residual.shape[0], residual.shape[-1]
        heads, channels = values.shape[-2:]
        points = residual[0, ..., 0].numel()
        residual = rows_of(residual)
        second = working(second, values.dtype)
        folded, constant = fold(first, statistics, values.dtype)
        result = torch.empty_like(residual)
        save = any(ctx.needs_input_grad)
        hidden = torch.empty_like(residual) if save else result
        width = heads * channels
        cut, block_d, block_c = output_tiling(points), padded(dim), min(padded(width), 64)
        described = can_move(values.view(batch, points, width), folded, residual)
        launch(
            output_kernel,
            (triton.cdiv(points, cut.points), batch),
            moved(values.view(batch, points, width), batch, cut.points, block_c, described),
            moved(folded, batch, block_d, block_c, described),
            constant,
            moved(second, 1, block_d, block_d, described),
            moved(residual, batch, cut.points, block_d, described),
            moved(result, batch, cut.points, block_d, described),
            moved(hidden, batch, cut.points, block_d, described),
            domain,
            points,
            width,
            dim,
            SAVE=save,
            MASKED=domain is not None,
            S=_tiles(cut, values.dtype, described, block_d, block_c),
            num_warps=cut.warps,
            maxnreg=cut.registers,
        )
        ctx.save_for_backward(values, statistics, first, second, hidden, weights, folded, domain)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        values, statistics, first, second, hidden, weights, folded, domain = ctx.saved_tensors
        batch, dim = hidden.shape[0], hidden.shape[-1]
        heads, channels = values.shape[-2:]
        points = hidden[0, ..., 0].numel()
        grad = rows_of(grad)
        flat = values.view(batch, points, heads * channels)
        block_d, described = padded(dim), can_move(grad, hidden)
        cut = hidden_tiling(points)
        tiles = triton.cdiv(points, cut.points)
        per_program = shares(tiles, batch, 1, 3)
        number = triton.cdiv(tiles, per_program)
        grad_hidden = torch.empty_like(hidden)
        sum_parts = hidden.new_empty(batch, number, dim, dtype=torch.float32)
        second_parts = hidden.new_empty(batch * number, dim, dim, dtype=torch.float32)
        launch(
            hidden_gradient_kernel,
            (number, batch),
            moved(grad, batch, cut.points, block_d, described),
            moved(hidden, batch, cut.points, block_d, described),
            moved(second, 1, block_d, block_d, described),
            moved(grad_hidden, batch, cut.points, block_d, described),
            second_parts,
            sum_parts,
            domain,
            points,
            dim,
            per_program,
            MASKED=domain is not None,
            S=_tiles(cut, hidden.dtype, described, block_d),
            num_warps=cut.warps,
        )
        raw_parts = gram_parts(grad_hidden.view(batch, points, dim), flat)
        grad_firsts = torch.empty_like(raw_parts[:, 0])
        terms = torch.empty_like(statistics)
        launch(
            head_terms_kernel,
            (heads, batch),
            raw_parts,
            sum_parts,
            first,
            statistics,
            grad_firsts,
            terms,
            raw_parts.shape[1],
            number,
            dim,
            heads,
            channels,
            (1.0 / points if weights is None else 1.0) / channels,
            BLOCK_D=block_d,
            BLOCK_C=padded(channels),
            num_warps=8,
        )
        grad_values = torch.empty_like(values)
        cut, block_c = values_tiling(points), padded(channels)
        described = described and block_c == channels and can_move(flat)
        launch(
            values_gradient_kernel,
            (triton.cdiv(points, cut.points), batch),
            moved(grad_hidden, batch, cut.points, block_d, described),
            moved(folded, batch, block_d, block_c, described),
            moved(flat, batch, cut.points, block_c, described),
            terms,
            weights if weights is not None else values,
            moved(grad_values.view_as(flat), batch, cut.points, block_c, described),
            points,
            heads,
            channels,
            dim,
            HAS_WEIGHTS=weights is not None,
            OF_SAMPLES=weights is not None and weights.numel() > points,
            S=_tiles(cut, values.dtype, described, block_d, block_c),
            num_warps=cut.warps,
        )
        grad_second = second_parts.sum(0)
        return grad_values, None, grad_firsts.sum(0), grad_second, grad, None, None


def _tiles(cut: OutputTiling, dtype: torch.dtype, described: bool, block_d: int, block_c: int = 0) -> Tiles:
    return Tiles(
        DESCRIBED=described,
        PRECISION=precision(dtype),
        BLOCK_P=cut.points,
        BLOCK_D=block_d,
        BLOCK_C=block_c,
        STAGES=cut.stages,
    )


def output(
    values: Tensor,
    statistics: Tensor,
    first: Tensor,
    second: Tensor,
    residual: Tensor,
    weights: Tensor | None,
    domain: Tensor | None = None,
) -> Tensor:
    """``residual + χ W₂ gelu(W₁ ẑ)`` of values ``(batch, *grid, head, channel)``.

    ``weights`` are the quadrature weights of the points, flat, or ``None`` where they are equal; with a ``domain`` of
    bytes, those of the points of every sample.
    """
    result: Tensor = _Output.apply(values, statistics, first, second, residual, weights, domain)
    return result
