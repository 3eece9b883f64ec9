"""Latent marching and decoder, block by block.

The marching is pointwise: a block takes all of its steps in the cache. The group norm of the decoder needs mean and
deviation over the domain, so that a second pass decodes. There the norm is a scale and a shift of each channel, and
the grouped layer a product with a matrix of blocks.

Reference implementation: `factformer.nn.marching.LatentMarching.plain`.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from factformer.grid import Grid
from factformer.kernels.blocked.products import are_plain, blocks, linear, mlp, weights
from factformer.nn.decoder import Decoder, GroupedLinear
from factformer.nn.marching import LatentMarching
from factformer.nn.masks import Mask
from factformer.nn.norms import DomainNorm, cached_domain_weights
from factformer.nn.patches import Patches


def fits(layer: LatentMarching, z: Tensor, num_steps: int, decoder: Decoder, *_: object) -> bool:
    force = () if layer.force is None else (layer.force,)
    if (
        type(decoder) is not Decoder
        or type(decoder.norm) is not DomainNorm
        or type(decoder.grouped) is not GroupedLinear
    ):
        return False
    return are_plain(layer.expand, layer.norm, layer.mlp, *force, decoder.narrow, decoder.project)


def run(
    layer: LatentMarching,
    z: Float[Tensor, "batch *grid dim"],
    num_steps: int,
    decoder: Decoder,
    grid: Grid,
    forcing: Float[Tensor, "batch step *grid forcing_channel"] | None = None,
    mask: Mask | None = None,
    patches: Patches | None = None,
    fine: Grid | None = None,
    *,
    dtype: torch.dtype,
) -> Float[Tensor, "batch step *fine_grid channel"]:
    shape, latent = z.shape[1:-1], layer.expand.out_features
    fields = z.new_empty(z.shape[0], num_steps, *shape, decoder.project.out_features, dtype=dtype)
    states = z.new_empty(num_steps, grid.num_points, latent, dtype=dtype)  # of one sample after the other
    shares = cached_domain_weights(decoder.norm.tables, grid, states, mask)
    for sample, field in enumerate(z.flatten(1, -2)):
        driven = None if forcing is None else forcing[sample].flatten(1, -2)
        march(layer, field, states, driven, dtype)
        inside = None if mask is None else mask[sample].flatten().unsqueeze(-1)
        share = shares if shares is None or mask is None else shares[sample]
        for state, out in zip(states, fields[sample].flatten(1, -2), strict=True):
            decode(decoder, state, out, None if share is None else share.flatten(), inside)
    return fields if patches is None or fine is None else patches.join(fields, fine)


def march(
    layer: LatentMarching,
    field: Float[Tensor, "point dim"],
    states: Float[Tensor, "step point latent"],
    forcing: Float[Tensor, "step point forcing_channel"] | None,
    dtype: torch.dtype,
) -> None:
    """Write the latent field after each step into ``states``."""
    expand, steps = weights(layer.expand, dtype), layer.steps.to(dtype)
    force = None if layer.force is None else weights(layer.force, dtype)
    for rows in blocks(len(field)):
        z = linear(field[rows].to(dtype), *expand)
        for step, state in enumerate(states):
            z = z.add_(steps[step])
            if force is not None and forcing is not None:
                z = z.add_(linear(forcing[step, rows].to(dtype), *force))
            z = z.add_(mlp(layer.norm(z).to(dtype), layer.mlp))
            state[rows] = z


def decode(
    decoder: Decoder,
    state: Float[Tensor, "point latent"],
    out: Float[Tensor, "point channel"],
    share: Float[Tensor, " point"] | None,
    inside: Tensor | None,
) -> None:
    """Write the fields of one latent field into ``out``."""
    scale, shift = scale_and_shift(decoder.norm, state, share, inside)
    scale, shift = scale.to(state.dtype), shift.to(state.dtype)
    grouped = torch.block_diag(*decoder.grouped.weight).t().contiguous().to(state.dtype)
    bias = decoder.grouped.bias.to(state.dtype)
    narrow, project = weights(decoder.narrow, state.dtype), weights(decoder.project, state.dtype)
    for rows in blocks(len(state)):
        block = state[rows]
        if inside is not None:
            block = block.masked_fill(~inside[rows], 0.0)
        hidden = linear(torch.addcmul(shift, block, scale), grouped, bias, "gelu")
        out[rows] = linear(linear(hidden, *narrow, "gelu"), *project)


def scale_and_shift(
    norm: DomainNorm,
    state: Float[Tensor, "point latent"],
    share: Float[Tensor, " point"] | None,
    inside: Tensor | None,
) -> tuple[Float[Tensor, " latent"], Float[Tensor, " latent"]]:
    """What the group norm multiplies each channel by and adds, from means over the domain and over each group."""

    def over_group(channels: Float[Tensor, " latent"]) -> Float[Tensor, " latent"]:
        means = channels.unflatten(0, (norm.num_groups, -1)).mean(-1, keepdim=True)
        spread: Tensor = means.expand(-1, len(channels) // norm.num_groups)
        return spread.flatten()

    sums = torch.zeros(2, state.shape[1], dtype=torch.float64)
    mean = sums.new_zeros(()).float()
    for moment in (0, 1):  # the mean first, then the squares of what is left
        for rows in blocks(len(state)):
            block = state[rows].float()
            if inside is not None:
                block = block.masked_fill(~inside[rows], 0.0)
            if moment:
                block = (block - mean).square_()
            sums[moment] += block.sum(0) if share is None else share[rows] @ block
        if moment == 0:
            mean = over_group(sums[0] / (len(state) if share is None else 1)).float()
    variance = over_group(sums[1] / (len(state) if share is None else 1)).float()
    scale = norm.weight * (variance + norm.eps).rsqrt()
    return scale, norm.bias - mean * scale
