"""Latent marching: a pointwise network carries the latent field forward frame by frame (paper §3.3)."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from factformer.grid import Grid
from factformer.nn.decoder import Decoder
from factformer.nn.masks import Mask
from factformer.nn.mlp import MLP
from factformer.nn.patches import Patches
from factformer.nn.stage import Stage


class LatentMarching(Stage):
    """``z ← expand(z)``; then per step ``z ← z + e_t + F f_t``, ``z ← z + MLP(LayerNorm(z))``.

    ``f_t`` is the forcing of the frame that step ``t`` makes, in a problem that has any.
    """

    def __init__(
        self, dim_in: int, dim_hidden: int, dim_latent: int, num_steps: int, num_forcing_channels: int = 0
    ) -> None:
        super().__init__()
        self.expand = nn.Linear(dim_in, dim_latent)
        self.steps = nn.Parameter(torch.randn(num_steps, dim_latent) * 0.02)
        self.norm = nn.LayerNorm(dim_latent)
        self.mlp = MLP(dim_latent, dim_hidden, dim_latent)
        self.force = nn.Linear(num_forcing_channels, dim_latent, bias=False) if num_forcing_channels else None

    def forward(
        self,
        z: Float[Tensor, "batch *grid dim"],
        num_steps: int,
        forcing: Float[Tensor, "batch step *grid forcing_channel"] | None = None,
    ) -> Float[Tensor, "batch step *grid latent"]:
        """The latent fields after 1, …, ``num_steps`` steps, under normalised ``forcing``."""
        z = self.expand(z)
        states = []
        for step in range(num_steps):
            z = z + self.steps[step].to(z.dtype)
            if self.force is not None and forcing is not None:
                z = z + self.force(forcing[:, step])
            z = z + self.mlp(self.norm(z))
            states.append(z)
        return torch.stack(states, dim=1)

    def decoded(
        self,
        z: Float[Tensor, "batch *grid dim"],
        num_steps: int,
        decoder: Decoder,
        grid: Grid,
        forcing: Float[Tensor, "batch step *grid forcing_channel"] | None = None,
        mask: Mask | None = None,
        patches: Patches | None = None,
        fine: Grid | None = None,
    ) -> Float[Tensor, "batch step *fine_grid channel"]:
        """The fields that ``decoder`` makes of the latent fields: marching and decoder as one stage.

        With ``patches`` they are joined to fields on the grid ``fine``, whose patches are the points of ``grid``.
        """
        of_patches = () if patches is None else (patches, fine)
        fields: Tensor = self.execute(z, num_steps, decoder, grid, forcing, mask, *of_patches)
        return fields

    def plain(
        self,
        z: Tensor,
        num_steps: int,
        decoder: Decoder,
        grid: Grid,
        forcing: Tensor | None,
        mask: Mask | None,
        patches: Patches | None = None,
        fine: Grid | None = None,
    ) -> Tensor:
        states = self(z, num_steps, forcing)
        every = None if mask is None else mask.repeat_interleave(num_steps, 0)
        fields: Tensor = decoder(states.flatten(0, 1), grid, every).unflatten(0, (z.shape[0], num_steps))
        return fields if patches is None or fine is None else patches.join(fields, fine)
