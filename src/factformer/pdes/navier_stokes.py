"""Navier-Stokes flow on the unit torus, as in the paper on Fourier neural operators (Li et al. 2021).

    ∂ω/∂t + u·∇ω = ν ∇²ω + 0.1 (sin 2π(x1 + x2) + cos 2π(x1 + x2))        on the periodic box (0, 1)²

The scheme is that of `factformer.pdes._common.vorticity`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from pydantic import Field as Value
from torch import Tensor

from factformer.config import Config
from factformer.errors import UserError
from factformer.grid import Grid
from factformer.numerics.spectral import Spectrum
from factformer.pdes._common import presets as _presets
from factformer.pdes._common.base import Frames, Symmetries
from factformer.pdes._common.ranges import per_sample
from factformer.pdes._common.symmetry import Generators, draw, moved_points, reflect_periodic, take
from factformer.pdes._common.vorticity import VorticityFlow

AMPLITUDE = 0.1  # of the force


class Parameters(Config):
    """``dt`` is the largest solver step; the default follows the grid, `NavierStokes.default_dt`."""

    viscosity: float = Value(default=1e-5, gt=0)
    dt: float | None = Value(default=None, gt=0)
    integrator: Literal["etdrk4", "crank_nicolson_heun"] = "etdrk4"


class NavierStokes(VorticityFlow):
    """Starts are drawn as in the public generator: real and imaginary parts of unit variance each, times
    ``√2 τ^1.5 (4π²|k|² + τ²)^-1.25`` with τ = 7, of which the real part of the inverse transform is taken."""

    name = "navier_stokes"
    length = 1.0
    parameters = Parameters
    varying = ("viscosity",)
    task = _presets.NAVIER_STOKES_TASK
    presets = _presets.NAVIER_STOKES

    def decay_rate(self, squared: Tensor, parameters: Any) -> Tensor:
        """``-ν |k|²``."""
        rate: Tensor = -squared * per_sample(parameters.viscosity, 3, squared.device)
        return rate

    def force(self, spectrum: Spectrum, shape: Sequence[int], parameters: Any) -> Tensor:
        """``sin θ + cos θ = Re((1 - i) exp(iθ))``: the modes ±(1, 1)."""
        if min(spectrum.cutoff) < 1:
            raise UserError(f"navier_stokes: {tuple(shape)} points do not resolve the force; use at least 4 per axis")
        complex_dtype = torch.complex128 if spectrum.dtype == torch.float64 else torch.complex64
        return spectrum.at(1, 1).to(complex_dtype) * (AMPLITUDE * (0.5 - 0.5j))

    def default_dt(self, shape: Sequence[int]) -> float:
        """About half of what is stable for the fourth-order integrator at the speeds of the default start."""
        return min(1 / 32, 1.0 / max(shape))

    def symmetries(self, grid: Grid, parameters: Config | None = None) -> Symmetries:
        """Shifts along x1 - x2, the rotation by π about (1/8, 0), and the exchange of the axes with a shift of 1/2.

        The exchange turns the sign of vorticity. What a grid does not meet is left out: the first and the last are of
        square ones, of even size the last; the rotation takes a quarter of the points along x1.
        """
        (size1, size2), maps = grid.shape, dict[str, Callable[[Frames], Frames]]()
        if size1 % 4 == 0:
            maps["rotation by π"] = lambda frames: reflect_periodic(reflect_periodic(frames, 2), 3).roll(size1 // 4, 2)
        if size1 == size2:
            maps["shift along x1 - x2"] = lambda frames: frames.roll((size1 // 3, -(size1 // 3)), (2, 3))
            if size1 % 2 == 0:
                maps["exchange of x1 and x2"] = lambda frames: -frames.roll(size1 // 2, 2).transpose(2, 3)
        return maps

    def augment(self, frames: Frames, grid: Grid, generator: Generators, parameters: Config | None = None) -> Frames:
        batch, (size1, size2) = len(frames), grid.shape
        square = size1 == size2
        shift = draw(generator, size1 if square else 1, batch)
        rotate = draw(generator, 2 if size1 % 4 == 0 else 1, batch)
        swap = draw(generator, 2 if square and size1 % 2 == 0 else 1, batch)
        first, second = shift + rotate * (size1 // 4), -shift
        exchanged = swap.bool()
        indices = [
            moved_points(size1, rotate, torch.where(exchanged, second, first)),
            moved_points(size2, rotate, torch.where(exchanged, first + size1 // 2, second)),
        ]
        moved = take(frames, indices, torch.stack([swap, 1 - swap], dim=1))
        sign = (1 - 2 * swap).to(frames.device, frames.dtype)
        return moved * sign.reshape(-1, *[1] * (frames.ndim - 1))


pde = NavierStokes()
