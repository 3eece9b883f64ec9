"""Dilated residual network (Stachenfeld et al., ICLR 2022, arXiv:2112.15275).

    z ← z + σC₁σC₃σC₈σC₃σC₁ z       per block, group norm between blocks

``C_d`` is a convolution of kernel 3 whose points lie ``d`` apart; the fields continue beyond the ends of the
domain as the problem's boundary says.
"""

from __future__ import annotations

from typing import Annotated, Literal

from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from factformer.grid import Grid
from factformer.models._positions import PositionedBackbone, PositionsConfig
from factformer.nn.conditions import UNCONDITIONED, Conditions
from factformer.nn.convolution import Convolution
from factformer.nn.fourier_features import FourierMode
from factformer.nn.norms import DomainNorm
from factformer.problem import Boundary, Problem


class Config(PositionsConfig):
    name: Literal["dilated_resnet"] = "dilated_resnet"
    depth: int = Field(3, ge=1, le=1024)
    """Number of residual blocks."""
    dilations: tuple[Annotated[int, Field(ge=1, le=4096)], ...] | None = Field(None, min_length=1, max_length=64)
    """Dilations of the convolutions of a block; by default the paper's 1, 3, 8, 3, 1 in one and two
    dimensions and 1, 2, 4, 2, 1 above."""
    fourier: FourierMode = "off"
    """The paper tells of no coordinates for its baselines; ``paper`` or ``periodic`` give them what the others get."""
    kernel_size: int = Field(3, ge=1, le=255)
    norm_groups: int = Field(8, ge=1, le=4096)


class Block(nn.Module):
    """A residual branch of dilated convolutions, each followed by a ReLU."""

    def __init__(self, dim: int, kernel_size: int, dilations: tuple[int, ...], padding: tuple[Boundary, ...]) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(
            Convolution(padding, dim, dim, kernel_size, dilation=dilation) for dilation in dilations
        )

    def forward(
        self, z: Float[Tensor, "batch *grid dim"], grid: Grid, conditions: Conditions = UNCONDITIONED
    ) -> Float[Tensor, "batch *grid dim"]:
        branch = z
        for convolution in self.convolutions:
            branch = functional.relu(convolution(branch, grid, conditions.mask))
        return z + branch

    @property
    def receptive_radius(self) -> int:
        """How many points away along an axis an output can depend on."""
        return sum(c.width for c in self.convolutions if isinstance(c, Convolution))


class Model(PositionedBackbone):
    config_class = Config
    cuttable = True
    paper_optimizer = "adam"

    def __init__(self, config: Config, problem: Problem) -> None:
        super().__init__(config, problem)
        dilations = config.dilations or ((1, 3, 8, 3, 1) if problem.grid.num_axes <= 2 else (1, 2, 4, 2, 1))
        self.blocks = nn.ModuleList(
            self.modulated(Block(config.dim, config.kernel_size, dilations, problem.padding))
            for _ in range(config.depth)
        )
        self.norms = nn.ModuleList(DomainNorm(config.norm_groups, config.dim) for _ in range(config.depth - 1))

    def forward(
        self, z: Float[Tensor, "batch *grid dim"], grid: Grid, conditions: Conditions = UNCONDITIONED
    ) -> Float[Tensor, "batch *grid dim"]:
        z = self.placed(z, grid)
        for depth, block in enumerate(self.blocks):
            if depth:
                z = self.norms[depth - 1](z, grid, conditions.mask)
            z = self.run(block, z, grid, conditions)
        return z
