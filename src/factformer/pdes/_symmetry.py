"""Moving grid points about: the shifts, reflections and swaps that symmetries are made of."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

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
