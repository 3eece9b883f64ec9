"""Latent marching and decoder as one differentiable function on the fused kernels.

Kept for the backward pass: the latent field that comes in, the states, and the statistics of the norms.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from factformer.grid import Grid
from factformer.kernels._triton.arithmetic import rows_of
from factformer.kernels._triton.domain import masked_domain
from factformer.kernels._triton.in_place import Places, places_of
from factformer.kernels._triton.limits import within_limits
from factformer.kernels._triton.normalized_weights import fold_grouped
from factformer.kernels._triton.products import gram
from factformer.kernels._triton.weights import working
from factformer.kernels.march_decode.decoder_backward import decode_backward
from factformer.kernels.march_decode.decoder_forward import Layers, decode
from factformer.kernels.march_decode.group_norm_backward import group_norm_backward
from factformer.kernels.march_decode.marching_backward import march_backward
from factformer.kernels.march_decode.marching_forward import march
from factformer.kernels.march_decode.marching_weights_backward import march_weights_backward
from factformer.kernels.march_decode.network import Forcing, Network, Weights
from factformer.nn.norms import cached_domain_weights

if TYPE_CHECKING:
    from factformer.nn.decoder import Decoder
    from factformer.nn.marching import LatentMarching
    from factformer.nn.patches import Patches


class Parameters(NamedTuple):
    """All parameters of marching and decoder, and their gradients in the same order."""

    expand: Tensor
    expand_bias: Tensor
    steps: Tensor
    gain: Tensor
    bias: Tensor
    first: Tensor
    first_bias: Tensor
    second: Tensor
    second_bias: Tensor
    group_gain: Tensor
    group_shift: Tensor
    grouped: Tensor
    grouped_bias: Tensor
    narrow: Tensor
    narrow_bias: Tensor
    project: Tensor
    project_bias: Tensor

    @classmethod
    def of(cls, marching: LatentMarching, decoder: Decoder) -> Parameters:
        first: Any = marching.mlp[0]
        second: Any = marching.mlp[2]
        return cls(
            marching.expand.weight,
            marching.expand.bias,
            marching.steps,
            marching.norm.weight,
            marching.norm.bias,
            first.weight,
            first.bias,
            second.weight,
            second.bias,
            decoder.norm.weight,
            decoder.norm.bias,
            decoder.grouped.weight,
            decoder.grouped.bias,
            decoder.narrow.weight,
            decoder.narrow.bias,
            decoder.project.weight,
            decoder.project.bias,
        )

    @property
    def weights(self) -> Weights:
        """Those of the marching network."""
        return Weights(*self[2:9])

    def layers(self, statistics: Tensor, dtype: torch.dtype) -> Layers:
        affine = (self.group_gain, self.group_shift, self.grouped_bias)
        folded, constant = fold_grouped(self.grouped, statistics, dtype, affine)
        others = (working(self.narrow, dtype), self.narrow_bias, self.project, self.project_bias)
        return Layers(folded, constant, *others, self.grouped.shape[0])


def march_and_decode(
    marching: LatentMarching,
    decoder: Decoder,
    field: Tensor,
    num_steps: int,
    grid: Grid,
    forcing: Tensor | None,
    mask: Tensor | None,
    dtype: torch.dtype,
    patches: Patches | None = None,
    fine: Grid | None = None,
) -> Tensor:
    """Fields ``(batch, step, *grid, channel)`` in float32 of a latent field ``(batch, *grid, dim)``.

    With a mask the group norm is that over the domain; what lies outside means nothing and must be finite. With
    ``patches`` the fields are on the ``fine`` grid.
    """
    norm = decoder.norm
    if mask is None:
        weights = cached_domain_weights(norm.tables, grid, norm.weight)
    else:
        weights = masked_domain(mask).weights(norm.tables, grid)
    flat = field.to(dtype).flatten(1, -2)
    parameters = Parameters.of(marching, decoder)
    matrix = None
    if forcing is not None and marching.force is not None:
        forcing, matrix = forcing[:, :num_steps].flatten(2, -2), marching.force.weight
    num_fields = decoder.project.out_features // (1 if patches is None else patches.size)
    places = places_of(patches, fine, num_fields, field)
    fields: Tensor = _MarchDecode.apply(
        flat, num_steps, weights, marching.norm.eps, norm.eps, forcing, matrix, places, *parameters
    )
    if patches is None or fine is None:
        result: Tensor = fields.unflatten(2, grid.shape)
    elif places is None:
        result = patches.join(fields.unflatten(2, grid.shape), fine)
    else:
        result = fields.view(*fields.shape[:2], *fine.shape, num_fields)
    return result


@within_limits
class _MarchDecode(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        field: Tensor,
        num_steps: int,
        weights: Tensor | None,
        eps: float,
        group_eps: float,
        forcing: Tensor | None,
        matrix: Tensor | None,
        places: Places | None,
        *tensors: Tensor,
    ) -> Tensor:
        parameters, dtype, field = Parameters(*tensors), field.dtype, rows_of(field)
        batch, points, width = field.shape
        latent = parameters.expand.shape[0]
        states = field.new_empty(1 + num_steps, batch, points, latent)
        with torch.autocast(field.device.type, enabled=False):
            torch.addmm(
                parameters.expand_bias.to(dtype),
                field.view(-1, width),
                parameters.expand.to(dtype).t(),
                out=states[0].view(-1, latent),
            )
            network = Network.fold(parameters.weights, num_steps, eps, dtype)
            driven = None if forcing is None or matrix is None else Forcing.on(forcing, matrix, dtype)
            rows, statistics = march(states, network, weights, parameters.grouped.shape[0], group_eps, driven)
            layers = parameters.layers(statistics, dtype)
            fields = decode(states, layers, places)
        ctx.save_for_backward(field, states, rows, statistics, weights, *(driven or [None] * 3), *tensors)
        ctx.network, ctx.layers, ctx.places = network, layers, places
        return fields

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        field, states, rows, statistics, weights, *rest = ctx.saved_tensors
        forcing, tensors = None if rest[0] is None else Forcing(*rest[:3]), rest[3:]
        parameters, (network, layers) = Parameters(*tensors), (ctx.network, ctx.layers)
        with torch.autocast(field.device.type, enabled=False):
            decoded = decode_backward(rows_of(grad.float()), states, layers, ctx.places)
            normed = group_norm_backward(
                decoded.raw,
                statistics,
                parameters.grouped,
                parameters.group_gain,
                parameters.group_shift,
                1.0 / states.shape[2] if weights is None else 1.0,
            )
            marched = march_backward(
                states, rows, network, decoded.hidden, layers.first, normed.terms, weights, layers.num_groups, forcing
            )
            seen = states if forcing is None else forcing.states
            of_weights = march_weights_backward(seen, rows, marched, network, parameters.weights)
            grad_forcing = grad_matrix = None
            if forcing is not None and marched.entering is not None:
                entering = marched.entering.flatten(0, 2)
                grad_matrix = gram(entering[None], forcing.fields.flatten(0, 2)[None]).squeeze(0)
                if ctx.needs_input_grad[5]:
                    grad_forcing = (entering @ forcing.matrix).view_as(forcing.fields).transpose(0, 1).float()
            grad_start = marched.states[0].flatten(0, 1)
            grad_field = (grad_start @ parameters.expand.to(states.dtype)).view_as(field)
            grad_expand = gram(grad_start[None], field.view(1, -1, field.shape[-1])).squeeze(0)
        grads = Parameters(
            grad_expand,
            of_weights.steps[0],
            *of_weights,
            normed.gain,
            normed.shift,
            normed.grouped,
            normed.bias,
            decoded.second,
            decoded.second_bias,
            decoded.third,
            decoded.third_bias,
        )
        return grad_field, None, None, None, None, grad_forcing, grad_matrix, None, *grads
