"""Transolver (Wu et al., ICML 2024, arXiv:2402.02366): attention among learned slices of the domain.

    z ← z + Att( LayerNorm(z) ),   z ← z + W₂ σ( W₁ LayerNorm(z) )       per layer, Att of `nn.attention.physics`

Defaults are those of the released scripts for Darcy flow: 128 channels, 8 layers, 8 heads, 64 slices, a feed-forward
network as wide as the field. For Navier-Stokes they have 256 channels and 32 slices, for grids of three axes 32 slices.
Where a point lies is told by Fourier features ψ, as to our other Transformers; the released model is told its distances
from 8ⁿ reference points.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Literal

from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn

from factformer.grid import Grid
from factformer.models._positions import PositionedBackbone, PositionsConfig
from factformer.nn.attention.physics import PhysicsAttention
from factformer.nn.conditions import UNCONDITIONED, Conditions
from factformer.nn.mlp import MLP
from factformer.problem import Problem


class Config(PositionsConfig):
    name: Literal["transolver"] = "transolver"
    depth: int = Field(8, ge=1, le=1024)
    heads: int = Field(8, ge=1, le=1024)
    head_dim: int = Field(16, ge=1, le=4096)
    """Channels of a head; as published, heads times these are ``dim``."""
    num_slices: int | None = Field(None, ge=1, le=65536)
    """Slices of a head; by default 64 in one and two dimensions and 32 above."""
    feed_forward: int = Field(1, ge=1, le=256)
    """Width of the feed-forward network over ``dim``."""
    kernel_size: int = Field(3, ge=1, le=255)
    """Points along an axis that decide to which slices a point belongs; 1 for the version without a grid."""


class Layer(nn.Module):
    """Physics attention and a feed-forward network, each with its norm and residual."""

    def __init__(self, config: Config, problem: Problem) -> None:
        super().__init__()
        num_slices = config.num_slices or (64 if problem.grid.num_axes <= 2 else 32)
        self.norm = nn.LayerNorm(config.dim)
        self.attention = PhysicsAttention(
            problem.padding, config.dim, config.heads, config.head_dim, num_slices, config.kernel_size, problem.grid
        )
        self.mlp_norm = nn.LayerNorm(config.dim)
        self.mlp = MLP(config.dim, config.feed_forward * config.dim, config.dim)

    def forward(
        self, z: Float[Tensor, "batch *grid dim"], grid: Grid, conditions: Conditions = UNCONDITIONED
    ) -> Float[Tensor, "batch *grid dim"]:
        z = z + self.attention(self.norm(z), grid, conditions.mask)
        result: Tensor = z + self.mlp(self.mlp_norm(z))
        return result


class Model(PositionedBackbone):
    config_class = Config
    wants_boundary_block = False
    recipe_sizes = MappingProxyType({"small": {"dim": 48, "depth": 3, "heads": 4, "num_slices": 32}, "paper": {}})
    default_training = MappingProxyType({scale: {"learning_rate": 1e-3} for scale in ("paper", "short", "long")})

    def __init__(self, config: Config, problem: Problem) -> None:
        super().__init__(config, problem)
        self.layers = nn.ModuleList(self.modulated(Layer(config, problem)) for _ in range(config.depth))

    def forward(
        self, z: Float[Tensor, "batch *grid dim"], grid: Grid, conditions: Conditions = UNCONDITIONED
    ) -> Float[Tensor, "batch *grid dim"]:
        return self.run_all(self.layers, self.placed(z, grid), grid, conditions)
