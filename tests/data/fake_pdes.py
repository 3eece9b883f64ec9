"""A small decaying problem with a scalar and a vector field, so that data tests need no solver."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

import torch

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

    def sample_initial(
        self,
        grid: Grid,
        generators: Sequence[torch.Generator],
        *,
        dtype: torch.dtype,
        device: torch.device | str,
        initial: str | None = None,
    ) -> torch.Tensor:
        draws = [torch.randn(*grid.shape, 3, generator=generator, dtype=torch.float64) for generator in generators]
        return (torch.stack(draws) + torch.tensor([1.0, 2.0, 3.0])).to(device, dtype)

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

    def sample_initial(
        self,
        grid: Grid,
        generators: Sequence[torch.Generator],
        *,
        dtype: torch.dtype,
        device: torch.device | str,
        initial: str | None = None,
    ) -> torch.Tensor:
        return torch.stack([torch.rand(*grid.shape, 1, generator=generator) for generator in generators]).to(dtype)

    def frames(
        self, initial: torch.Tensor, num_frames: int, frame_dt: float, parameters: Config
    ) -> Iterator[torch.Tensor]:
        assert isinstance(parameters, DecayParameters)
        yield initial * parameters.rate
