"""Kolmogorov flow: two-dimensional turbulence under a sinusoidal force.

    ∂ω/∂t + u·∇ω = (1/Re) ∇²ω - n cos(n x2) - drag ω        on the periodic box (0, 2π)²
    ω = ∂u2/∂x1 - ∂u1/∂x2,   -∇²ψ = ω,   u1 = ∂ψ/∂x2,   u2 = -∂ψ/∂x1

Pseudo-spectral with the 2/3 rule. Since u is divergence-free,

    (u·∇ω) = ∂²(u2² - u1²)/∂x1∂x2 + (∂²/∂x1² - ∂²/∂x2²)(u1 u2),

which takes four transforms instead of the five of the advective form (Basdevant 1983). Modes of the initial
state beyond the cut take no part in the products; the linear terms carry them exactly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import Field as Value
from torch import Tensor

from factformer import engine
from factformer.config import Config
from factformer.errors import UserError
from factformer.grid import Grid
from factformer.kernels.solvers import from_planes, to_planes
from factformer.kernels.solvers.replay import repeated
from factformer.numerics.random_fields import periodic_field
from factformer.numerics.spectral import Spectrum, full_cutoff, resample, two_thirds_cutoff
from factformer.numerics.timestepping import (
    Function,
    crank_nicolson_heun,
    crank_nicolson_heun_stages,
    etdrk4,
    etdrk4_stages,
    num_steps,
)
from factformer.pdes import _presets
from factformer.pdes._base import PDE, Frames, State, Symmetries
from factformer.pdes._parts.symmetry import Generators, draw, moved_points, reflect_periodic, take
from factformer.problem import Field

INTEGRATORS = {
    "etdrk4": (etdrk4, etdrk4_stages),
    "crank_nicolson_heun": (crank_nicolson_heun, crank_nicolson_heun_stages),
}
SPECTRAL_DECAY, INVERSE_LENGTH = 2.5, 7.0  # α and τ of the random start


class Parameters(Config):
    """``dt`` is the largest solver step; the default follows the grid, `default_dt`."""

    reynolds: float = Value(default=1000.0, gt=0)
    forcing_wavenumber: int = Value(default=8, ge=0)
    drag: float = Value(default=0.1, ge=0)
    dt: float | None = Value(default=None, gt=0)
    integrator: Literal["etdrk4", "crank_nicolson_heun"] = "etdrk4"


class KolmogorovFlow(PDE):
    name = "kolmogorov_flow"
    downsamplings = ("truncate", "points")
    parameters = Parameters
    symmetry_parameters = ("forcing_wavenumber",)
    varying = ("reynolds", "drag")
    state = (Field("vorticity"),)
    task = _presets.KOLMOGOROV_FLOW_TASK
    presets = _presets.KOLMOGOROV_FLOW

    def grid(self, shape: Sequence[int]) -> Grid:
        return Grid(shape, 2 * math.pi, periodic=True)

    def sample_initial(
        self,
        grid: Grid,
        generators: Sequence[torch.Generator],
        *,
        dtype: torch.dtype,
        device: torch.device | str,
        initial: str | None = None,
    ) -> State:
        """Gaussian vorticity of zero mean, ``E|ω̂_k|² = 2 τ^(2α-2) (|k|² + τ²)^-α``, alike on every grid.

        Modes with ``k2 = 0`` carry half of that, as in the authors' generator (a real inverse transform of
        noise that is not symmetric), which brings the variance from 4.15 to 3.97.
        """
        self.choose_initial(initial)
        spectrum = Spectrum.of_grid(grid, full_cutoff(grid.shape), dtype=dtype, device=device)
        tau, alpha = INVERSE_LENGTH, SPECTRAL_DECAY
        amplitude = math.sqrt(2) * tau ** (alpha - 1) * (spectrum.squared + tau**2) ** (-alpha / 2)
        amplitude[:, 0] *= math.sqrt(0.5)
        amplitude[0, 0] = 0
        # one by one, so that not even round-off depends on the batch
        states = [spectrum.values(periodic_field(spectrum, amplitude, [item]), grid.shape) for item in generators]
        return torch.cat(states).unsqueeze(-1)

    def frames(self, initial: State, num_frames: int, frame_dt: float, parameters: Config) -> Iterator[State]:
        assert isinstance(parameters, Parameters)
        grid = self.grid(initial.shape[1:-1])
        dtype, device, shape = initial.dtype, initial.device, grid.shape
        spectrum = Spectrum.of_grid(grid, two_thirds_cutoff(shape), dtype=dtype, device=device)
        steps = num_steps(frame_dt, parameters.dt or default_dt(shape))
        vorticity = initial.squeeze(-1)
        state = spectrum.coefficients(vorticity)
        advance = _advance(state, spectrum, shape, parameters, frame_dt, steps)
        beyond = vorticity - spectrum.values(state, shape)
        yield initial
        carry = _linear_carry(grid, frame_dt, parameters, dtype, device)
        for _ in range(num_frames - 1):
            state = advance(state)
            beyond = carry(beyond)
            yield (spectrum.values(state, shape) + beyond).unsqueeze(-1)

    def downsample(self, frames: Frames, shape: Sequence[int], method: str | None = None) -> Frames:
        """``"truncate"`` (default) drops the modes that the coarse grid does not resolve; ``"points"`` takes
        every s-th point, as the paper does, which lets them alias."""
        if self.choose_downsampling(method) == "truncate":
            return resample(frames.squeeze(-1), len(shape), shape).unsqueeze(-1)
        for m, size in enumerate(shape, start=2):
            if frames.shape[m] % size:
                raise UserError(f"{size} is no divisor of the {frames.shape[m]} points to be sampled")
            frames = frames.index_select(
                m, torch.arange(0, frames.shape[m], frames.shape[m] // size, device=frames.device)
            )
        return frames

    def symmetries(self, grid: Grid, parameters: Config | None = None) -> Symmetries:
        """Any shift along x1, the rotation by π, and where the grid meets them: shifts of 2π/n along x2, and
        (x1 → -x1, shift of π/n along x2, ω → -ω)."""
        period, half_period = _forcing_periods(grid, parameters)
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

    def augment(self, frames: Frames, grid: Grid, generator: Generators, parameters: Config | None = None) -> Frames:
        batch, (size1, size2) = len(frames), grid.shape
        period, half_period = _forcing_periods(grid, parameters)
        shift1 = draw(generator, size1, batch)
        shift2 = draw(generator, size2 // period if period else 1, batch) * period
        rotate = draw(generator, 2, batch)
        flip = draw(generator, 2 if half_period else 1, batch)
        indices = [
            moved_points(size1, rotate ^ flip, shift1),
            moved_points(size2, rotate, shift2 + flip * half_period),
        ]
        sign = (1 - 2 * flip).to(frames.device, frames.dtype)
        return take(frames, indices) * sign.reshape(-1, *[1] * (frames.ndim - 1))


def default_dt(shape: Sequence[int]) -> float:
    """Half of what is stable for the fourth-order integrator at the speeds of the default forcing."""
    return min(1 / 128, 1.0 / max(shape))


def decay_rate(spectrum: Spectrum, parameters: Parameters) -> Tensor:
    """The symbol ``-|k|²/Re - drag`` of the linear terms."""
    return -spectrum.squared.double() / parameters.reynolds - parameters.drag


@dataclass(frozen=True)
class Symbols:
    """Of the two components of velocity from vorticity; of ``u2² - u1²`` and ``u1 u2`` in ``-u·∇ω``; and the force."""

    velocity: tuple[Tensor, Tensor]
    products: tuple[Tensor, Tensor]
    force: Tensor

    @classmethod
    def of(cls, spectrum: Spectrum, shape: Sequence[int], parameters: Parameters) -> Symbols:
        k1, k2 = spectrum.wavenumbers
        number = parameters.forcing_wavenumber
        if number > spectrum.cutoff[1]:
            raise UserError(
                f"forcing_wavenumber={number} needs over {3 * number} points along the last axis, got {shape[1]}"
            )
        # velocity = (∂ψ/∂x2, -∂ψ/∂x1) with ψ̂ = ω̂ / |k|²
        velocity = (1j * k2 * spectrum.inverse_squared, -1j * k1 * spectrum.inverse_squared)
        force = torch.zeros(spectrum.shape, dtype=velocity[0].dtype, device=spectrum.device)
        force[0, number] -= number / 2
        return cls(velocity, (k1 * k2, k1 * k1 - k2 * k2), force)


def nonlinear_term(spectrum: Spectrum, shape: Sequence[int], parameters: Parameters) -> Function:
    """Coefficients of ``-u·∇ω - n cos(n x2)`` from those of ω."""
    symbols = Symbols.of(spectrum, shape, parameters)
    velocity_of = torch.stack(symbols.velocity)
    # complex like what they multiply: torch would otherwise convert them anew in every product
    from_difference, from_product = (symbol.to(velocity_of.dtype) for symbol in symbols.products)

    def term(vorticity: Tensor) -> Tensor:
        u1, u2 = spectrum.values(velocity_of * vorticity.unsqueeze(-3), shape).unbind(-3)
        products = torch.stack([(u2 - u1) * (u2 + u1), u1 * u2], dim=-3)
        difference, product = spectrum.coefficients(products).unbind(-3)
        return from_difference * difference + from_product * product + symbols.force

    return term


def _advance(
    state: Tensor, spectrum: Spectrum, shape: Sequence[int], parameters: Parameters, interval: float, steps: int
) -> Function:
    """States like ``state`` over ``interval`` in equal steps."""
    plain, stages = INTEGRATORS[parameters.integrator]
    rate, dt = decay_rate(spectrum, parameters), interval / steps
    points = engine.solver_points(spectrum)
    if points is None:
        return repeated(plain(rate, nonlinear_term(spectrum, shape, parameters), dt, state.dtype), state, steps)
    from factformer.kernels.solvers.squares import square_stepper

    symbols = Symbols.of(spectrum, shape, parameters)
    step = square_stepper(spectrum, points, symbols.velocity, symbols.products, symbols.force, stages(rate, dt))
    over_planes = repeated(step, to_planes(state, 2), steps)
    return lambda current: from_planes(over_planes(to_planes(current, 2)), 2)


def _linear_carry(
    grid: Grid, interval: float, parameters: Parameters, dtype: torch.dtype, device: torch.device
) -> Function:
    """Exact evolution over ``interval`` under the linear terms, for every mode that the grid holds."""
    squared = [grid.wavenumbers(0)[:, None].square(), grid.wavenumbers(1, real=True).square()]
    rate = -(squared[0] + squared[1]) / parameters.reynolds - parameters.drag
    factor = torch.exp(interval * rate).to(device, dtype)

    def carry(values: Tensor) -> Tensor:
        # Axis by axis: the round-off of a transform along two axes at once depends on the size of the batch.
        coefficients = factor * torch.fft.fft(torch.fft.rfft(values, dim=-1), dim=-2)
        carried: Tensor = torch.fft.irfft(torch.fft.ifft(coefficients, dim=-2), n=grid.shape[1], dim=-1)
        return carried

    return carry


def _forcing_periods(grid: Grid, parameters: Config | None) -> tuple[int, int]:
    """Grid points in one period of the force along x2 and in half of one; 0 where that is no whole number."""
    assert parameters is None or isinstance(parameters, Parameters)
    number = (parameters or Parameters()).forcing_wavenumber
    size = grid.shape[1]
    if number == 0:
        return 1, 1
    return (0 if size % number else size // number), (0 if size % (2 * number) else size // (2 * number))


pde = KolmogorovFlow()
