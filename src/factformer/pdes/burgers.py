"""Viscous Burgers' equation: waves that steepen into shocks.

∂u/∂t + (u·∇)u = ν ∇²u        on a periodic box, u has one component per axis
"""

from __future__ import annotations

import math
from typing import ClassVar

from pydantic import Field as Value
from torch import Tensor

from factformer.config import Config
from factformer.numerics.semilinear import Modes
from factformer.numerics.timestepping import Function
from factformer.pdes._common import presets as _presets
from factformer.pdes._common.semilinear import Semilinear, vector_of_axes
from factformer.pdes._common.symmetry import BoxSymmetry
from factformer.problem import Field


class Parameters(Config):
    """Shocks are about ``ν`` thick; a grid that resolves them needs some ``extent / ν`` points."""

    viscosity: float = Value(default=0.01, gt=0)
    extent: float = Value(default=2 * math.pi, gt=0)
    dt: float = Value(default=1 / 128, gt=0)


class Burgers(Semilinear):
    name = "burgers"
    parameters = Parameters
    varying = ("viscosity", "extent")
    dimensions = (1, 2, 3)
    symmetry = BoxSymmetry(vector=0)
    task = _presets.BURGERS_TASK
    presets = _presets.BURGERS
    conservative: ClassVar[bool] = False
    """``½ ∇·(u⊗u)`` in place of ``(u·∇)u``, another equation on several axes: that of APEBench."""

    def fields(self, num_axes: int) -> tuple[Field, ...]:
        return vector_of_axes("velocity", num_axes)

    def linear(self, modes: Modes, parameters: Parameters) -> Tensor:
        return parameters.viscosity * modes.laplacian

    def nonlinear(self, modes: Modes, parameters: Parameters) -> Function:
        return modes.divergence_of_products if self.conservative else modes.advection


pde = Burgers()
