"""The Vlasov-Poisson equations: electrons of a plasma in phase space, over a background of ions at rest.

    ∂f/∂t + v·∇_x f - E·∇_v f = 0,        ∇·E = 1 - ∫ f dv,        E = -∇φ

Axes are the positions, periodic on ``(0, extent)``, then the velocities on ``[-v_max, v_max)``: two axes for one
dimension of space, four for two. On the grid a velocity axis is periodic and begins at 0, so that ``v = x - v_max``;
``f`` should vanish towards its ends.

Strang splitting: half a step of free flight, a step of acceleration, half a step of free flight. Each is a shift along
an axis, exact for every mode (`factformer.numerics.spectral.Shift`), so that mass and the norm of f are conserved to
round-off.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any, Literal

import torch
from pydantic import Field as Value
from torch import Tensor

from factformer.config import Config
from factformer.grid import Grid
from factformer.kernels.solvers.replay import repeated
from factformer.numerics.spectral import Shift, transform, wavenumber_unit
from factformer.numerics.timestepping import Function, num_steps
from factformer.pdes._common import presets as _presets
from factformer.pdes._common.base import PDE, Frames, State, Symmetries
from factformer.pdes._common.ranges import per_sample
from factformer.pdes._common.symmetry import Generators, draw, moved_points, reflect_periodic, take
from factformer.problem import Field

STREAM_WIDTH = 0.3
"""Thermal velocity of each of two streams; that of a single Maxwellian is 1."""
MOST_WAVES = 3
"""Largest wavenumber index of a random perturbation."""


class Parameters(Config):
    """With the default ``extent`` the longest wave has the wavenumber 0.5. ``content`` says what frames hold: f, or its
    departure from the Maxwellian of unit density and temperature. The initial state is f in either case."""

    extent: float = Value(default=4 * math.pi, gt=0)
    v_max: float = Value(default=6.0, gt=0)
    dt: float = Value(default=0.1, gt=0)
    content: Literal["distribution", "departure"] = "distribution"


class VlasovPoisson(PDE):
    name = "vlasov_poisson"
    parameters = Parameters
    varying = ("extent",)
    vectorized = True
    state = (Field("distribution"),)
    dimensions = (2, 4)
    initial_kinds = ("mixed", "landau", "two_stream", "waves")
    task = _presets.VLASOV_POISSON_TASK
    presets = _presets.VLASOV_POISSON

    def grid(self, shape: Sequence[int]) -> Grid:
        return self.grid_of(shape, Parameters())

    def grid_of(self, shape: Sequence[int], parameters: Any) -> Grid:
        half = len(shape) // 2
        return Grid(shape, [parameters.extent] * half + [2 * parameters.v_max] * half, periodic=True)

    def starts(self, grid: Grid, generators: Sequence[torch.Generator], kind: str, like: Tensor) -> State:
        """Maxwellians (``landau``) or two streams (``two_stream``) with a random wave in the density.

        ``mixed`` takes one or the other at random; ``waves`` are Maxwellians with all of the longest waves at once.
        """
        if kind == "waves":
            return torch.stack([_long_waves(grid, generator) for generator in generators]).to(like)
        return torch.stack([_start(grid, generator, kind) for generator in generators]).to(like)

    def frames(self, initial: State, num_frames: int, frame_dt: float, parameters: Config) -> Iterator[State]:
        assert isinstance(parameters, Parameters)
        steps = num_steps(frame_dt, parameters.dt)
        state = initial.squeeze(-1)
        advance = repeated(_strang_step(state, parameters, frame_dt / steps), state, steps)
        rest = _maxwellian(state, parameters) if parameters.content == "departure" else None
        yield initial if rest is None else initial - rest.unsqueeze(-1)
        for _ in range(num_frames - 1):
            state = advance(state)
            yield (state.clone() if rest is None else state - rest).unsqueeze(-1)

    def reductions(self, frames: Frames, grid: Grid) -> Mapping[str, Tensor]:
        """The density ``∫ f dv``, half the mean of ``|E|²``, and what is left of f without its mean over positions.

        That departure is taken in the plane of the first position and its velocity: summed over the other velocities,
        averaged over the other positions.
        """
        half, distribution = grid.num_axes // 2, frames[..., 0]
        parameters = Parameters(extent=grid.extent[0], v_max=grid.extent[half] / 2)
        states = distribution.flatten(0, 1)
        energy = sum(0.5 * e.square().flatten(1).mean(1) for e in ElectricField(states, parameters)(states))
        assert isinstance(energy, Tensor)
        velocities = range(2 + half, 2 + 2 * half)
        cell = math.prod(map(grid.spacing, range(half, 2 * half)))
        density = cell * distribution.sum(tuple(velocities), keepdim=True)
        plane = distribution
        if half > 1:
            plane = plane.sum(tuple(velocities[1:]), keepdim=True).mean(tuple(range(3, 2 + half)), keepdim=True)
            plane = plane * math.prod(map(grid.spacing, range(half + 1, 2 * half)))
        return {
            "density": density.unsqueeze(-1),
            "departure from the mean over positions": (plane - plane.mean(2, keepdim=True)).unsqueeze(-1),
            "energy of the electric field": energy.reshape(*frames.shape[:2], *[1] * (2 * half + 1)),
        }

    def symmetries(self, grid: Grid, parameters: Config | None = None) -> Symmetries:
        """Shifts in space; the reflection of a position together with its velocity."""
        half = grid.num_axes // 2
        by = [grid.shape[m] // 3 for m in range(half)]
        return {
            "shift": lambda frames: frames.roll(by, tuple(range(2, 2 + half))),
            "reflection": lambda frames: reflect_periodic(reflect_periodic(frames, 2), 2 + half),
        }

    def augment(self, frames: Frames, grid: Grid, generator: Generators, parameters: Config | None = None) -> Frames:
        batch, half = len(frames), grid.num_axes // 2
        reflect = [draw(generator, 2, batch) for _ in range(half)]
        shift = [draw(generator, size, batch) for size in grid.shape[:half]]
        still = torch.zeros(batch, dtype=torch.long)
        indices = [
            moved_points(size, reflect[m % half], shift[m] if m < half else still) for m, size in enumerate(grid.shape)
        ]
        return take(frames, indices)


def _maxwellian(like: Tensor, parameters: Parameters) -> Tensor:
    """Of unit density and temperature, at rest, for distributions ``(batch, *positions, *velocities)``."""
    bells = torch.ones((), dtype=torch.float64, device=like.device)
    for m in range(1 + like.ndim // 2, like.ndim):
        v = torch.arange(like.shape[m], dtype=torch.float64, device=like.device) * (2 / like.shape[m]) - 1
        v = (v * parameters.v_max).reshape([-1 if axis == m else 1 for axis in range(like.ndim)])
        bells = bells * torch.exp(-v.square() / 2) / math.sqrt(2 * math.pi)
    return bells.to(like.dtype)


class ElectricField:
    """``E`` of distributions ``(batch, *positions, *velocities)``: for each position axis ``(batch, *positions)``."""

    def __init__(self, like: Tensor, parameters: Parameters) -> None:
        self.half = (like.ndim - 1) // 2
        self.shape = like.shape[1 : 1 + self.half]
        self.positions = tuple(range(1, 1 + self.half))
        self.velocities = tuple(range(1 + self.half, like.ndim))
        self.cell = math.prod(2 * parameters.v_max / like.shape[m] for m in self.velocities)
        unit = wavenumber_unit(per_sample(parameters.extent, 1 + self.half))  # on the CPU, as all symbols at first
        wavenumbers = []
        for m, size in zip(self.positions, self.shape, strict=True):
            frequencies = torch.fft.rfftfreq if m == self.half else torch.fft.fftfreq
            index = frequencies(size, 1 / size, dtype=torch.float64)
            wavenumbers.append(unit * index.reshape([-1 if axis == m else 1 for axis in range(1 + self.half)]))
        squared = torch.zeros((), dtype=torch.float64)
        for wavenumber in wavenumbers:
            squared = squared + wavenumber.square()
        inverse = torch.where(squared > 0, 1 / squared.clamp_min(torch.finfo(torch.float64).tiny), 0)
        complex_dtype = torch.complex128 if like.dtype == torch.float64 else torch.complex64
        self.symbols = [(-1j * k * inverse).to(like.device, complex_dtype) for k in wavenumbers]

    def __call__(self, distribution: Tensor) -> list[Tensor]:
        charge = 1 - self.cell * distribution.sum(self.velocities)
        *others, last = self.positions
        modes = transform(torch.fft.rfft, charge, last)
        for axis in others:
            modes = transform(torch.fft.fft, modes, axis)
        fields = []
        for symbol in self.symbols:
            component = symbol * modes
            for axis in others:
                component = transform(torch.fft.ifft, component, axis)
            fields.append(transform(torch.fft.irfft, component, last, size=self.shape[-1]))
        return fields


def _strang_step(state: Tensor, parameters: Parameters, dt: float) -> Function:
    half = (state.ndim - 1) // 2
    field = ElectricField(state, parameters)
    extent = per_sample(parameters.extent, state.ndim, state.device)
    flights = []
    for m in range(half):
        size = state.shape[1 + half + m]
        velocity = (torch.arange(size, dtype=torch.float64, device=state.device) * (2 / size) - 1) * parameters.v_max
        velocity[0] = 0  # -v_max and v_max are one point: it stays, so that neither direction is preferred
        view = [-1 if axis == 1 + half + m else 1 for axis in range(state.ndim)]
        shift = Shift(state, 1 + m, extent)
        flights.append((shift, shift.factor((0.5 * dt * velocity).to(state.dtype).reshape(view))))
    pushes = [Shift(state, 1 + half + m, 2 * parameters.v_max) for m in range(half)]

    def fly(distribution: Tensor) -> Tensor:
        for shift, factor in flights:
            distribution = shift(distribution, factor)
        return distribution

    def step(distribution: Tensor) -> Tensor:
        distribution = fly(distribution)
        for push, component in zip(pushes, field(distribution), strict=True):
            distribution = push(distribution, push.factor(-dt * component.reshape(*component.shape, *[1] * half)))
        return fly(distribution)

    return step


def _start(grid: Grid, generator: torch.Generator, kind: str) -> Tensor:
    """One state ``(*grid, 1)`` in float64."""
    half = grid.num_axes // 2
    draws = torch.rand(4, generator=generator, dtype=torch.float64).tolist()
    waves = torch.randint(0, MOST_WAVES + 1, (half,), generator=generator)
    if not bool(waves.any()):
        waves[0] = 1
    streams = kind == "two_stream" or (kind == "mixed" and draws[0] < 0.5)
    if streams:  # the longest wave along the streams, which they amplify
        waves[0] = 1
    amplitude = float(10 ** (-2 + 1.5 * draws[1]))  # 0.01 … 0.3
    phase = torch.full((), 2 * math.pi * draws[2], dtype=torch.float64)
    for m in range(half):
        phase = phase + (2 * math.pi * int(waves[m]) / grid.extent[m]) * _along(grid, m)
    density = 1 + amplitude * torch.cos(phase)
    longest = 2 * math.pi / grid.extent[0]
    drift = (0.5 + 0.25 * draws[3]) / longest if streams else 0.0  # unstable as long as k v is below 1
    width = STREAM_WIDTH if streams else 1.0
    for m in range(half, grid.num_axes):
        v = _along(grid, m) - grid.extent[m] / 2
        along = drift if m == half else 0.0  # streams along the first velocity
        sigma = width if m == half else 1.0
        bell = torch.exp(-((v - along) ** 2) / (2 * sigma**2)) + torch.exp(-((v + along) ** 2) / (2 * sigma**2))
        density = density * (bell / (2 * sigma * math.sqrt(2 * math.pi)))
    return density.expand(grid.shape).unsqueeze(-1)


def _long_waves(grid: Grid, generator: torch.Generator) -> Tensor:
    """One state ``(*grid, 1)`` in float64: a Maxwellian whose density has every wave of index -1, 0 and 1 in each
    position, of random phases and shares; their amplitudes add up to 0.05 … 0.2, evenly in the logarithm."""
    half = grid.num_axes // 2
    indices = [index for index in product((1, 0, -1), repeat=half) if index > (0,) * half]  # one of k and -k
    draws = torch.rand(1 + 2 * len(indices), generator=generator, dtype=torch.float64).tolist()
    shares, phases = draws[1 : 1 + len(indices)], draws[1 + len(indices) :]
    largest = 0.05 * 4 ** draws[0] / sum(shares)
    density = torch.ones((), dtype=torch.float64)
    for index, share, turn in zip(indices, shares, phases, strict=True):
        phase = torch.full((), 2 * math.pi * turn, dtype=torch.float64)
        for m, waves in enumerate(index):
            phase = phase + (2 * math.pi * waves / grid.extent[m]) * _along(grid, m)
        density = density + largest * share * torch.cos(phase)
    for m in range(half, grid.num_axes):
        v = _along(grid, m) - grid.extent[m] / 2
        density = density * torch.exp(-(v**2) / 2) / math.sqrt(2 * math.pi)
    return density.expand(grid.shape).unsqueeze(-1)


def _along(grid: Grid, m: int) -> Tensor:
    """Coordinates of axis ``m``, in the shape of the grid."""
    return grid.axis(m).double().reshape([-1 if axis == m else 1 for axis in range(grid.num_axes)])


pde = VlasovPoisson()
