"""Kolmogorov flow: two-dimensional turbulence under a sinusoidal force.

    ∂ω/∂t + u·∇ω = (1/Re) ∇²ω - n cos(n x2) - drag ω        on the periodic box (0, 2π)²

The scheme is that of `factformer.pdes._common.vorticity`.
"""

from __future__ import annotations

import math
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
from factformer.pdes._common.vorticity import VorticityFlow, velocity_symbols


class Parameters(Config):
    """``dt`` is the largest solver step; the default follows the grid, `KolmogorovFlow.default_dt`."""

    reynolds: float = Value(default=1000.0, gt=0)
    forcing_wavenumber: int = Value(default=8, ge=0)
    drag: float = Value(default=0.1, ge=0)
    dt: float | None = Value(default=None, gt=0)
    integrator: Literal["etdrk4", "crank_nicolson_heun"] = "etdrk4"


class KolmogorovFlow(VorticityFlow):
    name = "kolmogorov_flow"
    length = 2 * math.pi
    halved_start = True
    """As in the authors' generator, a real inverse transform of noise that is not symmetric. This brings the variance
    from 4.15 to 3.98."""
    parameters = Parameters
    symmetry_parameters = ("forcing_wavenumber",)
    varying = ("reynolds", "forcing_wavenumber", "drag")
    task = _presets.KOLMOGOROV_FLOW_TASK
    presets = _presets.KOLMOGOROV_FLOW

    def decay_rate(self, squared: Tensor, parameters: Any) -> Tensor:
        """``-|k|²/Re - drag``."""
        reynolds, drag = (per_sample(value, 3, squared.device) for value in (parameters.reynolds, parameters.drag))
        rate: Tensor = -squared / reynolds - drag
        return rate

    def force(self, spectrum: Spectrum, shape: Sequence[int], parameters: Any) -> Tensor:
        numbers = torch.as_tensor(parameters.forcing_wavenumber).long()
        largest = int(numbers.max())
        if largest > spectrum.cutoff[1]:
            raise UserError(
                f"forcing_wavenumber={largest} needs over {3 * largest} points along the last axis, got {shape[1]}"
            )
        numbers = numbers.to(spectrum.device).reshape(*numbers.shape, 1, 1)
        along1, along2 = spectrum.indices
        force = torch.where((along1 == 0) & (along2 == numbers), 0 - numbers / 2, 0)
        return force.to(velocity_symbols(spectrum)[0].dtype)

    def default_dt(self, shape: Sequence[int]) -> float:
        """Half of what is stable for the fourth-order integrator at the speeds of the default forcing."""
        return min(1 / 128, 1.0 / max(shape))

    def symmetries(self, grid: Grid, parameters: Any = None) -> Symmetries:
        """Any shift along x1, the rotation by π, and where the grid meets them: shifts of 2π/n along x2, and
        (x1 → -x1, shift of π/n along x2, ω → -ω)."""
        number = (parameters or Parameters()).forcing_wavenumber
        period, half_period = _forcing_periods(grid.shape[1], number)
        maps: dict[str, Callable[[Frames], Frames]] = {
            "shift along x1": lambda frames: frames.roll(grid.shape[0] // 3, 2),
            "rotation by π": lambda frames: reflect_periodic(reflect_periodic(frames, 2), 3),
        }
        if period:
            maps["shift of 2π/n along x2"] = lambda frames: frames.roll(period, 3)
        if half_period:
            maps["reflection of x1 with a shift of π/n along x2"] = lambda frames: (
                -reflect_periodic(frames, 2).roll(half_period, 3)
            )
        return maps

    def augment(self, frames: Frames, grid: Grid, generator: Generators, parameters: Any = None) -> Frames:
        batch, (size1, size2) = len(frames), grid.shape
        number = (parameters or Parameters()).forcing_wavenumber
        shift1 = draw(generator, size1, batch)
        half: int | Tensor
        if isinstance(number, Tensor):  # of each sample
            pairs = torch.tensor([_forcing_periods(size2, int(own)) for own in number.tolist()])
            half = pairs[:, 1]
            shift2 = draw(generator, size2, batch) // pairs[:, 0].clamp_min(1) * pairs[:, 0]
            rotate, flip = draw(generator, 2, batch), draw(generator, 2, batch) * (half > 0)
        else:
            period, half = _forcing_periods(size2, number)
            shift2 = draw(generator, size2 // period if period else 1, batch) * period
            rotate = draw(generator, 2, batch)
            flip = draw(generator, 2 if half else 1, batch)
        indices = [
            moved_points(size1, rotate ^ flip, shift1),
            moved_points(size2, rotate, shift2 + flip * half),
        ]
        sign = (1 - 2 * flip).to(frames.device, frames.dtype)
        return take(frames, indices) * sign.reshape(-1, *[1] * (frames.ndim - 1))


def _forcing_periods(size: int, number: int) -> tuple[int, int]:
    """Points of ``size`` in one period of the force and in half of one; 0 where that is no whole number."""
    if number == 0:
        return 1, 1
    return (0 if size % number else size // number), (0 if size % (2 * number) else size // (2 * number))


pde = KolmogorovFlow()
