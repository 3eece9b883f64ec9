"""Latent field to fields: group norm and three pointwise layers, the first one grouped."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from factformer.errors import UserError
from factformer.grid import Grid
from factformer.nn.masks import Mask
from factformer.nn.norms import DomainNorm


class GroupedLinear(nn.Module):
    """A pointwise convolution in groups: each group of outputs sees its own group of inputs."""

    def __init__(self, num_groups: int, dim_in: int, dim_out: int) -> None:
        super().__init__()
        if dim_in % num_groups or dim_out % num_groups:
            raise UserError(f"{dim_in} and {dim_out} channels do not divide into {num_groups} groups")
        bound = 1 / math.sqrt(dim_in // num_groups)
        self.weight = nn.Parameter(
            torch.empty(num_groups, dim_in // num_groups, dim_out // num_groups).uniform_(-bound, bound)
        )
        self.bias = nn.Parameter(torch.empty(dim_out).uniform_(-bound, bound))

    def forward(self, x: Float[Tensor, "*batch dim_in"]) -> Float[Tensor, "*batch dim_out"]:
        grouped = x.unflatten(-1, (self.weight.shape[0], -1))
        return torch.einsum("...gi,gio->...go", grouped, self.weight).flatten(-2) + self.bias


class Decoder(nn.Module):
    """Group norm – grouped 1×1 – GELU – 1×1 – GELU – 1×1."""

    num_groups = 8

    def __init__(self, dim_latent: int, dim: int, num_channels: int) -> None:
        super().__init__()
        self.norm = DomainNorm(self.num_groups, dim_latent)
        self.grouped = GroupedLinear(self.num_groups, dim_latent, dim)
        self.narrow = nn.Linear(dim, dim // 2)
        self.project = nn.Linear(dim // 2, num_channels)

    def forward(
        self, z: Float[Tensor, "batch *grid latent"], grid: Grid, mask: Mask | None = None
    ) -> Float[Tensor, "batch *grid channel"]:
        z = functional.gelu(self.grouped(self.norm(z, grid, mask)))
        fields: Tensor = self.project(functional.gelu(self.narrow(z)))
        return fields
