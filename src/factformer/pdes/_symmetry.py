"""Moving grid points about: the shifts, reflections and swaps that symmetries are made of."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

Frames = Float[Tensor, "batch frame *grid channel"]
PerSample = Int[Tensor, " batch"]
Indices = Int[Tensor, "batch points"]


def take(frames: Frames, indices: Sequence[Indices]) -> Frames:
    """``result[b, t, j_1, …, j_n] = frames[b, t, i_1[b, j_1], …, i_n[b, j_n]]``: per sample, one gather."""
    batch, num_frames, *grid, channels = frames.shape
    flat = torch.zeros((batch, *[1] * len(grid)), dtype=torch.long)
    for m, (index, size) in enumerate(zip(indices, grid, strict=True)):
        view = [batch, *[1] * len(grid)]
        view[1 + m] = size
        flat = flat * size + index.reshape(view)
    where = flat.reshape(batch, 1, -1, 1).to(frames.device).expand(-1, num_frames, -1, channels)
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


def draw(generator: torch.Generator, high: int, count: int) -> PerSample:
    """``count`` integers of ``0 … high - 1``, on the CPU."""
    return torch.randint(high, (count,), generator=generator, device=generator.device).cpu()
