"""Two-dimensional incompressible flow on a periodic box, by its vorticity.

    ∂ω/∂t + u·∇ω = L ω + f,   ω = ∂u2/∂x1 - ∂u1/∂x2,   -∇²ψ = ω,   u1 = ∂ψ/∂x2,   u2 = -∂ψ/∂x1

A subclass gives the symbol of ``L`` and the coefficients of the steady force ``f``. Pseudo-spectral with the 2/3 rule.
Since u is divergence-free,

    (u·∇ω) = ∂²(u2² - u1²)/∂x1∂x2 + (∂²/∂x1² - ∂²/∂x2²)(u1 u2),

which takes four transforms instead of the five of the advective form (Basdevant 1983). Modes of the initial
state beyond the cut take no part in the products; the linear terms carry them exactly.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from factformer import engine
from factformer.errors import UserError
from factformer.grid import Grid
from factformer.kernels.solvers import from_planes, to_planes
from factformer.kernels.solvers.replay import repeated
from factformer.numerics.pencils import WHOLE, pencils_of
from factformer.numerics.random_fields import periodic_field
from factformer.numerics.spectral import Spectrum, full_cutoff, resample, transform, two_thirds_cutoff
from factformer.numerics.timestepping import (
    Function,
    crank_nicolson_heun,
    crank_nicolson_heun_stages,
    etdrk4,
    etdrk4_stages,
    num_steps,
)
from factformer.pdes._common.base import PDE, Frames, State
from factformer.problem import Field

SPECTRAL_DECAY, INVERSE_LENGTH = 2.5, 7.0  # α and τ of the random start
INTEGRATORS = {
    "etdrk4": (etdrk4, etdrk4_stages),
    "crank_nicolson_heun": (crank_nicolson_heun, crank_nicolson_heun_stages),
}


class VorticityFlow(PDE):
    """Parameters of a subclass have ``dt``, by default `default_dt`, and ``integrator``."""

    downsamplings = ("truncate", "points")
    state = (Field("vorticity"),)
    vectorized = True
    cuttable = True
    length: ClassVar[float]
    """Of the box along either axis."""
    halved_start: ClassVar[bool] = False
    """Whether modes with ``k2 = 0`` of a random start carry half of its spectrum."""

    @abstractmethod
    def decay_rate(self, squared: Tensor, parameters: Any) -> Tensor:
        """The symbol of the linear terms where ``|k|²`` is ``squared``, in float64."""

    @abstractmethod
    def force(self, spectrum: Spectrum, shape: Sequence[int], parameters: Any) -> Tensor:
        """Coefficients of the force, ``(*modes)`` or ``(batch, *modes)``."""

    @abstractmethod
    def default_dt(self, shape: Sequence[int]) -> float:
        """The largest step where ``dt`` is not given. It depends on the grid alone, so all trajectories share it."""

    def grid(self, shape: Sequence[int]) -> Grid:
        return Grid(shape, self.length, periodic=True)

    def starts(self, grid: Grid, generators: Sequence[torch.Generator], kind: str, like: Tensor) -> State:
        """Gaussian vorticity of zero mean, ``E|ω̂_k|² = 2 τ^(2α-2) (|k|² + τ²)^-α``, alike on every grid."""
        tau, alpha, shape = INVERSE_LENGTH, SPECTRAL_DECAY, grid.whole.shape
        spectrum = Spectrum.of_grid(grid, full_cutoff(shape), dtype=like.dtype, device=like.device)
        scale = math.sqrt(2) * tau ** (alpha - 1)
        amplitude = scale * (spectrum.squared + tau**2) ** (-alpha / 2)
        if self.halved_start:
            amplitude = torch.where(spectrum.indices[1] == 0, amplitude * 0.5**0.5, amplitude)
        amplitude = torch.where(spectrum.is_mean, 0, amplitude)
        # one by one, so that not even round-off depends on the batch
        states = [spectrum.values(periodic_field(spectrum, amplitude, [item]), shape) for item in generators]
        return torch.cat(states).unsqueeze(-1)

    def frames(
        self, initial: State, num_frames: int, frame_dt: float, parameters: Any, grid: Grid | None = None
    ) -> Iterator[State]:
        grid = grid or self.grid(initial.shape[1:-1])
        dtype, device, shape = initial.dtype, initial.device, grid.whole.shape
        spectrum = Spectrum.of_grid(grid, two_thirds_cutoff(shape), dtype=dtype, device=device)
        steps = num_steps(frame_dt, parameters.dt or self.default_dt(shape))
        vorticity = initial.squeeze(-1)
        state = spectrum.coefficients(vorticity, shape)
        advance = self._advance(state, spectrum, shape, parameters, frame_dt, steps)
        beyond = vorticity - spectrum.values(state, shape)
        yield initial
        carry = self._linear_carry(grid, frame_dt, parameters, dtype, device)
        for _ in range(num_frames - 1):
            state = advance(state)
            beyond = carry(beyond)
            yield (spectrum.values(state, shape) + beyond).unsqueeze(-1)

    def downsample(
        self, frames: Frames, shape: Sequence[int], method: str | None = None, grid: Grid | None = None
    ) -> Frames:
        """``"truncate"`` (default) drops the modes that the coarse grid does not resolve; ``"points"`` takes
        every s-th point, which lets them alias."""
        if self.choose_downsampling(method) == "truncate":
            return resample(frames.squeeze(-1), len(shape), shape, grid).unsqueeze(-1)
        return every_point(frames, shape, grid)

    def _advance(
        self, state: Tensor, spectrum: Spectrum, shape: Sequence[int], parameters: Any, interval: float, steps: int
    ) -> Function:
        """States like ``state`` over ``interval`` in equal steps."""
        plain, stages = INTEGRATORS[parameters.integrator]
        rate, dt = self.decay_rate(spectrum.to(torch.float64).squared, parameters), interval / steps
        force = self.force(spectrum, shape, parameters)
        points = engine.solver_points(spectrum)
        if points is None:
            step = plain(rate, nonlinear_term(spectrum, shape, force), dt, state.dtype)
            return repeated(step, state, steps, recorded=spectrum.pencils.is_whole)
        from factformer.kernels.solvers.squares import square_stepper

        step = square_stepper(
            spectrum, points, velocity_symbols(spectrum), product_symbols(spectrum), force, stages(rate, dt)
        )
        over_planes = repeated(step, to_planes(state, 2), steps)
        return lambda current: from_planes(over_planes(to_planes(current, 2)), 2)

    def _linear_carry(
        self, grid: Grid, interval: float, parameters: Any, dtype: torch.dtype, device: torch.device
    ) -> Function:
        """Exact evolution over ``interval`` under the linear terms, for every mode that the grid holds."""
        pencils, shape = pencils_of(grid), grid.whole.shape
        squared = grid.wavenumbers(0)[:, None].square() + grid.wavenumbers(1, real=True).square()
        factor = torch.exp(interval * self.decay_rate(squared, parameters)).to(device, dtype)

        def carry(values: Tensor) -> Tensor:
            # Axis by axis: the round-off of a transform along two axes at once depends on the size of the batch.
            lines = pencils.to_modes(torch.fft.rfft(values, dim=-1), 0, shape[0])
            carried = transform(torch.fft.ifft, factor * transform(torch.fft.fft, lines, -2), -2)
            points: Tensor = torch.fft.irfft(pencils.to_points(carried, 0, shape[1] // 2 + 1), n=shape[1], dim=-1)
            return points

        return carry


def velocity_symbols(spectrum: Spectrum) -> tuple[Tensor, Tensor]:
    """Of ``(∂ψ/∂x2, -∂ψ/∂x1)`` with ``ψ̂ = ω̂ / |k|²``."""
    k1, k2 = spectrum.wavenumbers
    return 1j * k2 * spectrum.inverse_squared, -1j * k1 * spectrum.inverse_squared


def product_symbols(spectrum: Spectrum) -> tuple[Tensor, Tensor]:
    """Of ``u2² - u1²`` and ``u1 u2`` in ``-u·∇ω``."""
    k1, k2 = spectrum.wavenumbers
    return k1 * k2, k1 * k1 - k2 * k2


def nonlinear_term(spectrum: Spectrum, shape: Sequence[int], force: Tensor) -> Function:
    """Coefficients of ``-u·∇ω + f`` from those of ω."""
    velocity_of = torch.stack(velocity_symbols(spectrum))
    # complex like what they multiply: torch would otherwise convert them anew in every product
    from_difference, from_product = (symbol.to(velocity_of.dtype) for symbol in product_symbols(spectrum))

    def term(vorticity: Tensor) -> Tensor:
        u1, u2 = spectrum.values(velocity_of * vorticity.unsqueeze(-3), shape).unbind(-3)
        products = torch.stack([(u2 - u1) * (u2 + u1), u1 * u2], dim=-3)
        difference, product = spectrum.coefficients(products, shape).unbind(-3)
        return from_difference * difference + from_product * product + force

    return term


def every_point(frames: Frames, shape: Sequence[int], grid: Grid | None = None) -> Frames:
    """Every s-th point along each axis; ``grid`` is what the frames are on, where that is a part."""
    sizes = frames.shape[2:-1] if grid is None else grid.whole.shape
    pencils = WHOLE if grid is None else pencils_of(grid)
    pairs = zip(pencils.points(sizes), pencils.points(shape), strict=True)
    for m, (size, whole, (fine, coarse)) in enumerate(zip(shape, sizes, pairs, strict=True)):
        if whole % size:
            raise UserError(f"{size} is no divisor of the {whole} points to be sampled")
        step = whole // size
        if (fine.start, fine.stop) != (step * coarse.start, step * coarse.stop):
            raise UserError(
                f"downsampling=points needs a multiple of the processes as points, got {size}; use truncate"
            )
        frames = frames.index_select(m + 2, torch.arange(0, frames.shape[m + 2], step, device=frames.device))
    return frames
