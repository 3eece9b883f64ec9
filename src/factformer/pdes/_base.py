"""What a PDE file offers: fields and grid, initial states, the solution in time, symmetries and presets."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from factformer.config import Config
from factformer.grid import Grid
from factformer.problem import Problem

Frames = Float[Tensor, "batch frame *grid channel"]
State = Float[Tensor, "batch *grid channel"]


@dataclass(frozen=True)
class Preset:
    """How a dataset is made: solver grid, stored grid, frames, what passes before the first one, and how many."""

    resolution: int
    simulation_resolution: int
    num_frames: int
    frame_dt: float
    num_trajectories: Mapping[str, int]
    warmup: float = 0.0
    batch_size: int = 8
    parameters: Mapping[str, Any] = field(default_factory=dict)


class PDE(ABC):
    """One problem. The file ``pdes/<name>.py`` defines a subclass and binds an instance to ``pde``."""

    name: ClassVar[str]
    parameters: ClassVar[type[Config]]
    presets: ClassVar[Mapping[str, Preset]]

    @abstractmethod
    def problem(self, resolution: int) -> Problem:
        """Fields, grid, frame interval, context, horizon and boundary, at ``resolution`` points per axis."""

    @abstractmethod
    def sample_initial(
        self, grid: Grid, generators: Sequence[torch.Generator], *, dtype: torch.dtype, device: torch.device | str
    ) -> State:
        """Random initial states, one per (CPU) generator, each a function of its generator alone."""

    @abstractmethod
    def frames(self, initial: State, num_frames: int, frame_dt: float, parameters: Config) -> Iterator[State]:
        """Frames 0 (the initial state), 1, … at intervals ``frame_dt``, each holding all output fields."""

    def downsample(self, frames: Frames, shape: Sequence[int]) -> Frames:
        """Frames of the solver's grid on the stored, coarser one."""
        raise ValueError(f"{self.name} is stored on the solver's grid")

    def symmetries(self, grid: Grid) -> Mapping[str, Callable[[Frames], Frames]]:
        """Maps by name that carry solutions to solutions (a member or two of each kind)."""
        return {}

    def augment(self, frames: Frames, grid: Grid, generator: torch.Generator) -> Frames:
        """A random symmetry applied to each sample of a batch of windows."""
        return frames
