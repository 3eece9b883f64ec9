"""Smoke buoyancy: smoke that rises and swirls in a closed box (0, 8)³.

    ∂d/∂t + u·∇d = 0,   ∂u/∂t + u·∇u = ν ∇²u - ∇p + buoyancy d e_3,   ∇·u = 0,   u = 0 on the walls

Staggered grid: density at the centres of cells, velocity component c on the faces normal to c. One step, with
the old velocity throughout: density, then velocity by semi-Lagrangian transport (one backward Euler trace,
multilinear interpolation), buoyancy of the new density, explicit diffusion, exact projection by cosine
transforms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import torch
from pydantic import Field as Value
from torch import Tensor

from factformer.config import Config
from factformer.errors import UserError
from factformer.grid import Grid
from factformer.numerics import staggered
from factformer.numerics.advection import semi_lagrangian, semi_lagrangian_zero_outside
from factformer.numerics.projection import staggered_projection
from factformer.numerics.random_fields import periodic_field
from factformer.numerics.spectral import Spectrum, full_cutoff
from factformer.numerics.timestepping import num_steps
from factformer.pdes._common import presets as _presets
from factformer.pdes._common.base import PDE, Frames, State, Symmetries
from factformer.pdes._common.ranges import per_sample
from factformer.pdes._common.symmetry import Generators, draw, take
from factformer.problem import Field

BOX = 8.0
HIGHEST_MODE = 16  # of the random start: amplitudes fall as |m|^-8, what is beyond is below round-off
SCALE, SMOOTHNESS = 15.0, 4.0


class Parameters(Config):
    """``velocity_points`` is where the frames hold velocity: component c on the lower face of each cell,
    normal to c, as in the data of the paper, or all of them at cell centres."""

    viscosity: float = Value(default=0.003, ge=0)
    buoyancy: float = 0.5
    dt: float = Value(default=0.75, gt=0)
    velocity_points: Literal["lower_faces", "cells"] = "lower_faces"


class SmokeBuoyancy(PDE):
    name = "smoke_buoyancy"
    num_initial_channels = 1
    parameters = Parameters
    symmetry_parameters = ("velocity_points",)
    varying = ("viscosity", "buoyancy")
    vectorized = True
    dimensions = (3,)
    state = (Field("density"), Field("velocity", 3))
    boundary = "zero"
    task = _presets.SMOKE_BUOYANCY_TASK
    presets = _presets.SMOKE_BUOYANCY

    def grid(self, shape: Sequence[int]) -> Grid:
        return Grid(shape, BOX, periodic=False, points="cells")

    def starts(self, grid: Grid, generators: Sequence[torch.Generator], kind: str, like: Tensor) -> State:
        """Density ``|g|``: a few smooth blobs. ``g`` is random and periodic with amplitudes ``(15|m|/8)^-8``
        over integer frequencies ``m ≠ 0``, scaled to unit standard deviation; alike on every grid."""
        cutoff = [min(k, HIGHEST_MODE) for k in full_cutoff(grid.shape)]
        spectrum = Spectrum([2 * torch.pi] * grid.num_axes, cutoff, device=like.device)
        amplitude = (SCALE**2 / BOX**2 * spectrum.squared).clamp_min(0.1) ** -SMOOTHNESS
        amplitude.flatten()[0] = 0
        states = []
        for generator in generators:  # one by one, so that not even round-off depends on the batch
            coefficients = periodic_field(spectrum, amplitude, [generator])
            for index, size in zip(spectrum.indices, grid.shape, strict=True):
                coefficients = coefficients * torch.exp(1j * torch.pi / size * index)  # on to cell centres
            field = spectrum.values(coefficients, grid.shape)
            states.append((field / field.std(correction=0)).abs().unsqueeze(-1).to(like.dtype))
        return torch.cat(states)

    def restart_channels(self, num_axes: int) -> int:
        """Density and velocity on lower faces, as in a frame."""
        return 1 + num_axes

    def coarsened(self, frames: Frames, shape: Sequence[int], method: str | None = None) -> Frames:
        """Means of the density over the fine cells in a coarse one, and of velocity over its lower faces.

        So the flux through a coarse face is that through its fine ones, and the velocity stays without divergence.
        """
        if any(fine % coarse for fine, coarse in zip(frames.shape[2:-1], shape, strict=True)):
            raise ValueError(f"{self.name}: cells of {tuple(shape)} do not consist of whole ones")
        factors = [fine // coarse for fine, coarse in zip(frames.shape[2:-1], shape, strict=True)]
        channels = []
        for channel, values in enumerate(frames.unbind(-1)):
            for m, factor in enumerate(factors):
                cells = values.unflatten(m + 2, (-1, factor))
                values = cells.select(m + 3, 0) if m == channel - 1 else cells.mean(m + 3)
            channels.append(values)
        return torch.stack(channels, dim=-1)

    def frames(self, initial: State, num_frames: int, frame_dt: float, parameters: Config) -> Iterator[State]:
        """Frames of (density, u, v, w) from a density at rest, or from all of them."""
        assert isinstance(parameters, Parameters)
        density, *faces = initial.unbind(-1)
        shape = density.shape[1:]
        steps = num_steps(frame_dt, parameters.dt)
        spacing = [BOX / size for size in shape]
        step = _step(shape, spacing, frame_dt / steps, parameters, density)
        at_rest = [torch.zeros_like(density)] * len(shape)
        velocity = [staggered.inner_faces(values, m) for m, values in enumerate(faces or at_rest)]
        for number in range(num_frames):
            for _ in range(steps if number else 0):
                density, velocity = step(density, velocity)
            if parameters.velocity_points == "cells":
                shown = staggered.at_cells(velocity)
            else:
                shown = [staggered.lower_faces(values, m) for m, values in enumerate(velocity)]
            yield torch.stack([density, *shown], dim=-1)

    def symmetries(self, grid: Grid, parameters: Config | None = None) -> Symmetries:
        """Reflections of the horizontal axes and, where these are of equal size, their exchange.

        Exact in the stored frames: on lower faces, face ``j`` of a reflected component comes from face
        ``S - j``, and the one for which there is no such entry is a wall, where the velocity is 0 anyway.
        """
        faces = _on_faces(parameters)
        maps: dict[str, Callable[[Frames], Frames]] = {
            "reflection of x1": lambda frames: _reflect(frames, 0, faces),
            "reflection of x2": lambda frames: _reflect(frames, 1, faces),
        }
        if grid.shape[0] == grid.shape[1]:
            maps["exchange of x1 and x2"] = lambda frames: frames.transpose(2, 3)[..., [0, 2, 1, 3]]
        return maps

    def augment(self, frames: Frames, grid: Grid, generator: Generators, parameters: Config | None = None) -> Frames:
        batch = len(frames)
        flips = [draw(generator, 2, batch), draw(generator, 2, batch), torch.zeros(batch, dtype=torch.long)]
        swap = draw(generator, 2 if grid.shape[0] == grid.shape[1] else 1, batch)
        permutation = torch.stack([swap, 1 - swap, torch.full_like(swap, 2)], dim=1)
        view = (batch, *[1] * (frames.ndim - 2))
        where = (swap == 1).to(frames.device).reshape(*view, 1)
        exchanged = torch.where(where, frames[..., [0, 2, 1, 3]], frames)
        channels = []
        for channel, own_axis in enumerate([None, 0, 1, 2]):
            indices = [
                _mirrored(size, flip, on_faces=_on_faces(parameters) and m == own_axis)
                for m, (size, flip) in enumerate(zip(grid.shape, flips, strict=True))
            ]
            moved = take(exchanged[..., channel : channel + 1], indices, permutation).squeeze(-1)
            if own_axis is not None:
                moved = moved * (1 - 2 * flips[own_axis]).to(frames.device, frames.dtype).reshape(view)
            channels.append(moved)
        return torch.stack(channels, dim=-1)


def _step(
    shape: Sequence[int], spacing: Sequence[float], dt: float, parameters: Parameters, like: Tensor
) -> Callable[[Tensor, list[Tensor]], tuple[Tensor, list[Tensor]]]:
    """One time step of density on cells and velocity on inner faces."""
    largest = float(torch.as_tensor(parameters.viscosity, dtype=torch.float64).max())
    stiffness = 2 * largest * dt * sum(1 / step**2 for step in spacing)
    if stiffness > 1:
        raise UserError(
            f"smoke_buoyancy: explicit diffusion is unstable with dt={dt:g} on {tuple(shape)} "
            f"cells; use dt ≤ {dt / stiffness:.3g}"
        )
    project = staggered_projection(shape, spacing, dtype=like.dtype, device=like.device)
    up = len(shape) - 1
    lift, diffusion = (_of_step(dt, value, like) for value in (parameters.buoyancy, parameters.viscosity))

    def displacement(velocity: Sequence[Tensor]) -> list[Tensor]:
        return [values * (dt / step) for values, step in zip(velocity, spacing, strict=True)]

    def advance(density: Tensor, velocity: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        at_cells = staggered.at_cells(velocity)
        density = semi_lagrangian(density, displacement(at_cells))
        carried = []
        for m, values in enumerate(velocity):
            local = staggered.at_faces(at_cells, velocity, m)
            carried.append(semi_lagrangian_zero_outside(values, displacement(local)))
        carried[up] = carried[up] + lift * staggered.between(density, up)
        diffused = [_added(values, staggered.laplacian(values, spacing), diffusion) for values in carried]
        return density, project(diffused)

    return advance


def _of_step(dt: float, value: float | Tensor, like: Tensor) -> float | Tensor:
    """``dt · value``: one number, or one for each trajectory."""
    if not isinstance(value, Tensor):
        return dt * value
    shaped: Tensor = per_sample((dt * value).to(like.dtype), like.ndim, like.device)
    return shaped


def _added(values: Tensor, change: Tensor, factor: float | Tensor) -> Tensor:
    """``values + factor · change``."""
    if isinstance(factor, Tensor):
        return torch.addcmul(values, factor, change)
    return torch.add(values, change, alpha=factor)


def _on_faces(parameters: Config | None) -> bool:
    assert parameters is None or isinstance(parameters, Parameters)
    return (parameters or Parameters()).velocity_points == "lower_faces"


def _mirrored(size: int, flip: Tensor, on_faces: bool) -> Tensor:
    """Source index of each point of an axis that is reflected where ``flip`` is 1."""
    points = torch.arange(size).expand(len(flip), -1)
    return torch.where(flip[:, None] == 1, (size - points) % size if on_faces else size - 1 - points, points)


def _reflect(frames: Frames, axis: int, faces: bool) -> Frames:
    reflected = frames.flip(axis + 2)
    component = -reflected[..., axis + 1]
    if faces:
        component = component.roll(1, axis + 2)
    return torch.cat([reflected[..., : axis + 1], component.unsqueeze(-1), reflected[..., axis + 2 :]], -1)


pde = SmokeBuoyancy()
