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
from factformer.grid import Grid
from factformer.training.feed.draws import generators


class ContextNoise:
    """Gaussian noise of ``level`` standard deviations of each field, drawn from (seed, update, place) alone.

    It is the sum of equally strong parts, one for every set of axes, which vary along these axes and are constant
    along the others. The frames that a prediction is held against stay as they are.
    """

    def __init__(self, level: float, num_context_frames: int, normalizer: Normalizer, seed: int) -> None:
        self.level, self.num_context_frames, self.seed = level, num_context_frames, seed
        self.deviation = normalizer.state_std.clone()
        self.part: Grid | None = None
        """The part of the grid that frames are on, where it is cut: its noise is a part of that of the whole grid."""

    def __call__(self, window: Window, update: int, slots: Sequence[int]) -> Window:
        drawn = generators("noise", self.seed, update, slots, window.frames.device)
        self.deviation = self.deviation.to(window.frames.device)
        context, later = window.frames.tensor_split([self.num_context_frames], dim=1)
        noisy = context + self.level * self.deviation * _draw(context, drawn, self.part)
        return window._replace(frames=torch.cat([noisy, later], dim=1))


def _draw(frames: Tensor, drawn: Sequence[torch.Generator], part: Grid | None = None) -> Tensor:
    """Noise of deviation one, shaped as (batch, frame, *grid, channel)."""
    _, num_frames, *here, channels = frames.shape
    grid = here if part is None else part.whole.shape
    kinds = list(product((True, False), repeat=len(grid)))
    shapes = [
        (num_frames, *(n if varies else 1 for n, varies in zip(grid, axes, strict=True)), channels) for axes in kinds
    ]
    sizes = [math.prod(shape) for shape in shapes]

    def noise(generator: torch.Generator) -> list[Tensor]:
        """That of one sample, drawn for the whole grid: one part for every set of axes."""
        values = torch.randn(sum(sizes), generator=generator, device=frames.device, dtype=frames.dtype)
        terms = [term.view(shape) for term, shape in zip(values.split(sizes), shapes, strict=True)]
        if part is None:
            return terms
        return [_kept(term, axes, part).clone() for term, axes in zip(terms, kinds, strict=True)]

    terms = [torch.stack(samples) for samples in zip(*map(noise, drawn), strict=True)]
    total: Tensor = terms[0]
    for term in terms[1:]:
        total = total + term
    return total / math.sqrt(len(terms))


def _kept(term: Tensor, axes: Sequence[bool], part: Grid) -> Tensor:
    """The part of noise ``(frame, *grid, channel)`` that varies along some ``axes``."""
    whole = term.expand(len(term), *part.whole.shape, term.shape[-1])
    kept = part.cut(whole, 1)
    return kept[(slice(None), *(slice(None) if varies else slice(1) for varies in axes))]
