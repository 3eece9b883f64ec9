"""The Cahn-Hilliard equation: two substances that separate.

    ∂u/∂t = D ∇²(u³ - u - γ ∇²u)        on a periodic box

The mean of u stays what it is and the free energy never grows. Interfaces between -1 and 1 are about ``√γ`` thick.
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
    """Interfaces must be resolved: take ``1.3 extent / √γ`` points or more, and more for long times.

    At the end of the preset `small` the error in space is 5 % on 1.0 and 0.6 % on 1.3 times ``extent / √γ`` points, at
    the end of `paper` 3 % on 1.3 and 0.2 % on 1.6.
    """

    diffusivity: float = Value(default=1e-2, gt=0)
    interface: float = Value(default=1e-3, gt=0)
    extent: float = Value(default=2 * math.pi, gt=0)
    dt: float = Value(default=1 / 64, gt=0)


class CahnHilliard(Semilinear):
    name = "cahn_hilliard"
    state = (Field("concentration"),)
    dimensions = (2, 1, 3)
    parameters = Parameters
    varying = ("diffusivity", "interface", "extent")
    degree = 3
    cuttable = True
    task = _presets.CAHN_HILLIARD_TASK
    presets = _presets.CAHN_HILLIARD

    def start(self, grid: Grid, generator: torch.Generator) -> Tensor:
        """Nearly mixed: a truncated series with waves as short as those that grow fastest."""
        return 0.1 * truncated_series(grid, generator, cutoff=12).unsqueeze(-1)

    def linear(self, modes: Modes, parameters: Parameters) -> Tensor:
        return -parameters.diffusivity * modes.laplacian * (1 + parameters.interface * modes.laplacian)

    def nonlinear(self, modes: Modes, parameters: Parameters) -> Function:
        diffusion = modes.rounded(parameters.diffusivity * modes.laplacian)
        return lambda u: diffusion * modes.coefficients(modes.values(u) ** 3)


pde = CahnHilliard()
