"""Modern U-Net (Gupta & Brandstetter 2022, arXiv:2209.15616, PDEArena's ``Unetmod-64``).

    z ← S z + C₂ σ N₂ C₁ σ N₁ z        per block

``C`` are convolutions of kernel 3 that continue the field as the problem's boundary says, ``N`` normalises over
the domain, ``σ`` is a GELU and ``S`` a linear map where the width changes. Between levels a convolution of stride
2 leads down; nearest points and a convolution lead up, where the published network has a transposed one, which does
not exist for four axes. Every block, and every way down, has a skip that is joined on the way up.

Defaults are PDEArena's: 64 channels, levels of 1, 2, 2 and 4 times the width of the one above, two blocks per level
on the way down and three on the way up, one group of the normalisation.
"""

from __future__ import annotations

import math
from itertools import pairwise
from types import MappingProxyType
from typing import Annotated, Literal

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from factformer.grid import Grid
from factformer.models._levels import Levels, double_short_axes
from factformer.models._positions import PositionedBackbone, PositionsConfig
from factformer.nn.boundary_block import upsample_nearest
from factformer.nn.conditions import UNCONDITIONED, Conditions
from factformer.nn.convolution import Convolution
from factformer.nn.fourier_features import FourierMode
from factformer.nn.norms import DomainNorm
from factformer.problem import Boundary, Problem


class Config(PositionsConfig):
    name: Literal["unet"] = "unet"
    dim: int = Field(64, ge=1, le=2**16)
    """Channels of the latent field and of the first level."""
    depth: int = Field(2, ge=1, le=1024)
    """Blocks of a level on the way down; there is one more on the way up."""
    multipliers: tuple[Annotated[int, Field(ge=1, le=64)], ...] = Field((1, 2, 2, 4), min_length=1, max_length=12)
    """Width of each level over that of the one above."""
    norm_groups: int = Field(1, ge=1, le=4096)
    fourier: FourierMode = "off"
    """Convolutions know no place; ``paper`` or ``periodic`` tell them."""

    @property
    def widest(self) -> int:
        return self.dim * math.prod(self.multipliers)


class Block(nn.Module):
    """Two convolutions, each after a normalisation and a GELU, and a shortcut."""

    def __init__(self, dim_in: int, dim_out: int, norm_groups: int, padding: tuple[Boundary, ...]) -> None:
        super().__init__()
        self.first_norm = DomainNorm(norm_groups, dim_in)
        self.first = Convolution(padding, dim_in, dim_out)
        self.second_norm = DomainNorm(norm_groups, dim_out)
        self.second = Convolution(padding, dim_out, dim_out)
        self.shortcut = nn.Identity() if dim_in == dim_out else nn.Linear(dim_in, dim_out)

    def forward(
        self, z: Float[Tensor, "batch *grid dim_in"], grid: Grid, conditions: Conditions = UNCONDITIONED
    ) -> Float[Tensor, "batch *grid dim_out"]:
        mask = conditions.mask
        branch = self.first(functional.gelu(self.first_norm(z, grid, mask)), grid, mask)
        branch = self.second(functional.gelu(self.second_norm(branch, grid, mask)), grid, mask)
        result: Tensor = branch + self.shortcut(z)
        return result


class Model(PositionedBackbone):
    config_class = Config
    cuttable = True
    recipe_sizes = MappingProxyType({"small": {"dim": 16}, "paper": {}})

    def __init__(self, config: Config, problem: Problem) -> None:
        super().__init__(config, problem)
        padding, num_levels = problem.padding, len(config.multipliers)
        self.levels = Levels(num_levels)
        self.cut_multiple = max(2, 2 ** (num_levels - 1))  # whole points of the coarsest level
        widths = [config.dim]
        for factor in config.multipliers:
            widths.append(widths[-1] * factor)

        def blocks(widths_in: list[int], widths_out: list[int]) -> nn.ModuleList:
            pairs = zip(widths_in, widths_out, strict=True)
            return nn.ModuleList(self.modulated(Block(a, b, config.norm_groups, padding), a) for a, b in pairs)

        more = config.depth - 1
        self.down = nn.ModuleList(blocks([a, *[b] * more], [b] * config.depth) for a, b in pairwise(widths))
        self.descents = nn.ModuleList(Convolution(padding, width, width, stride=2) for width in widths[1:-1])
        self.middle = blocks([widths[-1]] * 2, [widths[-1]] * 2)
        self.up = nn.ModuleList(  # the last block of a level leads to the width of the next one up
            blocks([2 * b] * config.depth + [a + b], [b] * config.depth + [a]) for a, b in pairwise(widths)
        )
        self.ascents = nn.ModuleList(Convolution(padding, width, width) for width in widths[1:-1])

    def forward(
        self, z: Float[Tensor, "batch *grid dim"], grid: Grid, conditions: Conditions = UNCONDITIONED
    ) -> Float[Tensor, "batch *grid dim"]:
        grids, known = self.levels.of(grid), self.levels.conditions(conditions, grid)
        z = self.placed(z, grid)
        skips = [z]
        for level, blocks in enumerate(self.down):
            if level:
                mask, above = known[level - 1].mask, grids[level - 1]
                within = None if mask is None else double_short_axes(mask.unsqueeze(-1), above).squeeze(-1)
                z = self.descents[level - 1](double_short_axes(z, above), above, within)
                skips.append(z)
            for block in blocks:  # type: ignore[attr-defined]
                z = self.run(block, z, grids[level], known[level])
                skips.append(z)
        for block in self.middle:
            z = self.run(block, z, grids[-1], known[-1])
        for level in reversed(range(len(grids))):
            for block in self.up[level]:  # type: ignore[attr-defined]
                z = self.run(block, torch.cat([z, skips.pop()], dim=-1), grids[level], known[level])
            if level:
                above = grids[level - 1]
                z = self.ascents[level - 1](upsample_nearest(z, above.shape), above, known[level - 1].mask)
        return z
