"""The one loop that solves: random starts, frames in time, and each stored one to its sinks, a file or memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

import torch
from torch import Tensor

from factformer.config import Config
from factformer.data.generate.plan import problem_at
from factformer.pdes import PDE, Preset

THREADED_POINTS = 2**16
"""Points of a solver's grid from which on several threads pay; below, they spend their time waiting for each other."""


class Sink(Protocol):
    """Takes the frames of one batch, one after the other, on a grid of ``shape``.

    What it is given is the solver's own memory: it must be copied before the call returns.
    """

    @property
    def shape(self) -> tuple[int, ...]: ...

    def take_static(self, values: Tensor) -> None:
        """What a steady problem is solved from, ``(batch, *grid, channel)``, before its frame."""

    def take(self, values: Tensor) -> None:
        """The next frame, ``(batch, *grid, channel)``."""


Opening = AbstractContextManager[Sink]
"""A sink that is open within a block: what it was given is kept if the block ends well."""


@dataclass(frozen=True)
class Solver:
    """An equation with the parameters and frames of a dataset, on a device."""

    equation: PDE
    preset: Preset
    parameters: Config
    device: torch.device
    dtype: torch.dtype = torch.float32

    @property
    def num_dropped(self) -> int:
        return self.preset.num_dropped

    @property
    def num_solved(self) -> int:
        """Frames that the solver gives, of which the first `num_dropped` are not stored."""
        return self.num_dropped + self.preset.num_frames

    @torch.no_grad()
    def solve(
        self, seeds: Sequence[int], sinks: Sequence[Opening], advance: Callable[[int], None] = lambda _: None
    ) -> None:
        """Solve for one trajectory per seed, all at once; ``advance`` is told of every frame of how many."""
        equation, preset = self.equation, self.preset
        grid = problem_at(equation, preset, preset.simulation_resolution, self.parameters).grid
        with _threads_for(grid.num_points), ExitStack() as stack:
            generators = [torch.Generator().manual_seed(seed) for seed in seeds]
            initial = equation.sample_initial(
                grid, generators, dtype=self.dtype, device=self.device, initial=preset.initial
            )
            opened = [stack.enter_context(sink) for sink in sinks]
            if equation.static:
                for sink in opened:
                    sink.take_static(self._on_grid(initial, sink.shape))
            states = equation.frames(initial, self.num_solved, preset.frame_dt, self.parameters)
            for index, state in enumerate(islice(states, self.num_solved)):
                for sink in opened if index >= self.num_dropped else ():
                    sink.take(self._on_grid(state, sink.shape))
                advance(len(seeds))

    def _on_grid(self, state: Tensor, shape: tuple[int, ...]) -> Tensor:
        if tuple(state.shape[1:-1]) == shape:
            return state
        return self.equation.downsample(state.unsqueeze(1), shape, self.preset.downsampling).squeeze(1)


@contextmanager
def _threads_for(num_points: int) -> Iterator[None]:
    """One thread on small grids: quicker, and the same bits whatever the number of threads."""
    before = torch.get_num_threads()
    if num_points < THREADED_POINTS:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
