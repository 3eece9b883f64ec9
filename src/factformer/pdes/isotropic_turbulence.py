"""Isotropic turbulence: forced incompressible Navier-Stokes flow on the periodic box (0, 2π)³.

    ∂u/∂t = u × ω - ∇q + ν ∇²u,   ω = ∇ × u,   ∇·u = 0,   q = p + |u|²/2

Pseudo-spectral in rotational form with the 3/2 rule (every mode but Nyquist is kept), Runge-Kutta of fourth
order. Forcing (Lamorgese, Caughey & Pope 2005): after every step the modes with |k| ≤ forcing_radius are
multiplied by the one factor that brings the energy back to its start value. The start is Rogallo's (1981).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import torch
from pydantic import Field as Value
from torch import Tensor

from factformer import engine
from factformer.config import Config
from factformer.grid import Grid
from factformer.kernels.solvers import from_planes, to_planes
from factformer.kernels.solvers.replay import repeated
from factformer.numerics.projection import fourier_divergence, fourier_projection
from factformer.numerics.random_fields import uniform_modes
from factformer.numerics.spectral import Spectrum, full_cutoff, padded_shape
from factformer.numerics.timestepping import Function, num_steps, runge_kutta4, runge_kutta4_stages
from factformer.pdes._common import presets as _presets
from factformer.pdes._common.base import State
from factformer.pdes._common.periodic import PeriodicBox
from factformer.pdes._common.ranges import per_sample
from factformer.pdes._common.symmetry import BoxSymmetry
from factformer.problem import Field

VISCOSITY = 50.0 ** (-4 / 3)  # ν = k_d^(-4/3) for the dissipation wavenumber k_d = 50
START_ENERGY = 84 * (50 * VISCOSITY) ** 2 / math.sqrt(20 / 3)  # of ½⟨|u|²⟩, for Re_λ = 84
PEAK_WAVENUMBER = 3.0  # k_f, where the spectrum of the start peaks


class Parameters(Config):
    """``pressure`` is what the first channel holds: the Bernoulli pressure p + |u|²/2, as in the data of the
    paper, or the static pressure p, both of zero mean."""

    viscosity: float = Value(default=VISCOSITY, ge=0)
    forcing: bool = True
    forcing_radius: float = Value(default=3.0, gt=0)
    dt: float = Value(default=0.002, gt=0)
    pressure: Literal["bernoulli", "static"] = "bernoulli"


class IsotropicTurbulence(PeriodicBox):
    name = "isotropic_turbulence"
    state = (Field("pressure"), Field("velocity", 3))
    dimensions = (3,)
    symmetry = BoxSymmetry(vector=1)
    """Shifts, reflections with the component's sign, exchanges of equal axes with their components."""
    parameters = Parameters
    varying = ("viscosity",)
    cuttable = True
    num_initial_channels = 3
    initial_kinds = ("rogallo", "released")
    task = _presets.ISOTROPIC_TURBULENCE_TASK
    presets = _presets.ISOTROPIC_TURBULENCE

    def grid(self, shape: Sequence[int]) -> Grid:
        return Grid(shape, 2 * math.pi, periodic=True)

    def starts(self, grid: Grid, generators: Sequence[torch.Generator], kind: str, like: Tensor) -> State:
        """Divergence-free velocity of spectrum ``(k/k_f)²`` up to ``k_f = 3`` and ``(k/k_f)^(-5/3)`` above.

        ``"rogallo"`` has random phases. ``"released"`` is what the authors' generator makes and the paper's
        numbers were made on: the square root of the spectrum is taken twice, the random angles are imaginary,
        which leaves phases fixed and a spike at the origin, and the third component has the wrong sign, of
        which the projection keeps ``(k_3² - k_1² - k_2²)/k²``.
        """
        shape = grid.whole.shape
        spectrum = Spectrum.of_grid(grid, full_cutoff(shape), dtype=torch.float64, device=like.device)
        states = []
        # one by one on a CPU, so that not even round-off depends on the batch
        at_once = len(generators) if spectrum.device.type == "cuda" else 1
        for first in range(0, len(generators), at_once):
            draws = uniform_modes(spectrum.cutoff, 3, generators[first : first + at_once], spectrum.ranges).to(
                like.device
            )
            velocity = _random_velocity(spectrum, draws, released=kind == "released")
            energy = 0.5 * spectrum.mean_product(velocity, velocity).sum(1)
            factor = (START_ENERGY / energy).sqrt().reshape(-1, *[1] * (velocity.ndim - 1))
            states.append(spectrum.values(velocity * factor, shape).movedim(1, -1).to(like.dtype))
        return torch.cat(states)

    def frames(
        self, initial: State, num_frames: int, frame_dt: float, parameters: Config, grid: Grid | None = None
    ) -> Iterator[State]:
        """Frames of (pressure, u, v, w). Frame 0 holds the divergence-free part of the given velocity."""
        assert isinstance(parameters, Parameters)
        grid = grid or self.grid(initial.shape[1:-1])
        shape = grid.whole.shape
        spectrum = Spectrum.of_grid(grid, full_cutoff(shape), dtype=initial.dtype, device=initial.device)
        rate, pressure = _momentum(spectrum, parameters)
        steps = num_steps(frame_dt, parameters.dt)
        state = fourier_projection(spectrum.coefficients(initial.movedim(-1, 1), shape), spectrum)
        advance = _advance(state, rate, spectrum, parameters, frame_dt, steps)
        for number in range(num_frames):
            if number:
                state = advance(state)
            fields = torch.cat([pressure(state), state], dim=1)
            yield spectrum.values(fields, shape).movedim(1, -1)


def _momentum(spectrum: Spectrum, parameters: Parameters) -> tuple[Function, Function]:
    """The rate of change of the velocity's coefficients ``(batch, 3, *modes)``, and a state's pressure."""
    points = padded_shape(spectrum.cutoff)
    viscosity: Any = parameters.viscosity
    if isinstance(viscosity, Tensor):
        viscosity = per_sample(viscosity.to(spectrum.dtype), 2 + spectrum.num_axes, spectrum.device)
    damping: Tensor = -viscosity * spectrum.squared
    k1, k2, k3 = (1j * k for k in spectrum.wavenumbers)

    def lamb_vector(velocity: Tensor) -> Tensor:
        """Coefficients of ``u × ω``."""
        u1, u2, u3 = velocity.unbind(1)
        vorticity = torch.stack([k2 * u3 - k3 * u2, k3 * u1 - k1 * u3, k1 * u2 - k2 * u1], dim=1)
        u1, u2, u3 = spectrum.values(velocity, points).unbind(1)
        w1, w2, w3 = spectrum.values(vorticity, points).unbind(1)
        product = torch.stack([u2 * w3 - u3 * w2, u3 * w1 - u1 * w3, u1 * w2 - u2 * w1], dim=1)
        return spectrum.coefficients(product, points)

    def rate(velocity: Tensor) -> Tensor:
        return fourier_projection(lamb_vector(velocity), spectrum) + damping * velocity

    def pressure(velocity: Tensor) -> Tensor:
        """``∇²q = ∇·(u × ω)``; less ``|u|²/2`` and the mean for the static pressure."""
        result = -1j * fourier_divergence(lamb_vector(velocity), spectrum) * spectrum.inverse_squared
        if parameters.pressure == "static":
            speed = spectrum.values(velocity, points)
            kinetic = spectrum.coefficients(0.5 * speed.square().sum(1), points)
            result = result - torch.where(spectrum.is_mean, 0, kinetic)
        return result.unsqueeze(1)

    return rate, pressure


def _advance(
    state: Tensor, rate: Function, spectrum: Spectrum, parameters: Parameters, interval: float, steps: int
) -> Function:
    """States like ``state`` over ``interval`` in equal steps, each of which ends with the force."""
    dt, num_axes = interval / steps, spectrum.num_axes
    points = engine.solver_points(spectrum)
    if points is None:
        step = _forced(runge_kutta4(rate, dt), _energy_keeper, state, spectrum, parameters)
        return repeated(step, state, steps, recorded=spectrum.pencils.is_whole)
    from factformer.kernels.solvers.cross import cross_stepper

    step = cross_stepper(spectrum, points, parameters.viscosity, runge_kutta4_stages(dt))
    planes = to_planes(state, num_axes)
    over_planes = repeated(_forced(step, _energy_keeper_of_planes, planes, spectrum, parameters), planes, steps)
    return lambda current: from_planes(over_planes(to_planes(current, num_axes)), num_axes)


def _forced(
    step: Function,
    keeper: Callable[[Tensor, Spectrum, Parameters], Function],
    start: Tensor,
    spectrum: Spectrum,
    parameters: Parameters,
) -> Function:
    if not parameters.forcing:
        return step
    force = keeper(start, spectrum, parameters)
    return lambda state: force(step(state))


def _is_forced(spectrum: Spectrum, parameters: Parameters) -> Tensor:
    return spectrum.squared.double() <= parameters.forcing_radius**2 * (1 + 1e-12)


def _energy_keeper(start: Tensor, spectrum: Spectrum, parameters: Parameters) -> Function:
    """Multiplies the large scales by the factor that gives a state the energy of ``start``."""
    large = _is_forced(spectrum, parameters).to(spectrum.dtype)
    energy = spectrum.mean_product(start, start).sum(1)

    def force(state: Tensor) -> Tensor:
        total = spectrum.mean_product(state, state).sum(1)
        inside = spectrum.mean_product(state, large * state).sum(1)
        factor = _factor(energy, total, inside)
        return state * (1 + (factor.reshape(-1, 1, 1, 1, 1) - 1) * large)

    return force


def _energy_keeper_of_planes(start: Tensor, spectrum: Spectrum, parameters: Parameters) -> Function:
    """The same for planes ``(batch, 3, 2, *modes)``; it writes to the few large scales alone, in place."""
    large = _is_forced(spectrum, parameters).flatten().nonzero().squeeze(1)
    multiplicity = spectrum.multiplicity.flatten()
    weights = multiplicity.expand(*start.shape[1:3], -1).flatten()

    def force(state: Tensor) -> Tensor:
        modes = state.flatten(3)
        scales = modes.index_select(3, large)
        inside = (scales.square() * multiplicity[large]).sum((1, 2, 3))
        factor = _factor(energy, state.square().flatten(1) @ weights, inside)
        modes.index_copy_(3, large, scales * factor.reshape(-1, 1, 1, 1))
        return state

    energy = start.square().flatten(1) @ weights
    return force


def _factor(wanted: Tensor, total: Tensor, inside: Tensor) -> Tensor:
    """What the scales that hold the energy ``inside`` are multiplied by, so that ``total`` becomes ``wanted``."""
    needed = (wanted - (total - inside)).clamp_min(0)
    return torch.where(inside > 0, (needed / inside.clamp_min(1e-30)).sqrt(), 1.0)


def _random_velocity(spectrum: Spectrum, draws: Tensor, released: bool) -> Tensor:
    """``û = α e_1 + β e_2``, ``e_1 ⟂ e_2 ⟂ k`` (Rogallo 1981); ``draws`` of [0, 1) stand for three angles.

    The energy of the shell ``|k|`` is ``E(k)`` for ``|α|² + |β|² = E(k)/(4π k²)``, up to a common factor.
    """
    k1, k2, k3 = (k.expand(spectrum.shape) for k in spectrum.wavenumbers)
    squared = spectrum.squared.clamp_min(1)
    k, across = squared.sqrt(), (k1**2 + k2**2).sqrt()
    ratio = k / PEAK_WAVENUMBER
    energy = torch.where(ratio <= 1, ratio**2, ratio ** (-5 / 3))
    amplitude = torch.where(spectrum.is_mean, 0, ((energy.sqrt() if released else energy) / squared).sqrt())
    theta1, theta2, phi = (2 * math.pi * draw for draw in draws.unbind(1))
    on_axis = across == 0  # there any two directions across k will do
    if released:
        alpha = torch.exp(-theta1) * torch.cosh(phi) + 0j
        beta = 1j * torch.exp(-theta2) * torch.sinh(phi) * (k3**2 - across**2) / squared
        amplitude = torch.where(on_axis, 0, amplitude)
    else:
        alpha = torch.polar(torch.cos(phi), theta1)
        beta = torch.polar(torch.sin(phi), theta2)
    alpha, beta = amplitude * alpha, amplitude * beta
    across = torch.where(on_axis, 1, across)
    c1 = torch.where(on_axis, 0, k1 / across)
    c2 = torch.where(on_axis, 1, k2 / across)
    sine = torch.where(on_axis, 0, across) / k
    along = beta * k3 / k
    velocity = torch.stack([alpha * c2 + along * c1, along * c2 - alpha * c1, -beta * sine], dim=1)
    return spectrum.mirrored(velocity, average=released)


pde = IsotropicTurbulence()
