"""The Korteweg-de Vries equation: solitons, waves that pass through each other unchanged.

    ∂u/∂t + 6u ∂u/∂x + ∂³u/∂x³ = 0        on a periodic line

The linear term is exact in the exponential integrator, so that its fast short waves do not limit the step.
"""

from __future__ import annotations

from pydantic import Field as Value
from torch import Tensor

from factformer.config import Config
from factformer.numerics.semilinear import Modes
from factformer.numerics.timestepping import Function
from factformer.pdes._common import presets as _presets
from factformer.pdes._common.semilinear import Semilinear
from factformer.pdes._common.symmetry import BoxSymmetry
from factformer.problem import Field


class Parameters(Config):
    extent: float = Value(default=20.0, gt=0)
    dt: float = Value(default=1 / 512, gt=0)


class KortewegDeVries(Semilinear):
    name = "korteweg_de_vries"
    parameters = Parameters
    varying = ("extent",)
    exact_in_batch = False  # the last bit of a product of complex symbols depends on its place in memory
    state = (Field("height"),)
    dimensions = (1,)
    symmetry = BoxSymmetry(reflects=False)
    task = _presets.KORTEWEG_DE_VRIES_TASK
    presets = _presets.KORTEWEG_DE_VRIES

    def linear(self, modes: Modes, parameters: Parameters) -> Tensor:
        return 1j * modes.wavenumbers[0] ** 3

    def nonlinear(self, modes: Modes, parameters: Parameters) -> Function:
        return lambda height: 6 * modes.advection(height)


pde = KortewegDeVries()
