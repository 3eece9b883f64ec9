"""Fourier neural operator (Li et al. 2020, arXiv:2010.08895): spectral convolutions with a pointwise skip.

z ← σ( K z + W z + b )       per layer, no σ after the last
"""

from __future__ import annotations

from typing import Literal

from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from factformer.grid import Grid
from factformer.models._backbone import Latent
from factformer.models._positions import PositionedBackbone, PositionsConfig
from factformer.nn.conditions import UNCONDITIONED, Conditions
from factformer.nn.fourier_features import FourierMode
from factformer.nn.masks import inside
from factformer.nn.spectral_conv import DomainPadding, SpectralConvolution, require_even_spacing
from factformer.problem import Problem


class SpectralConfig(PositionsConfig):
    """Options of the models that work on Fourier modes."""

    dim: int = Field(96, ge=1, le=2**16)
    fourier: FourierMode = "off"
    """The paper tells of no coordinates for its baselines; ``paper`` or ``periodic`` give them what the others get."""
    modes: int | None = Field(None, ge=1, le=4096)
    """Frequencies kept per axis; by default the paper's 24 in one and two dimensions and 12 in three, or 6
    in four."""
    domain_padding: float = Field(0.125, ge=0, le=4)
    """Zeros added at the end of non-periodic axes, as a fraction of their length."""

    def num_modes(self, num_axes: int) -> int:
        return self.modes or {1: 24, 2: 24, 3: 12, 4: 6}[num_axes]


class SpectralBackbone(PositionedBackbone):
    """Places the latent field and runs its layers, which are Fourier series, on the padded box (`DomainPadding`)."""

    layers: nn.ModuleList
    paper_optimizer = "adam"

    def __init__(self, config: SpectralConfig, problem: Problem) -> None:
        super().__init__(config, problem)
        self.domain = DomainPadding(config.domain_padding)

    def run_padded(self, z: Latent, grid: Grid, conditions: Conditions) -> Latent:
        z = self.domain.extend(self.placed(z, grid), grid)
        if conditions.mask is not None:
            conditions = conditions._replace(mask=self.domain.extend_mask(conditions.mask, grid))
        return self.domain.crop(self.run_all(self.layers, z, grid, conditions), grid)


class Config(SpectralConfig):
    name: Literal["fno"] = "fno"


class Layer(nn.Module):
    """Spectral convolution plus pointwise linear map, and a GELU except on the last layer."""

    def __init__(self, dim: int, num_axes: int, num_modes: int, activate: bool) -> None:
        super().__init__()
        self.spectral = SpectralConvolution(range(num_axes), [num_modes] * num_axes, dim, dim)
        self.pointwise = nn.Linear(dim, dim)
        self.activate = activate

    def forward(
        self, z: Float[Tensor, "batch *grid dim"], grid: Grid, conditions: Conditions = UNCONDITIONED
    ) -> Float[Tensor, "batch *grid dim"]:
        total: Tensor = self.spectral(inside(z, conditions.mask)) + self.pointwise(z)
        return functional.gelu(total) if self.activate else total


class Model(SpectralBackbone):
    config_class = Config

    def __init__(self, config: Config, problem: Problem) -> None:
        super().__init__(config, problem)
        num_axes = problem.grid.num_axes
        self.layers = nn.ModuleList(
            self.modulated(Layer(config.dim, num_axes, config.num_modes(num_axes), activate=depth < config.depth - 1))
            for depth in range(config.depth)
        )

    def forward(
        self, z: Float[Tensor, "batch *grid dim"], grid: Grid, conditions: Conditions = UNCONDITIONED
    ) -> Float[Tensor, "batch *grid dim"]:
        require_even_spacing(grid, "fno")
        return self.run_padded(z, grid, conditions)
