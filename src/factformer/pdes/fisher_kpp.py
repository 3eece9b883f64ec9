"""The Fisher-KPP equation: a population that grows and spreads.

    ∂u/∂t = ν ∇²u + r u (1 - u)        on a periodic box

Fronts from 0 to 1 move at a speed of ``2 √(r ν)``.
"""

from __future__ import annotations

import math

import torch
from pydantic import Field as Value
from torch import Tensor

from factformer.config import Config
from factformer.grid import Grid
from factformer.numerics.random_fields import truncated_series
from factformer.numerics.semilinear import Modes
from factformer.numerics.timestepping import Function
from factformer.pdes._common import presets as _presets
from factformer.pdes._common.semilinear import Semilinear
from factformer.problem import Field


class Parameters(Config):
    """Fronts are about ``√(ν / r)`` thick."""

    viscosity: float = Value(default=0.01, gt=0)
    rate: float = Value(default=1.0, gt=0)
    extent: float = Value(default=2 * math.pi, gt=0)
    dt: float = Value(default=1 / 32, gt=0)


class FisherKPP(Semilinear):
    name = "fisher_kpp"
    state = (Field("concentration"),)
    dimensions = (2, 1, 3)
    parameters = Parameters
    varying = ("viscosity", "rate", "extent")
    cuttable = True
    task = _presets.FISHER_KPP_TASK
    presets = _presets.FISHER_KPP

    def start(self, grid: Grid, generator: torch.Generator) -> Tensor:
        """Between 0 and 1: the square of a truncated series, which leaves room to grow."""
        return truncated_series(grid, generator).square().unsqueeze(-1)

    def linear(self, modes: Modes, parameters: Parameters) -> Tensor:
        return parameters.viscosity * modes.laplacian + parameters.rate

    def nonlinear(self, modes: Modes, parameters: Parameters) -> Function:
        rate = modes.rounded(parameters.rate)
        return lambda u: -rate * modes.coefficients(modes.values(u).square())


pde = FisherKPP()
