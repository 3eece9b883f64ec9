"""What a PDE file offers: fields and grid, initial states, the solution in time, symmetries and presets."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from factformer.config import Config, unknown_name
from factformer.errors import UserError
from factformer.grid import Grid
from factformer.pdes._symmetry import Generators
from factformer.problem import Problem

Frames = Float[Tensor, "batch frame *grid channel"]
State = Float[Tensor, "batch *grid channel"]
Symmetries = Mapping[str, Callable[[Frames], Frames]]


@dataclass(frozen=True)
class Preset:
    """How a dataset is made: solver and stored grid, frames, what passes before the first, and how many.

    The first stored frame is at time ``warmup``, a whole number of frame intervals: of the frames that the
    solver gives, counting the initial state, the first `num_dropped` are not stored. ``initial`` and
    ``downsampling`` are passed on to `PDE.sample_initial` and `PDE.downsample`.
    """

    resolution: int
    simulation_resolution: int
    num_frames: int
    frame_dt: float
    num_trajectories: Mapping[str, int]
    warmup: float = 0.0
    batch_size: int = 8
    parameters: Mapping[str, Any] = field(default_factory=dict)
    initial: str | None = None
    downsampling: str | None = None

    @property
    def num_dropped(self) -> int:
        """How many frames pass before the first stored one."""
        return round(self.warmup / self.frame_dt)


class PDE(ABC):
    """One problem. The file ``pdes/<name>.py`` defines a subclass and binds an instance to ``pde``."""

    name: ClassVar[str]
    parameters: ClassVar[type[Config]]
    presets: ClassVar[Mapping[str, Preset]]
    initial_kinds: ClassVar[tuple[str, ...]] = ("default",)
    num_initial_channels: ClassVar[int] = 1
    downsamplings: ClassVar[tuple[str, ...]] = ()
    """Ways from the solver's grid to a coarser stored one; the first is the default."""
    symmetry_parameters: tuple[str, ...] = ()
    """Parameters that decide what is symmetric: data that do not tell them cannot be augmented."""

    @abstractmethod
    def problem(self, resolution: int) -> Problem:
        """Fields, grid, frame interval, context, horizon and boundary, at ``resolution`` points per axis."""

    @abstractmethod
    def sample_initial(
        self,
        grid: Grid,
        generators: Sequence[torch.Generator],
        *,
        dtype: torch.dtype,
        device: torch.device | str,
        initial: str | None = None,
    ) -> State:
        """Random initial states, one per (CPU) generator, each a function of its generator alone.

        ``initial`` names one of `initial_kinds`; the first is the default.
        """

    @abstractmethod
    def frames(self, initial: State, num_frames: int, frame_dt: float, parameters: Config) -> Iterator[State]:
        """Frames 0 (the initial state), 1, … at intervals ``frame_dt``, each holding all output fields."""

    def downsample(self, frames: Frames, shape: Sequence[int], method: str | None = None) -> Frames:
        """Frames of the solver's grid on the stored, coarser one; ``method`` is one of `downsamplings`."""
        raise ValueError(f"{self.name} is stored on the solver's grid")

    def why_not_stored(self, parameters: Config) -> str:
        """Why frames made with ``parameters`` are not those of `problem` at its points; empty where they are."""
        return ""

    def symmetries(self, grid: Grid, parameters: Config | None = None) -> Symmetries:
        """Maps by name that carry solutions to solutions (a member or two of each kind)."""
        return {}

    def augment(self, frames: Frames, grid: Grid, generator: Generators, parameters: Config | None = None) -> Frames:
        """A random symmetry applied to each sample of a batch of windows; a new tensor.

        It is drawn from one ``generator`` for all samples, or from one for each of them.
        ``parameters`` are those of the data where they decide what is symmetric (default: the PDE's own).
        """
        return frames

    def choose_downsampling(self, method: str | None) -> str:
        """The way to the stored grid that is meant by ``method``; an unknown one lists the choices."""
        if method is None:
            return self.downsamplings[0]
        if method not in self.downsamplings:
            if not self.downsamplings:
                raise UserError(f"{self.name} is stored on the solver's grid: downsampling={method} has no meaning")
            raise unknown_name("downsampling", method, self.downsamplings)
        return method

    def choose_initial(self, initial: str | None) -> str:
        """The kind of initial state that is meant by ``initial``; an unknown one lists the choices."""
        if initial is None:
            return self.initial_kinds[0]
        if initial not in self.initial_kinds:
            raise unknown_name("initial state", initial, self.initial_kinds)
        return initial
