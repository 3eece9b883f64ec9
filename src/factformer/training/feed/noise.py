"""Noise on the context frames of training windows: a model that has seen imperfect frames corrects its own.

White noise alone averages out where a model looks at means along axes, as factorized attention does, and teaches it
nothing about errors there; these grow fastest in long roll-outs. So every mean gets its part.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product

import torch
from torch import Tensor

from factformer.batch import Window
from factformer.data.normalization import Normalizer
from factformer.training.feed.draws import generators


class ContextNoise:
    """Gaussian noise of ``level`` standard deviations of each field, drawn from (seed, update, place) alone.

    It is the sum of equally strong parts, one for every set of axes, which vary along these axes and are constant
    along the others. The frames that a prediction is held against stay as they are.
    """

    def __init__(self, level: float, num_context_frames: int, normalizer: Normalizer, seed: int) -> None:
        self.level, self.num_context_frames, self.seed = level, num_context_frames, seed
        self.deviation = normalizer.state_std.clone()

    def __call__(self, window: Window, update: int, slots: Sequence[int]) -> Window:
        drawn = generators("noise", self.seed, update, slots, window.frames.device)
        self.deviation = self.deviation.to(window.frames.device)
        context, later = window.frames.tensor_split([self.num_context_frames], dim=1)
        noisy = context + self.level * self.deviation * _draw(context, drawn)
        return window._replace(frames=torch.cat([noisy, later], dim=1))


def _draw(frames: Tensor, drawn: Sequence[torch.Generator]) -> Tensor:
    """Noise of deviation one, shaped as (batch, frame, *grid, channel)."""
    _, num_frames, *grid, channels = frames.shape
    shapes = [
        (num_frames, *(n if varies else 1 for n, varies in zip(grid, axes, strict=True)), channels)
        for axes in product((True, False), repeat=len(grid))
    ]
    sizes = [math.prod(shape) for shape in shapes]
    values = torch.stack(
        [torch.randn(sum(sizes), generator=generator, device=frames.device, dtype=frames.dtype) for generator in drawn]
    )
    parts = [part.unflatten(1, shape) for part, shape in zip(values.split(sizes, dim=1), shapes, strict=True)]
    total: Tensor = parts[0]
    for part in parts[1:]:
        total = total + part
    return total / math.sqrt(len(parts))
