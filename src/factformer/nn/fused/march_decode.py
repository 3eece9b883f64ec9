"""Latent marching and decoder as one differentiable function on the fused kernels.

Kept for the backward pass: the latent field that comes in and the states, nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from factformer.grid import Grid
from factformer.nn.fused._common import rows_of
from factformer.nn.fused.decoder import decode, decode_backward
from factformer.nn.fused.fold import fold
from factformer.nn.fused.gram import gram
from factformer.nn.fused.marching import Network, march
from factformer.nn.fused.marching_gradient import march_backward
from factformer.nn.fused.output import normalization_terms
from factformer.nn.norms import cached_domain_weights

if TYPE_CHECKING:
    from factformer.nn.decoder import Decoder
    from factformer.nn.marching import LatentMarching


def march_and_decode(
    marching: LatentMarching, decoder: Decoder, field: Tensor, num_steps: int, grid: Grid, dtype: torch.dtype
) -> Tensor:
    """Fields ``(batch, step, *grid, channel)`` in float32 of a latent field ``(batch, *grid, dim)``."""
    norm = decoder.norm
    weights = cached_domain_weights(norm.tables, grid, norm.weight)
    parameters = (
        marching.expand.weight,
        marching.expand.bias,
        marching.steps,
        marching.norm.weight,
        marching.norm.bias,
        marching.mlp[0].weight,
        marching.mlp[0].bias,
        marching.mlp[2].weight,
        marching.mlp[2].bias,
        norm.weight,
        norm.bias,
        decoder.grouped.weight,
        decoder.grouped.bias,
        decoder.narrow.weight,
        decoder.narrow.bias,
        decoder.project.weight,
        decoder.project.bias,
    )
    flat = field.to(dtype).flatten(1, -2)
    fields: Tensor = _MarchDecode.apply(flat, num_steps, weights, marching.norm.eps, norm.eps, *parameters)
    result: Tensor = fields.unflatten(2, grid.shape)
    return result


def _expand(field: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    with torch.autocast(field.device.type, enabled=False):
        return torch.nn.functional.linear(field, weight.to(field.dtype), bias.to(field.dtype))


def _dense(grouped: Tensor) -> Tensor:
    """A grouped matrix ``(group, in, out)`` as one of ``(out, in)`` with zeros between groups."""
    eye = torch.eye(grouped.shape[0], dtype=grouped.dtype, device=grouped.device)
    blocks = eye[:, None, :, None] * grouped.transpose(1, 2)[:, :, None, :]
    return blocks.flatten(2).flatten(0, 1)


class _MarchDecode(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        field: Tensor,
        num_steps: int,
        weights: Tensor | None,
        eps: float,
        group_eps: float,
        *parameters: Tensor,
    ) -> Tensor:
        dtype = field.dtype
        field = rows_of(field)
        (
            expand,
            expand_bias,
            steps,
            gain,
            bias,
            first,
            first_bias,
            second,
            second_bias,
            group_gain,
            group_bias,
            grouped,
            grouped_bias,
            narrow,
            narrow_bias,
            project,
            project_bias,
        ) = parameters
        network = Network.fold(steps[:num_steps], (gain, bias, eps), (first, first_bias, second, second_bias), dtype)
        states, statistics = march(_expand(field, expand, expand_bias), network, weights, grouped.shape[0], group_eps)
        folded = fold(_dense(grouped), statistics.flatten(0, 1), dtype, (group_gain, group_bias, grouped_bias))
        layers = (*folded, narrow.to(dtype), narrow_bias, project.to(dtype), project_bias)
        fields = decode(states.flatten(0, 1), layers)
        ctx.save_for_backward(field, states, statistics, weights, *parameters)
        ctx.eps = eps
        result: Tensor = fields.unflatten(0, (field.shape[0], num_steps))
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        field, states, statistics, weights, *parameters = ctx.saved_tensors
        with torch.autocast(field.device.type, enabled=False):
            grads = _backward(rows_of(grad.float()), field, states, statistics, weights, ctx.eps, parameters)
        return grads[0], None, None, None, None, *grads[1:]


def _backward(
    grad: Tensor,
    field: Tensor,
    states: Tensor,
    statistics: Tensor,
    weights: Tensor | None,
    eps: float,
    parameters: list[Tensor],
) -> list[Tensor]:
    (
        expand,
        expand_bias,
        steps,
        gain,
        bias,
        first,
        first_bias,
        second,
        second_bias,
        group_gain,
        group_bias,
        grouped,
        grouped_bias,
        narrow,
        narrow_bias,
        project,
        project_bias,
    ) = parameters
    dtype, (batch, num_steps, points, latent) = states.dtype, states.shape
    groups, hidden = grouped.shape[0], first.shape[0]
    network = Network.fold(steps[:num_steps], (gain, bias, eps), (first, first_bias, second, second_bias), dtype)
    dense = _dense(grouped)
    folded = fold(dense, statistics.flatten(0, 1), dtype, (group_gain, group_bias, grouped_bias))
    layers = (*folded, narrow.to(dtype), narrow_bias, project.to(dtype), project_bias)

    flat = states.flatten(0, 1)
    grad_decoded, sums, grad_narrow, grad_narrow_bias, grad_project, grad_project_bias = decode_backward(
        grad.flatten(0, 1), flat, layers
    )
    raw = gram(grad_decoded, flat)
    effective = (dense * group_gain).unflatten(1, (groups, -1))
    grad_effective, terms = normalization_terms(
        raw.unflatten(2, (groups, -1)),
        sums,
        effective,
        statistics.flatten(0, 1),
        1.0 / points if weights is None else 1.0,
    )
    grad_effective, sums = grad_effective.flatten(1), sums.sum(0)
    grad_dense = grad_effective * group_gain + sums[:, None] * group_bias
    grad_group_gain = (grad_effective * dense).sum(0)
    grad_group_bias = (sums[:, None] * dense).sum(0)
    blocks = grad_dense.view(groups, -1, groups, latent // groups).diagonal(dim1=0, dim2=2)
    grad_grouped = blocks.permute(2, 1, 0)

    scaled = folded[0].unflatten(0, (batch, num_steps))
    terms = (
        terms.transpose(1, 2).repeat_interleave(latent // groups, dim=2).unflatten(0, (batch, num_steps)).contiguous()
    )
    grad_decoded = grad_decoded.unflatten(0, (batch, num_steps))
    start = _expand(field, expand, expand_bias)
    carry, grad_result = torch.empty_like(start), torch.empty_like(start)
    activated, grad_hidden = start.new_empty(2, batch, points, hidden).unbind(0)
    row_statistics = start.new_empty(batch, points, 4, dtype=torch.float32)
    grad_steps = torch.zeros_like(steps)
    grad_first, grad_second = torch.zeros_like(first), torch.zeros_like(second)
    others = []
    for step in reversed(range(num_steps)):
        total = march_backward(
            step,
            states,
            start,
            network,
            grad_decoded,
            scaled,
            terms,
            weights,
            (carry, grad_result, activated, grad_hidden, row_statistics),
        )
        others.append(total)
        grad_steps[step] = total[latent : 2 * latent]
        grad_second += gram(grad_result, activated).sum(0)
        source = states[:, step - 1] if step else start
        grad_first += gram(grad_hidden, source, shift=steps[step], row_statistics=row_statistics).sum(0)
    total = torch.stack(others).sum(0)
    grad_second_bias, _, grad_first_bias = total.split([latent, latent, hidden])
    # So far of W₁ on the unscaled normalised state; its product with W₁ is the gradient of the LayerNorm's gain.
    grad_gain = (grad_first * first).sum(0)
    grad_bias = (grad_first_bias[:, None] * first).sum(0)
    grad_first = grad_first * gain + grad_first_bias[:, None] * bias
    grad_field = (carry.flatten(0, 1) @ expand.to(dtype)).view_as(field)
    grad_expand = gram(carry, field).sum(0)
    return [
        grad_field,
        grad_expand,
        grad_steps[0],
        grad_steps,
        grad_gain,
        grad_bias,
        grad_first,
        grad_first_bias,
        grad_second,
        grad_second_bias,
        grad_group_gain,
        grad_group_bias,
        grad_grouped,
        sums,
        grad_narrow,
        grad_narrow_bias,
        grad_project,
        grad_project_bias,
    ]
