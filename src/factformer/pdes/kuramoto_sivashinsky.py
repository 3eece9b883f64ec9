"""The Kuramoto-Sivashinsky equation: chaos in flame fronts and thin films.

    one axis:     ∂u/∂t + u ∂u/∂x + ∂²u/∂x² + ∂⁴u/∂x⁴ = 0
    more axes:    ∂u/∂t + ½|∇u|² + ∇²u + ∇⁴u = 0,        without the mean of ½|∇u|², which only lifts the front

Long waves grow, short ones decay, and the nonlinear term carries energy from the first to the second. Chaotic from a
box of about 25 on.
"""

from __future__ import annotations

from pydantic import Field as Value
from torch import Tensor

from factformer.config import Config
from factformer.grid import Grid
from factformer.numerics.semilinear import Modes
from factformer.numerics.timestepping import Function
from factformer.pdes import _presets
from factformer.pdes._base import Frames, Symmetries
from factformer.pdes._parts.semilinear import Semilinear
from factformer.pdes._parts.symmetry import BoxSymmetry, Generators
from factformer.problem import Field


class Parameters(Config):
    """``biharmonic``: ``∇⁴ = (∇²)²``; otherwise ``Σ_m ∂⁴/∂x_m⁴``, as exponax and APEBench have it."""

    extent: float = Value(default=60.0, gt=0)
    biharmonic: bool = True
    dt: float = Value(default=1 / 16, gt=0)


class KuramotoSivashinsky(Semilinear):
    name = "kuramoto_sivashinsky"
    parameters = Parameters
    varying = ("extent",)
    state = (Field("height"),)
    dimensions = (1, 2, 3)
    task = _presets.KURAMOTO_SIVASHINSKY_TASK
    presets = _presets.KURAMOTO_SIVASHINSKY

    def linear(self, modes: Modes, parameters: Parameters) -> Tensor:
        if parameters.biharmonic:
            return -modes.laplacian - modes.laplacian.square()
        fourth = sum(wavenumber**4 for wavenumber in modes.wavenumbers)
        return -modes.laplacian - fourth

    def nonlinear(self, modes: Modes, parameters: Parameters) -> Function:
        if modes.num_axes == 1:
            return modes.advection

        def steepness(height: Tensor) -> Tensor:
            squares = modes.values(modes.gradient(height)).square().sum(2)
            return -0.5 * modes.without_mean(modes.coefficients(squares))

        return steepness

    def symmetries(self, grid: Grid, parameters: Config | None = None) -> Symmetries:
        return _symmetry(grid).members(grid)

    def augment(self, frames: Frames, grid: Grid, generator: Generators, parameters: Config | None = None) -> Frames:
        return _symmetry(grid).augment(frames, grid, generator)


def _symmetry(grid: Grid) -> BoxSymmetry:
    """On one axis the field is a slope: it changes its sign when the axis is reflected."""
    return BoxSymmetry(vector=0) if grid.num_axes == 1 else BoxSymmetry()


pde = KuramotoSivashinsky()
