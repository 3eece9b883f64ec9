"""FactFormer with a local branch, exactly periodic encodings and increments as output.

    u ← u + ψ(x),   u ← u + f( IN( Att(u) ) ),   u ← u + W₂ σ( W₁ LayerNorm( D ⋆ u ) )       per layer

Factorized attention carries information across the whole domain through a few functions per axis; what
happens between neighbouring points is left to the depthwise convolution ``D``, which continues the field
beyond the ends as the problem's boundary says and keeps its reach in space on other grids. Every addition to
FactFormer is a switch: ``local_branch`` (with ``feed_forward`` its width), ``rotary`` and ``fourier`` (whole
wavenumbers on periodic axes), ``residual``, and ``levels``:

    z ← z + R( layers( D z ) )        per level below the first

``D`` takes every second point of the grid after a depthwise convolution, ``R`` leads back by nearest points and
another one, each with a linear map. So the layers in the middle work on fewer points.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Annotated, Literal

from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn

from factformer.errors import UserError
from factformer.grid import Grid
from factformer.models._backbone import Backbone
from factformer.models._levels import Levels, double_short_axes
from factformer.models.factformer import AttentionConfig
from factformer.models.factformer import Layer as AttentionLayer
from factformer.nn.attention.rotary import Rotary
from factformer.nn.boundary_block import upsample_nearest
from factformer.nn.conditions import UNCONDITIONED, Conditions
from factformer.nn.convolution import Convolution
from factformer.nn.fourier_features import FourierMode
from factformer.nn.local_branch import LocalBranch
from factformer.nn.masks import Mask
from factformer.problem import Boundary, Problem


class Config(AttentionConfig):
    name: Literal["factformer_plus"] = "factformer_plus"
    rotary: Rotary = "periodic"
    fourier: FourierMode = "periodic"
    local_branch: bool = True
    """A depthwise convolution and a pointwise network after each attention."""
    local_kernel: int | None = Field(None, ge=1, le=255)
    """Points along an axis that the convolution sees; by default 5 in one and two dimensions and 3 above."""
    local_dilations: tuple[Annotated[int, Field(ge=1, le=4096)], ...] = Field((1,), min_length=1, max_length=64)
    """Distance between the points that the convolution sees, layer by layer and then from the start again."""
    feed_forward: int = Field(2, ge=1, le=256)
    """Width of the pointwise network of the local branch over ``dim``."""
    levels: int = Field(1, ge=1, le=12)
    """Levels of a U: with two, all layers but the first and the last work on every second point along each axis; with
    three, all but the first and last two of them on every fourth one, and so on."""

    def level(self, index: int) -> int:
        """The level on which layer ``index`` works; 0 is the latent grid."""
        return min(index, self.depth - 1 - index, self.levels - 1)


class Layer(nn.Module):
    """The layer of FactFormer and the local branch, each with its residual."""

    def __init__(self, config: Config, problem: Problem, index: int) -> None:
        super().__init__()
        num_axes = problem.grid.num_axes
        self.attention = AttentionLayer(config, num_axes)
        self.local: LocalBranch | None = None
        if config.local_branch:
            kernel_size = config.local_kernel or (5 if num_axes <= 2 else 3)
            dilation = config.local_dilations[index % len(config.local_dilations)]
            self.local = LocalBranch(
                config.dim, kernel_size, config.feed_forward, problem.padding, dilation, problem.grid
            )

    def forward(
        self, u: Float[Tensor, "batch *grid dim"], grid: Grid, conditions: Conditions = UNCONDITIONED
    ) -> Float[Tensor, "batch *grid dim"]:
        result: Tensor = self.attention(u, grid, conditions)
        return result if self.local is None else self.local.add_to(result, grid, conditions.mask)


ON_OWN_DATA = {"optimizer": "muon", "batch_size": 4, "noise": 0.01, "on_divergence": "halve"}


ALONG_ONE_AXIS = {"dim": 64, "heads": 4, "head_dim": 32, "kernel_dim": 32, "local_kernel": 9, "fourier": "off"}
"""One axis has nothing to pool over, so that queries and keys are made at every point: wide heads cost most of an
update there. On a long box, Fourier features of 8 waves per unit of length are noise from point to point."""


class Descent(nn.Module):
    """A depthwise convolution of stride 2 and a linear map: the latent field of the level below."""

    def __init__(self, dim: int, padding: tuple[Boundary, ...], home: Grid) -> None:
        super().__init__()
        self.convolution = Convolution(padding, dim, dim, stride=2, groups=dim, home=home)
        self.map = nn.Linear(dim, dim)

    def forward(
        self, z: Float[Tensor, "batch *grid dim"], grid: Grid, mask: Mask | None = None
    ) -> Float[Tensor, "batch *coarse dim"]:
        within = None if mask is None else double_short_axes(mask.unsqueeze(-1), grid).squeeze(-1)
        result: Tensor = self.map(self.convolution(double_short_axes(z, grid), grid, within))
        return result


class Ascent(nn.Module):
    """Nearest points, a depthwise convolution and a linear map: an increment of the level above."""

    def __init__(self, dim: int, padding: tuple[Boundary, ...], home: Grid) -> None:
        super().__init__()
        self.convolution = Convolution(padding, dim, dim, groups=dim, home=home)
        self.map = nn.Linear(dim, dim)

    def forward(
        self, z: Float[Tensor, "batch *coarse dim"], grid: Grid, mask: Mask | None = None
    ) -> Float[Tensor, "batch *grid dim"]:
        result: Tensor = self.map(self.convolution(upsample_nearest(z, grid.shape), grid, mask))
        return result


class Model(Backbone):
    config_class = Config
    cuttable = True
    wants_boundary_block = True
    wants_residual = True
    default_training = MappingProxyType(  # docs/research-log.md
        {
            "small": {"optimizer": "muon", "learning_rate": 6e-3, "ema_decay": 0.995, "augment": True},
            "paper": {"optimizer": "muon", "learning_rate": 3e-3, "ema_decay": 0.999, "augment": True},
            "short": {**ON_OWN_DATA, "learning_rate": 6e-3, "ema_decay": 0.99},
            "long": {**ON_OWN_DATA, "learning_rate": 3e-3, "ema_decay": 0.999},
        }
    )
    default_sizes = MappingProxyType({1: ALONG_ONE_AXIS})  # docs/research-log.md
    default_marching = MappingProxyType({"marching_steps": 1, "pushforward": 3})
    descents: nn.ModuleList
    ascents: nn.ModuleList
    """From each level to the one below it and back; with one level there are none."""

    def __init__(self, config: Config, problem: Problem) -> None:
        super().__init__(config, problem)
        fewest = 2 * config.levels - 1
        if config.depth < fewest:
            raise UserError(f"model.levels={config.levels} needs model.depth={fewest} or more, it is {config.depth}")
        self.levels = Levels(config.levels)
        self.cut_multiple = max(2, 2 ** (config.levels - 1))  # whole points of the coarsest level
        homes = self.levels.of(problem.grid)
        self.at = [config.level(index) for index in range(config.depth)]
        self.layers = nn.ModuleList(
            self.modulated(Layer(config, problem.with_grid(homes[level]), index)) for index, level in enumerate(self.at)
        )
        if config.levels > 1:
            self.descents = nn.ModuleList(Descent(config.dim, problem.padding, home) for home in homes[:-1])
            self.ascents = nn.ModuleList(Ascent(config.dim, problem.padding, home) for home in homes[:-1])

    def forward(
        self, z: Float[Tensor, "batch *grid dim"], grid: Grid, conditions: Conditions = UNCONDITIONED
    ) -> Float[Tensor, "batch *grid dim"]:
        grids, known = self.levels.of(grid), self.levels.conditions(conditions, grid)
        above: list[Tensor] = []
        for layer, level in zip(self.layers, self.at, strict=True):
            if level > len(above):
                above.append(z)
                z = self.descents[level - 1](z, grids[level - 1], known[level - 1].mask)
            elif level < len(above):
                z = above.pop() + self.ascents[level](z, grids[level], known[level].mask)
            z = self.run(layer, z, grids[level], known[level])
        return z
