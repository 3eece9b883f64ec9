"""ConvNeXt U-Net, the strongest baseline of The Well (Ohana et al. 2024, arXiv:2412.00568, ``CNextU-Net``).

    z ← z + γ W₂ σ( W₁ LayerNorm( D ⋆ z ) )        per block, D a depthwise convolution of kernel 7

Convolutions of kernel 3 lead in and out. Down a level, the channels of 2ⁿ neighbouring points are normalised and
mapped to twice the width; up a level, a linear map gives each of the 2ⁿ points half the width. What a level had on the
way down is joined to what comes up by a linear map of both, on all levels but the finest, as published.

Defaults are those of the benchmark: 42 channels on the first level, four ways down and up with two blocks each, one
block at the bottom, width 4 inside a block, γ from 1e-6.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Literal

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn

from factformer.grid import Grid
from factformer.models._levels import ConvNeXtBlock, Levels, merge, spread
from factformer.models._positions import PositionedBackbone, PositionsConfig
from factformer.nn.conditions import UNCONDITIONED, Conditions
from factformer.nn.convolution import Convolution
from factformer.nn.fourier_features import FourierMode
from factformer.nn.masks import Mask, inside
from factformer.problem import Problem


class Config(PositionsConfig):
    name: Literal["convnext_unet"] = "convnext_unet"
    dim: int = Field(64, ge=1, le=2**16)
    """Channels of the latent field."""
    width: int = Field(42, ge=1, le=2**16)
    """Channels of the first level; each level below has twice as many."""
    depth: int = Field(2, ge=1, le=1024)
    """Blocks of a level on the way down, and as many on the way up."""
    num_halvings: int = Field(4, ge=1, le=12)
    """How often the grid is halved."""
    neck_depth: int = Field(1, ge=0, le=1024)
    """Blocks at the bottom."""
    kernel_size: int = Field(7, ge=1, le=255)
    feed_forward: int = Field(4, ge=1, le=256)
    """Width inside a block over its own."""
    layer_scale: float = Field(1e-6, gt=0, le=1)
    """γ at the start."""
    fourier: FourierMode = "off"
    """Convolutions know no place; ``paper`` or ``periodic`` tell them."""

    @property
    def widest(self) -> int:
        return self.width << self.num_halvings


class Model(PositionedBackbone):
    config_class = Config
    recipe_sizes = MappingProxyType({"small": {"dim": 16, "width": 16}, "paper": {}})

    def __init__(self, config: Config, problem: Problem) -> None:
        super().__init__(config, problem)
        self.padding = problem.padding
        self.levels = Levels(config.num_halvings + 1)
        widths = [config.width * 2**level for level in range(config.num_halvings + 1)]
        num_merged = 2**problem.grid.num_axes

        def blocks(width: int, count: int) -> nn.ModuleList:
            each = (config.kernel_size, config.feed_forward, problem.padding, config.layer_scale)
            return nn.ModuleList(self.modulated(ConvNeXtBlock(width, *each), width) for _ in range(count))

        self.down = nn.ModuleList(blocks(width, config.depth) for width in widths[:-1])
        self.descents = nn.ModuleList(
            nn.ModuleDict({"norm": nn.LayerNorm(width), "map": nn.Linear(num_merged * width, 2 * width)})
            for width in widths[:-1]
        )
        self.neck = blocks(widths[-1], config.neck_depth)
        self.up = nn.ModuleList(blocks(2 * width, config.depth) for width in widths[:-1])
        self.ascents = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(2 * width), nn.Linear(2 * width, num_merged * width)) for width in widths[:-1]
        )
        self.join = nn.ModuleList(nn.Linear(2 * width, width) for width in widths[1:-1])
        self.first = Convolution(problem.padding, config.dim, config.width)
        self.last = Convolution(problem.padding, config.width, config.dim)

    def forward(
        self, z: Float[Tensor, "batch *grid dim"], grid: Grid, conditions: Conditions = UNCONDITIONED
    ) -> Float[Tensor, "batch *grid dim"]:
        grids, known = self.levels.of(grid), self.levels.conditions(conditions)
        z = self.first(self.placed(z, grid), None, conditions.mask)
        skips = []
        for level, blocks in enumerate(self.down):
            skips.append(z)
            z = self._through(blocks, z, grids[level], known[level])
            z = self._halved(level, z, known[level].mask)
        z = self._through(self.neck, z, grids[-1], known[-1])
        for level in reversed(range(len(skips))):
            z = self._through(self.up[level], z, grids[level + 1], known[level + 1])
            z = spread(self.ascents[level](z), grids[level].shape)
            if level:
                z = self.join[level - 1](torch.cat([z, skips[level]], dim=-1))
        result: Tensor = self.last(z, None, conditions.mask)
        return result

    def _through(self, blocks: nn.Module, z: Tensor, grid: Grid, conditions: Conditions) -> Tensor:
        for block in blocks:  # type: ignore[attr-defined]
            z = self.run(block, z, grid, conditions)
        return z

    def _halved(self, level: int, z: Tensor, mask: Mask | None) -> Tensor:
        layers = self.descents[level]
        result: Tensor = layers["map"](merge(inside(layers["norm"](z), mask), self.padding))  # type: ignore[index]
        return result
