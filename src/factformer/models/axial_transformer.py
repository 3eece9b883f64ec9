"""Axial Transformer (Ho et al. 2020, arXiv:1912.12180): softmax attention along one axis per layer, in turn.

z ← z + Attention_m( z ),   z ← z + MLP( LayerNorm(z) ),       m = layer mod number of axes
"""

from __future__ import annotations

from typing import Literal

from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn

from factformer.grid import Grid
from factformer.models._positions import PositionedBackbone, PositionsConfig
from factformer.nn.attention.axial import AxialAttention
from factformer.nn.attention.rotary import Rotary
from factformer.nn.conditions import UNCONDITIONED, Conditions
from factformer.nn.mlp import MLP
from factformer.problem import Problem


class Config(PositionsConfig):
    name: Literal["axial_transformer"] = "axial_transformer"
    depth: int = Field(6, ge=1, le=1024)
    """Number of layers; each attends along one axis: a multiple of the number of axes treats them alike."""
    heads: int = Field(8, ge=1, le=1024)
    head_dim: int = Field(16, ge=2, le=4096)
    """Channels of queries, keys and values per head."""
    feed_forward: int = Field(4, ge=1, le=256)
    """Width of the feed-forward network over ``dim``."""
    rotary: Rotary = "paper"
    rotary_scale: float = Field(64.0, gt=0, le=1e6)


class Layer(nn.Module):
    """Attention along one axis and a feed-forward network, each with its residual."""

    def __init__(self, config: Config, m: int) -> None:
        super().__init__()
        self.attention = AxialAttention(
            m, config.dim, config.heads, config.head_dim, config.rotary, config.rotary_scale
        )
        self.norm = nn.LayerNorm(config.dim)
        self.mlp = MLP(config.dim, config.feed_forward * config.dim, config.dim)

    def forward(
        self, z: Float[Tensor, "batch *grid dim"], grid: Grid, conditions: Conditions = UNCONDITIONED
    ) -> Float[Tensor, "batch *grid dim"]:
        z = z + self.attention(z, grid, conditions.mask)
        result: Tensor = z + self.mlp(self.norm(z))
        return result


class Model(PositionedBackbone):
    config_class = Config
    wants_boundary_block = True
    one_axis_per_layer = True

    def __init__(self, config: Config, problem: Problem) -> None:
        super().__init__(config, problem)
        num_axes = problem.grid.num_axes
        self.layers = nn.ModuleList(self.modulated(Layer(config, depth % num_axes)) for depth in range(config.depth))

    def forward(
        self, z: Float[Tensor, "batch *grid dim"], grid: Grid, conditions: Conditions = UNCONDITIONED
    ) -> Float[Tensor, "batch *grid dim"]:
        return self.run_all(self.layers, self.placed(z, grid), grid, conditions)
