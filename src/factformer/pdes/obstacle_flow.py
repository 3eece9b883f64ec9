"""Flow past bodies: two-dimensional incompressible flow, with bodies as regions of high friction.

    ∂u/∂t + u·∇u = -∇p + ν ∇²u - (χ/η) u - λ (u - U e1),   ∇·u = 0        on a periodic box of 2:1

Volume penalisation (Angot, Bruneau & Fabrie 1999): χ is 1 inside the bodies and 0 in the fluid, and as η falls the
velocity on their surface tends to zero. The fringe λ at the end of the box brings the stream U back before it enters
again. Pseudo-spectral in rotational form, `u × ω`, with the 2/3 rule; the projection is exact, so that the divergence
is round-off. In time ETDRK4: viscosity is exact and friction explicit, so a step is at most 2 η. (A step that splits
friction off exactly may be longer, but then bodies leak as if η were the step: nothing is won.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from pydantic import Field as Value
from torch import Tensor

from factformer.batch import Batch
from factformer.config import Config
from factformer.grid import Grid
from factformer.kernels.solvers.replay import repeated
from factformer.numerics.projection import fourier_projection
from factformer.numerics.random_fields import truncated_series
from factformer.numerics.spectral import Spectrum, two_thirds_cutoff
from factformer.numerics.timestepping import Function, etdrk4, num_steps
from factformer.pdes._common import presets as _presets
from factformer.pdes._common.base import PDE, Frames, State, Symmetries
from factformer.pdes._common.bodies import random_bodies
from factformer.pdes._common.ranges import per_sample
from factformer.pdes._common.symmetry import Generators, draw, moved_points, reflect_periodic, take
from factformer.pdes._common.vorticity import every_point
from factformer.problem import Field

FRINGE = (0.82, 0.98)  # where the fringe lies, of the length of the box
FRINGE_STRENGTH = 12.0  # integral of λ over its length, times U: the wake is weakened by its exponential
NOISE = 0.05  # of the stream, at the start


class Parameters(Config):
    """``extent`` is the length of the box, which is half as high; ``penalisation`` is η.

    ``dt`` is the largest step; it is shortened to `stable_dt`.
    """

    viscosity: float = Value(default=0.004, gt=0)
    stream: float = Value(default=1.0, gt=0)
    penalisation: float = Value(default=2.5e-3, gt=0)
    extent: float = Value(default=8.0, gt=0)
    dt: float | None = Value(default=None, gt=0)


class ObstacleFlow(PDE):
    name = "obstacle_flow"
    parameters = Parameters
    varying = ("viscosity",)
    vectorized = True
    state = (Field("velocity", 2),)
    masked = True
    downsamplings = ("points",)
    task = _presets.OBSTACLE_FLOW_TASK
    presets = _presets.OBSTACLE_FLOW

    def grid(self, shape: Sequence[int]) -> Grid:
        return self.grid_of(shape, Parameters())

    def grid_of(self, shape: Sequence[int], parameters: Any) -> Grid:
        return Grid(shape, (parameters.extent, parameters.extent / 2), periodic=True)

    def shape(self, resolution: int) -> tuple[int, ...]:
        """``resolution`` points across the stream and twice as many along it."""
        return (2 * resolution, resolution)

    def sample_known(
        self,
        grid: Grid,
        generators: Sequence[torch.Generator],
        num_frames: int,
        frame_dt: float,
        *,
        dtype: torch.dtype,
        device: torch.device | str,
    ) -> Batch:
        """The mask, false in one to four random bodies."""
        mask = torch.stack([~random_bodies(grid, generator) for generator in generators])
        return Batch(mask=mask.to(device))

    def starts(self, grid: Grid, generators: Sequence[torch.Generator], kind: str, like: Tensor) -> State:
        """A stream with weak noise, so that wakes lose their symmetry; bodies are there from time 0 on.

        Its speed is 1: `start_for` gives it that of the parameters.
        """
        states = []
        for generator in generators:
            potential = truncated_series(grid, generator)
            spectrum = Spectrum.of_grid(grid, two_thirds_cutoff(grid.shape), dtype=torch.float64)
            k1, k2 = (1j * k for k in spectrum.wavenumbers)
            coefficients = spectrum.coefficients(potential)
            noise = spectrum.values(torch.stack([k2 * coefficients, -k1 * coefficients]), grid.shape)
            noise = NOISE * noise / noise.abs().max()
            states.append(torch.stack([1 + noise[0], noise[1]], dim=-1))
        return torch.stack(states).to(like)

    def start_for(self, initial: State, parameters: Config) -> State:
        """Stream and noise are as many times faster as the stream of the parameters."""
        assert isinstance(parameters, Parameters)
        return initial * parameters.stream

    def frames(
        self, initial: State, num_frames: int, frame_dt: float, parameters: Config, known: Batch | None = None
    ) -> Iterator[State]:
        """Frames of the velocity. Frame 0 is the start as it is given; from there on it has no divergence."""
        assert isinstance(parameters, Parameters) and known is not None and known.mask is not None
        yield initial
        shape = tuple(initial.shape[1:-1])
        grid = self.grid_of(shape, parameters)
        spectrum = Spectrum.of_grid(grid, two_thirds_cutoff(shape), dtype=initial.dtype, device=initial.device)
        state = fourier_projection(spectrum.coefficients(initial.movedim(-1, 1)), spectrum)
        friction = bodies(known.mask, initial.dtype) / parameters.penalisation
        fringe = fringe_of(grid, parameters).to(initial.device, initial.dtype)
        steps = num_steps(frame_dt, min(parameters.dt or frame_dt, stable_dt(grid, parameters)))
        viscosity = per_sample(parameters.viscosity, 4, initial.device)
        squared = Spectrum(spectrum.extent, spectrum.cutoff, device=initial.device).squared
        term = _momentum(spectrum, shape, friction + fringe, fringe * parameters.stream)
        advance = repeated(etdrk4(-viscosity * squared, term, frame_dt / steps, state.dtype), state, steps)
        for _ in range(num_frames - 1):
            state = advance(state)
            yield spectrum.values(state, shape).movedim(1, -1)

    def downsample(self, frames: Frames, shape: Sequence[int], method: str | None = None) -> Frames:
        """Every s-th point, so that bodies keep their outline."""
        self.choose_downsampling(method)
        return every_point(frames, shape)

    def symmetries(self, grid: Grid, parameters: Config | None = None) -> Symmetries:
        """Shifts across the stream, and the reflection of that axis; the mask is moved as the first component is."""
        maps: dict[str, Callable[[Frames], Frames]] = {
            "shift along x2": lambda frames: frames.roll(grid.shape[1] // 3, 3),
            "reflection of x2": lambda frames: reflect_periodic(frames, 3) * frames.new_tensor([1.0, -1.0]),
        }
        return maps

    def augment(self, frames: Frames, grid: Grid, generator: Generators, parameters: Config | None = None) -> Frames:
        """A random shift across the stream and, half of the time, the reflection; bodies move with the fields."""
        batch, (size1, size2) = len(frames), grid.shape
        reflect, shift = draw(generator, 2, batch), draw(generator, size2, batch)
        still = torch.zeros_like(reflect)
        moved = take(frames, [moved_points(size1, still, still), moved_points(size2, reflect, shift)])
        signs = torch.stack([torch.ones(batch), 1.0 - 2.0 * reflect], dim=1).to(frames.device, frames.dtype)
        return moved * signs.reshape(batch, *[1] * (frames.ndim - 2), 2)


def stable_dt(grid: Grid, parameters: Parameters) -> float:
    """The longest step for friction, and for speeds up to two and a half times the stream.

    Viscosity has no part in it: trajectories of different viscosity share the step.
    """
    return min(2 * parameters.penalisation, 0.4 * grid.spacing(0) / parameters.stream)


def bodies(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """χ from a mask that is true in the fluid."""
    return (~mask).to(dtype)


def fringe_of(grid: Grid, parameters: Parameters) -> Tensor:
    """λ along the first axis, ``(points, 1)``: a smooth hump, ``sin²``, near the end of the box."""
    first, last = (share * grid.extent[0] for share in FRINGE)
    place = ((grid.axis(0).double() - first) / (last - first)).clamp(0, 1)
    strength = 2 * FRINGE_STRENGTH * parameters.stream / (last - first)
    return (strength * torch.sin(math.pi * place).square())[:, None]


def _momentum(spectrum: Spectrum, shape: Sequence[int], friction: Tensor, inflow: Tensor) -> Function:
    """The rate of change of the velocity's coefficients ``(batch, 2, *modes)``, without viscosity."""
    k1, k2 = (1j * k for k in spectrum.wavenumbers)

    def term(velocity: Tensor) -> Tensor:
        v1, v2 = velocity.unbind(1)
        fields = torch.stack([v1, v2, k1 * v2 - k2 * v1], dim=1)
        u1, u2, vorticity = spectrum.values(fields, shape).unbind(1)
        along = u2 * vorticity - friction * u1 + inflow
        across = -u1 * vorticity - friction * u2
        return fourier_projection(spectrum.coefficients(torch.stack([along, across], dim=1)), spectrum)

    return term


def force_on_bodies(frames: Frames, mask: Tensor, parameters: Parameters) -> Tensor:
    """The force of the fluid on all bodies together, ``(batch, frame, 2)``: ``∫ (χ/η) u dx`` (unit density)."""
    cell = parameters.extent**2 / 2 / math.prod(mask.shape[1:])
    friction = bodies(mask, frames.dtype) / parameters.penalisation
    return cell * (friction[:, None, ..., None] * frames).sum((2, 3))


pde = ObstacleFlow()
