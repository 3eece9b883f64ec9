"""Factorized Fourier neural operator (Tran et al., ICLR 2023, arXiv:2111.13802).

z ← z + W₂ σ( W₁ Σ_m K⁽ᵐ⁾ z + b₁ ) + b₂,     K⁽ᵐ⁾ = spectral convolution along axis m alone
"""

from __future__ import annotations

from typing import Literal

from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn

from factformer.grid import Grid
from factformer.models.fno import SpectralBackbone, SpectralConfig
from factformer.nn.conditions import UNCONDITIONED, Conditions
from factformer.nn.masks import inside
from factformer.nn.norms import DomainNorm
from factformer.nn.spectral_conv import SpectralConvolution, require_even_spacing
from factformer.problem import Problem


class Config(SpectralConfig):
    name: Literal["ffno"] = "ffno"
    feed_forward: int | None = Field(None, ge=1, le=2**16)
    """Width of the feed-forward network over ``dim``; by default the one that gives the paper's sizes, 2 in
    one and two dimensions and 3 above."""
    norm_groups: int = Field(8, ge=1, le=4096)
    """Groups of the normalisation before the last layer."""


class FactorizedSpectralConvolution(nn.Module):
    """``Σ_m K⁽ᵐ⁾ z``: one spectral convolution per axis, the other axes in the batch."""

    def __init__(self, num_axes: int, num_modes: int, dim: int) -> None:
        super().__init__()
        self.axes = nn.ModuleList(SpectralConvolution([m], [num_modes], dim, dim) for m in range(num_axes))

    def forward(self, z: Float[Tensor, "batch *grid dim"]) -> Float[Tensor, "batch *grid dim"]:
        total: Tensor = self.axes[0](z)
        for convolution in self.axes[1:]:
            total = total + convolution(z)
        return total


class Layer(nn.Module):
    """Factorized spectral convolution, feed-forward network, residual after both."""

    def __init__(self, dim: int, num_axes: int, num_modes: int, dim_hidden: int) -> None:
        super().__init__()
        self.spectral = FactorizedSpectralConvolution(num_axes, num_modes, dim)
        self.feed_forward = nn.Sequential(nn.Linear(dim, dim_hidden), nn.ReLU(), nn.Linear(dim_hidden, dim))

    def forward(
        self, z: Float[Tensor, "batch *grid dim"], grid: Grid, conditions: Conditions = UNCONDITIONED
    ) -> Float[Tensor, "batch *grid dim"]:
        result: Tensor = z + self.feed_forward(self.spectral(inside(z, conditions.mask)))
        return result


class Model(SpectralBackbone):
    config_class = Config

    def __init__(self, config: Config, problem: Problem) -> None:
        super().__init__(config, problem)
        num_axes = problem.grid.num_axes
        dim_hidden = config.dim * (config.feed_forward or (2 if num_axes <= 2 else 3))
        self.layers = nn.ModuleList(
            self.modulated(Layer(config.dim, num_axes, config.num_modes(num_axes), dim_hidden))
            for _ in range(config.depth)
        )
        self.norm = DomainNorm(config.norm_groups, config.dim)

    def forward(
        self, z: Float[Tensor, "batch *grid dim"], grid: Grid, conditions: Conditions = UNCONDITIONED
    ) -> Float[Tensor, "batch *grid dim"]:
        require_even_spacing(grid, "ffno")
        normalized: Tensor = self.norm(self.run_padded(z, grid, conditions), grid, conditions.mask)
        return normalized
