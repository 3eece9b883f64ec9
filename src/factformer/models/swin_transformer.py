"""Hierarchical Transformer of shifted windows (scOT: Herde et al. 2024, Poseidon, arXiv:2405.19101).

    z ← z + LayerNorm( Att(z) ),   z ← z + LayerNorm( W₂ σ( W₁ z ) )       per layer, windows shifted in every second

``Att`` is the window attention of Swin v2 (`nn.attention.window`). Down a level, the channels of 2ⁿ neighbouring
points are mapped to twice the width; up a level, each point gives 2ⁿ of half the width. What a level had on the
way down passes ConvNeXt blocks and is added on the way up. Patches are the surrogate's matter (``model.patch``).

Defaults are those of Poseidon-T: 48 channels, four levels of four layers on each way, 16 channels per head, windows of
16 points along an axis, two ConvNeXt blocks in each skip. In three dimensions windows of 8 points and in four of 4 hold
about as many points.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Literal

from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn

from factformer.grid import Grid
from factformer.models._levels import ConvNeXtBlock, Levels, merge, spread
from factformer.models._positions import PositionedBackbone, PositionsConfig
from factformer.nn.attention.window import WindowAttention
from factformer.nn.conditions import UNCONDITIONED, Conditions
from factformer.nn.fourier_features import FourierMode
from factformer.nn.masks import Mask, inside
from factformer.nn.mlp import MLP
from factformer.problem import Boundary, Problem

WINDOWS = {1: 16, 2: 16, 3: 8, 4: 4}


class Config(PositionsConfig):
    name: Literal["swin_transformer"] = "swin_transformer"
    dim: int = Field(48, ge=1, le=2**16)
    """Channels of the latent field and of the first level; each level below has twice as many."""
    depth: int = Field(4, ge=1, le=1024)
    """Layers of a level on the way down, and as many on the way up."""
    num_levels: int = Field(4, ge=1, le=12)
    head_dim: int = Field(16, ge=1, le=4096)
    """Channels of a head; a level has as many heads as fit into its width."""
    window: int | None = Field(None, ge=1, le=4096)
    """Points of a window along an axis; by default 16 in one and two dimensions, 8 in three and 4 in four."""
    feed_forward: int = Field(4, ge=1, le=256)
    """Width of the feed-forward network over that of its level."""
    skip_depth: int = Field(2, ge=0, le=64)
    """ConvNeXt blocks in a skip."""
    layer_scale: float = Field(1e-6, gt=0, le=1)
    """γ of these blocks at the start."""
    fourier: FourierMode = "off"
    """Windows know distances and no place; ``paper`` or ``periodic`` tell it."""

    @property
    def widest(self) -> int:
        return self.dim << (self.num_levels - 1)


class Layer(nn.Module):
    """Window attention and a feed-forward network, each with a norm before its residual is added."""

    def __init__(self, config: Config, num_axes: int, dim: int, shifted: bool) -> None:
        super().__init__()
        heads, window = max(1, dim // config.head_dim), config.window or WINDOWS[num_axes]
        self.attention = WindowAttention(num_axes, dim, heads, config.head_dim, window, shifted)
        self.norm = nn.LayerNorm(dim)
        self.mlp = MLP(dim, config.feed_forward * dim, dim)
        self.mlp_norm = nn.LayerNorm(dim)

    def forward(
        self, z: Float[Tensor, "batch *grid dim"], grid: Grid, conditions: Conditions = UNCONDITIONED
    ) -> Float[Tensor, "batch *grid dim"]:
        z = z + self.norm(self.attention(z, grid, conditions.mask))
        result: Tensor = z + self.mlp_norm(self.mlp(z))
        return result


class Merging(nn.Module):
    """The channels of 2ⁿ points as one of twice the width."""

    def __init__(self, padding: tuple[Boundary, ...], dim: int) -> None:
        super().__init__()
        self.padding = padding
        self.map = nn.Linear(2 ** len(padding) * dim, 2 * dim, bias=False)
        self.norm = nn.LayerNorm(2 * dim)

    def forward(
        self, z: Float[Tensor, "batch *grid dim"], mask: Mask | None = None
    ) -> Float[Tensor, "batch *coarse wider"]:
        result: Tensor = self.norm(self.map(merge(inside(z, mask), self.padding)))
        return result


class Spreading(nn.Module):
    """One point as 2ⁿ of half the width."""

    def __init__(self, num_axes: int, dim: int) -> None:
        super().__init__()
        self.map = nn.Linear(2 * dim, 2**num_axes * dim, bias=False)
        self.norm = nn.LayerNorm(dim)
        self.mix = nn.Linear(dim, dim, bias=False)

    def forward(
        self, z: Float[Tensor, "batch *coarse wider"], shape: tuple[int, ...]
    ) -> Float[Tensor, "batch *grid dim"]:
        result: Tensor = self.mix(self.norm(spread(self.map(z), shape)))
        return result


class Model(PositionedBackbone):
    config_class = Config
    recipe_sizes = MappingProxyType({"small": {"dim": 16, "depth": 2, "num_levels": 3}, "paper": {}})

    def __init__(self, config: Config, problem: Problem) -> None:
        super().__init__(config, problem)
        num_axes, padding = problem.grid.num_axes, problem.padding
        self.levels = Levels(config.num_levels)
        widths = [config.dim * 2**level for level in range(config.num_levels)]

        def layers(width: int) -> nn.ModuleList:
            return nn.ModuleList(
                self.modulated(Layer(config, num_axes, width, shifted=bool(index % 2)), width)
                for index in range(config.depth)
            )

        def skip(width: int) -> nn.ModuleList:
            return nn.ModuleList(
                self.modulated(ConvNeXtBlock(width, 7, 4, padding, config.layer_scale), width)
                for _ in range(config.skip_depth)
            )

        self.down = nn.ModuleList(layers(width) for width in widths)
        self.descents = nn.ModuleList(Merging(padding, width) for width in widths[:-1])
        self.skips = nn.ModuleList(skip(width) for width in widths[:-1])
        self.up = nn.ModuleList(layers(width) for width in widths)
        self.ascents = nn.ModuleList(Spreading(num_axes, width) for width in widths[:-1])

    def forward(
        self, z: Float[Tensor, "batch *grid dim"], grid: Grid, conditions: Conditions = UNCONDITIONED
    ) -> Float[Tensor, "batch *grid dim"]:
        grids, known = self.levels.of(grid), self.levels.conditions(conditions)
        z = self.placed(z, grid)
        kept = []
        for level, layers in enumerate(self.down):
            before = z
            z = self._through(layers, z, grids[level], known[level])
            if level < len(self.descents):
                kept.append(self._through(self.skips[level], z, grids[level], known[level]))
                z = self.descents[level](z + before, known[level].mask)
        for level in reversed(range(len(grids))):
            z = self._through(self.up[level], z, grids[level], known[level])
            if level:
                z = self.ascents[level - 1](z, grids[level - 1].shape) + kept[level - 1]
        return z

    def _through(self, layers: nn.Module, z: Tensor, grid: Grid, conditions: Conditions) -> Tensor:
        for layer in layers:  # type: ignore[attr-defined]
            z = self.run(layer, z, grid, conditions)
        return z
