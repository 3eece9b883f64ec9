"""Galerkin Transformer (Cao 2021, arXiv:2105.14995): linear attention on a coarse grid between two CNNs.

    c = CNN_down(z);   c ← c + Att(c),  c ← c + MLP(c)  per layer;   z ← z + W CNN_up(c)

The coarse grid has the same number of points whatever the resolution of the input, so the convolutions
always see the same spacing; what lies between the grids is averaging and linear interpolation in physical
coordinates. With a mask both take the points inside alone, and a coarse point is inside where any of those is that it
is the average of.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from factformer.grid import Grid
from factformer.models._backbone import Backbone, ModelConfig
from factformer.nn.attention.galerkin import GalerkinAttention
from factformer.nn.conditions import UNCONDITIONED, Conditions
from factformer.nn.convolution import Convolution
from factformer.nn.grid_tables import TableCache
from factformer.nn.masks import Mask, inside, ratio
from factformer.nn.mlp import MLP
from factformer.nn.resample import apply_matrices, interpolation_matrix, restriction_matrix
from factformer.problem import Problem

SMALLEST_AXIS = 8
"""An axis is not made coarser than this."""


class Config(ModelConfig):
    name: Literal["galerkin_transformer"] = "galerkin_transformer"
    heads: int = Field(4, ge=1, le=1024)
    head_dim: int = Field(32, ge=1, le=4096)
    """Channels of queries, keys and values per head."""
    coarsening: int = Field(4, ge=1, le=1024)
    """How much fewer points the attention sees along each axis than the problem's grid has."""
    feed_forward: int = Field(2, ge=1, le=256)
    """Width of the feed-forward network over ``dim``."""


class Layer(nn.Module):
    """Galerkin attention and a feed-forward network, each with its residual."""

    def __init__(self, config: Config, num_axes: int) -> None:
        super().__init__()
        self.attention = GalerkinAttention(num_axes, config.dim, config.heads, config.head_dim)
        self.mlp = MLP(config.dim, config.feed_forward * config.dim, config.dim)

    def forward(
        self, c: Float[Tensor, "batch *grid dim"], grid: Grid, conditions: Conditions = UNCONDITIONED
    ) -> Float[Tensor, "batch *grid dim"]:
        c = c + self.attention(c, grid, conditions.mask)
        result: Tensor = c + self.mlp(c)
        return result


class Model(Backbone):
    config_class = Config

    def __init__(self, config: Config, problem: Problem) -> None:
        super().__init__(config, problem)
        self.shapes = [_coarse_shape(problem.grid, factor) for factor in (config.coarsening / 2, config.coarsening)]
        self.down = nn.ModuleList(Convolution(problem.padding, config.dim, config.dim) for _ in range(2))
        self.layers = nn.ModuleList(self.modulated(Layer(config, problem.grid.num_axes)) for _ in range(config.depth))
        self.up = nn.ModuleList(Convolution(problem.padding, config.dim, config.dim) for _ in range(2))
        self.project = nn.Linear(config.dim, config.dim)
        self.tables = TableCache()

    def forward(
        self, z: Float[Tensor, "batch *grid dim"], grid: Grid, conditions: Conditions = UNCONDITIONED
    ) -> Float[Tensor, "batch *grid dim"]:
        middle, coarse = (_resized(grid, shape) for shape in self.shapes)
        c, halfway = self._moved(z, conditions.mask, grid, middle, restriction_matrix)
        c = functional.gelu(self.down[0](c, None, halfway))
        c, mask = self._moved(c, halfway, middle, coarse, restriction_matrix)
        c = functional.gelu(self.down[1](c, None, mask))
        if mask is not None:
            conditions = conditions._replace(mask=mask)
        for layer in self.layers:
            c = self.run(layer, c, coarse, conditions)
        c = functional.gelu(self.up[0](c, None, mask))
        c, _ = self._moved(c, mask, coarse, middle, interpolation_matrix)
        c = functional.gelu(self.up[1](c, None, halfway))
        c, _ = self._moved(c, halfway, middle, grid, interpolation_matrix)
        result: Tensor = z + self.project(c)
        return result

    def _moved(
        self,
        u: Tensor,
        mask: Mask | None,
        source: Grid,
        target: Grid,
        make: Callable[[Grid, Grid, int], Tensor],
    ) -> tuple[Tensor, Mask | None]:
        """The field on another grid, from the points inside alone, and where there were any."""
        if mask is None:
            return self._move(u, source, target, make), None
        exact = torch.float64 if u.dtype == torch.float64 else torch.float32
        share = self._move(mask.unsqueeze(-1).to(exact), source, target, make)
        return ratio(self._move(inside(u, mask), source, target, make), share), share.squeeze(-1) > 0

    def _move(self, u: Tensor, source: Grid, target: Grid, make: Callable[[Grid, Grid, int], Tensor]) -> Tensor:
        name = f"{make.__name__} from {source.key}"
        matrices = self.tables.get(
            name, target, 0, u, lambda: tuple(make(source, target, m) for m in range(source.num_axes))
        )
        return apply_matrices(u, matrices)


def _coarse_shape(grid: Grid, factor: float) -> tuple[int, ...]:
    return tuple(min(size, max(SMALLEST_AXIS, round(size / max(1.0, factor)))) for size in grid.shape)


def _resized(grid: Grid, shape: tuple[int, ...]) -> Grid:
    """The grid with ``shape`` points; uneven axes cannot be resampled."""
    return grid.resample([n if grid.is_even(m) else grid.shape[m] for m, n in enumerate(shape)])
