"""Advection and diffusion of a concentration by a uniform flow: the linear problem with an exact solution.

∂u/∂t + c·∇u = ν ∇²u        on a periodic box, c has the same component along every axis
"""

from __future__ import annotations

import math

from pydantic import Field as Value
from torch import Tensor

from factformer.config import Config
from factformer.numerics.semilinear import Modes
from factformer.pdes._common import presets as _presets
from factformer.pdes._common.semilinear import Semilinear
from factformer.pdes._common.symmetry import BoxSymmetry
from factformer.problem import Field


class Parameters(Config):
    """There is no step to choose: every frame is exact."""

    velocity: float = 1.0
    viscosity: float = Value(default=0.01, ge=0)
    extent: float = Value(default=2 * math.pi, gt=0)


class AdvectionDiffusion(Semilinear):
    name = "advection_diffusion"
    parameters = Parameters
    varying = ("velocity", "viscosity", "extent")
    exact_in_batch = False  # the last bit of a product of complex symbols depends on its place in memory
    state = (Field("concentration"),)
    dimensions = (2, 1, 3)
    degree = 1
    symmetry = BoxSymmetry(reflects=False)
    task = _presets.ADVECTION_DIFFUSION_TASK
    presets = _presets.ADVECTION_DIFFUSION

    def linear(self, modes: Modes, parameters: Parameters) -> Tensor:
        along = sum(modes.wavenumbers)
        return parameters.viscosity * modes.laplacian - 1j * parameters.velocity * along


pde = AdvectionDiffusion()
