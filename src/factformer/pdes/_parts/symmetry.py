"""Moving grid points about: the shifts, reflections and swaps that symmetries are made of."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from factformer.grid import Grid

Frames = Float[Tensor, "batch frame *grid channel"]
PerSample = Int[Tensor, " batch"]
Indices = Int[Tensor, "batch points"]
Generators = torch.Generator | Sequence[torch.Generator]
"""One for a whole batch, or one for each of its samples."""


def take(frames: Frames, indices: Sequence[Indices], permutation: Int[Tensor, "batch axis"] | None = None) -> Frames:
    """Move the points of each sample, in one gather.

    ``indices[m][b, j]`` is where point ``j`` of axis ``m`` comes from, on axis ``permutation[b, m]`` of the
    old frames (``m`` itself if none is given); axes that change places have equal sizes.
    """
    batch, num_frames, *grid, channels = frames.shape
    strides = torch.tensor([math.prod(grid[m + 1 :]) for m in range(len(grid))])
    stride = strides.expand(batch, -1) if permutation is None else strides[permutation]
    flat = torch.zeros((batch, *[1] * len(grid)), dtype=torch.long, device=frames.device)
    for m, (index, size) in enumerate(zip(indices, grid, strict=True)):
        view = [batch, *[1] * len(grid)]
        view[1 + m] = size
        flat = flat + (index * stride[:, m, None]).to(frames.device).reshape(view)
    where = flat.reshape(batch, 1, -1, 1).expand(-1, num_frames, -1, channels)
    return frames.flatten(2, -2).gather(2, where).reshape(frames.shape)


def moved_points(size: int, reflect: PerSample, shift: PerSample) -> Indices:
    """Source index of each point of a periodic axis that is reflected about its origin, then shifted.

    ``new(x) = old(±(x - shift))``; ``reflect`` is 0 or 1.
    """
    points = torch.arange(size) - shift[:, None]
    return torch.where(reflect[:, None] == 1, -points, points) % size


def reflect_periodic(frames: Frames, axis: int) -> Frames:
    """``x_m → -x_m`` on a periodic axis, whose point 0 stays where it is."""
    return frames.flip(axis).roll(1, axis)


def draw(generator: Generators, high: int, count: int) -> PerSample:
    """``count`` integers of ``0 … high - 1``, on the CPU."""
    if isinstance(generator, torch.Generator):
        return torch.randint(high, (count,), generator=generator, device=generator.device).cpu()
    return torch.cat([draw(own, high, 1) for own in generator])


@dataclass(frozen=True)
class BoxSymmetry:
    """Shifts, reflections and exchanges of axes that carry solutions on a periodic box to solutions.

    ``vector`` is the first of the channels that are components of a vector, one per axis: a reflection turns its own,
    an exchange of axes exchanges them. Other channels are scalars and stay as they are.
    """

    vector: int | None = None
    reflects: bool = True

    def members(self, grid: Grid) -> Mapping[str, Callable[[Frames], Frames]]:
        """One or two of each kind, by name, for tests."""
        by = [size // 3 + m for m, size in enumerate(grid.shape)]
        axes = tuple(range(2, 2 + grid.num_axes))
        found: dict[str, Callable[[Frames], Frames]] = {"shift": lambda frames: frames.roll(by, axes)}
        if self.reflects:
            found["reflection"] = lambda frames: self._turned(reflect_periodic(frames, 2), [0])
            found["inversion"] = lambda frames: self._turned(_inverted(frames, axes), range(grid.num_axes))
        if grid.num_axes > 1 and grid.shape[0] == grid.shape[1]:
            found["exchange of the first two axes"] = lambda frames: self._exchanged(frames.transpose(2, 3))
        return found

    def augment(self, frames: Frames, grid: Grid, generator: Generators) -> Frames:
        """A random member for each sample."""
        batch, num_axes = len(frames), grid.num_axes
        cubic = len(set(grid.shape)) == 1
        orders = torch.tensor(list(permutations(range(num_axes))))
        permutation = orders[draw(generator, len(orders) if cubic else 1, batch)]
        reflect = [draw(generator, 2 if self.reflects else 1, batch) for _ in range(num_axes)]
        shift = [draw(generator, size, batch) for size in grid.shape]
        moved = take(
            frames, [moved_points(*item) for item in zip(grid.shape, reflect, shift, strict=True)], permutation
        )
        if self.vector is None:
            return moved
        num_channels, first = frames.shape[-1], self.vector
        channels = torch.arange(num_channels).repeat(batch, 1)
        channels[:, first : first + num_axes] = permutation + first
        signs = torch.ones(batch, num_channels)
        signs[:, first : first + num_axes] = 1.0 - 2.0 * torch.stack(reflect, dim=1)
        view = (batch, *[1] * (frames.ndim - 2), num_channels)
        moved = moved.gather(-1, channels.to(frames.device).reshape(view).expand(frames.shape))
        return moved * signs.to(frames.device, frames.dtype).reshape(view)

    def _turned(self, frames: Frames, axes: Sequence[int]) -> Frames:
        if self.vector is None:
            return frames
        signs = frames.new_ones(frames.shape[-1])
        signs[[self.vector + m for m in axes]] = -1
        return frames * signs

    def _exchanged(self, frames: Frames) -> Frames:
        if self.vector is None:
            return frames
        order = list(range(frames.shape[-1]))
        order[self.vector], order[self.vector + 1] = order[self.vector + 1], order[self.vector]
        return frames[..., order]


def _inverted(frames: Frames, axes: Sequence[int]) -> Frames:
    for axis in axes:
        frames = reflect_periodic(frames, axis)
    return frames
