"""A small decaying problem with a scalar and a vector field, so that data tests need no solver."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

import torch

from factformer.batch import Batch
from factformer.config import Config
from factformer.grid import Grid
from factformer.pdes import PDE, Preset, Task
from factformer.problem import Field


class DecayParameters(Config):
    rate: float = 0.5


class Decay(PDE):
    """``f' = -rate f`` for every field, from white noise, in a box with walls along the second axis."""

    name = "decay"
    parameters = DecayParameters
    presets: ClassVar[Mapping[str, Preset]] = {
        "small": Preset(6, 12, 5, 0.25, {"train": 7, "valid": 2, "test": 3}, warmup=0.5, batch_size=3),
        "tiny": Preset(4, 4, 3, 0.25, {"train": 2, "test": 1}, batch_size=2),
    }

    state = (Field("velocity", 2), Field("pressure"))
    boundary = "reflect"
    task = Task(0.25, num_context_frames=2, horizon=3)

    def grid(self, shape: Sequence[int]) -> Grid:
        return Grid(shape, (1.0, 2.0), (True, False), "cells")

    def starts(self, grid: Grid, generators: Sequence[torch.Generator], kind: str, like: torch.Tensor) -> torch.Tensor:
        draws = [torch.randn(*grid.shape, 3, generator=generator, dtype=torch.float64) for generator in generators]
        return (torch.stack(draws) + torch.tensor([1.0, 2.0, 3.0])).to(like)

    def frames(
        self, initial: torch.Tensor, num_frames: int, frame_dt: float, parameters: Config
    ) -> Iterator[torch.Tensor]:
        assert isinstance(parameters, DecayParameters)
        for index in range(num_frames):
            yield initial * torch.exp(torch.tensor(-parameters.rate * frame_dt * index))

    def downsample(self, frames: torch.Tensor, shape: Sequence[int], method: str | None = None) -> torch.Tensor:
        for axis, size in enumerate(shape, start=2):
            frames = frames.index_select(axis, torch.arange(0, frames.shape[axis], frames.shape[axis] // size))
        return frames


class Driven(Decay):
    """``f' = -rate f + heating`` by Euler's rule, from 0, times ``depth``, zero outside a mask: all parts."""

    name = "driven"
    varying = ("rate",)
    state = (Field("height"),)
    static = (Field("depth"),)
    forcing = (Field("heating"),)
    masked = True
    presets: ClassVar[Mapping[str, Preset]] = {
        "small": Preset(6, 12, 4, 0.25, {"train": 3, "test": 2}, warmup=0.5, batch_size=2)
    }

    def sample_initial(self, grid: Grid, generators: Sequence[torch.Generator], **like: object) -> torch.Tensor:
        return torch.zeros(len(generators), *grid.shape, 1, dtype=like["dtype"])  # type: ignore[arg-type]

    def sample_known(
        self, grid: Grid, generators: Sequence[torch.Generator], num_frames: int, frame_dt: float, **like: object
    ) -> Batch:
        drawn = [torch.rand(num_frames + 2, *grid.shape, 1, generator=generator) for generator in generators]
        values = torch.stack(drawn)
        return Batch(static=1 + values[:, 0], mask=values[:, 1, ..., 0] > 0.3, forcing=values[:, 2:])

    def frames(
        self, initial: torch.Tensor, num_frames: int, frame_dt: float, parameters: Config, known: Batch | None = None
    ) -> Iterator[torch.Tensor]:
        assert known is not None and isinstance(parameters, DecayParameters)
        assert known.static is not None and known.forcing is not None and known.mask is not None
        state = initial
        for index in range(num_frames):
            yield state * known.static * known.mask.unsqueeze(-1)
            state = state + frame_dt * (known.forcing[:, index] - parameters.rate * state)


class Doubling(Decay):
    """A steady problem: the output is the input times ``rate``."""

    name = "doubling"
    presets: ClassVar[Mapping[str, Preset]] = {
        "small": Preset(6, 6, 1, 1.0, {"train": 4, "test": 2}, batch_size=3),
    }

    state = (Field("solution"),)
    static = (Field("coefficient"),)
    boundary = "zero"
    task = Task(num_context_frames=0)

    def grid(self, shape: Sequence[int]) -> Grid:
        return Grid(shape, 1.0, False)

    def sample_initial(self, grid: Grid, generators: Sequence[torch.Generator], **like: object) -> torch.Tensor:
        drawn = [torch.rand(*grid.shape, 1, generator=generator) for generator in generators]
        return torch.stack(drawn).to(like["dtype"])  # type: ignore[call-overload]

    def frames(
        self, initial: torch.Tensor, num_frames: int, frame_dt: float, parameters: Config
    ) -> Iterator[torch.Tensor]:
        assert isinstance(parameters, DecayParameters)
        yield initial * parameters.rate
