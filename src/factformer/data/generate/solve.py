"""The one loop that solves: random starts, frames in time, and each stored one to its sinks, a file or memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

import torch
from torch import Tensor

from factformer.batch import Batch
from factformer.data.generate.plan import problem_at, stored_problem
from factformer.errors import UserError
from factformer.grid import Grid
from factformer.numerics.pencils import WHOLE, Pencils, PeriodicPart
from factformer.pdes import PDE, Preset, Settings, solve

THREADED_POINTS = 2**16
"""Points of a solver's grid from which on several threads pay; below, they spend their time waiting for each other."""


class Sink(Protocol):
    """Takes the frames of one batch, one after the other, on a grid of ``shape``; of a cut one, this process's part.

    What it is given is the solver's own memory: it must be copied before the call returns.
    """

    @property
    def shape(self) -> tuple[int, ...]: ...

    def take_known(self, known: Batch) -> None:
        """What is known once per trajectory, before its frames: static fields, mask, parameters."""

    def take(self, values: Tensor, forcing: Tensor | None) -> None:
        """The next frame ``(batch, *grid, channel)``, with its forcing if any."""


Opening = AbstractContextManager[Sink]
"""A sink that is open within a block: what it was given is kept if the block ends well."""


@dataclass(frozen=True)
class Solver:
    """An equation with the settings and frames of a dataset, on a device."""

    equation: PDE
    preset: Preset
    settings: Settings
    device: torch.device
    dtype: torch.dtype = torch.float32
    pencils: Pencils = WHOLE
    """How the grid is cut over the processes that share it."""

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
        problem = problem_at(equation, preset, preset.simulation_resolution, self.settings.shared)
        names = stored_problem(equation, preset, self.settings).parameters
        grid = problem.grid if self.pencils.is_whole else PeriodicPart(problem.grid, self.pencils)
        part = None if grid is problem.grid else grid
        with threads_for(problem.grid.num_points), ExitStack() as stack:
            generators = [torch.Generator().manual_seed(seed) for seed in seeds]
            known = self._known(grid, generators)
            initial = equation.sample_initial(
                grid, generators, dtype=self.dtype, device=self.device, initial=preset.initial
            )
            values = self.settings.values(names, seeds)
            own = self.settings.of(names, values)
            initial = equation.start_for(initial, own)
            told = (known or Batch())._replace(forcing=None, parameters=values if names else None)
            if equation.steady:
                told = told._replace(static=initial)
            forcing = None if known is None else known.forcing
            opened = [stack.enter_context(sink) for sink in sinks]
            for sink in opened:
                sink.take_known(self._told_on_grid(told, sink.shape))
            states = solve(equation, initial, self.num_solved, preset.frame_dt, own, known, part)
            for index, state in enumerate(islice(states, self.num_solved)):
                for sink in opened if index >= self.num_dropped else ():
                    force = None if forcing is None else self._on_grid(forcing[:, index], sink.shape)
                    sink.take(self._on_grid(state, sink.shape, part), force)
                advance(len(seeds))

    def _known(self, grid: Grid, generators: Sequence[torch.Generator]) -> Batch | None:
        """What the equation is given beside its start; none where it needs nothing."""
        equation = self.equation
        if not equation.conditions:
            return None
        known = equation.sample_known(
            grid, generators, self.num_solved, self.preset.frame_dt, dtype=self.dtype, device=self.device
        )
        if set(known.names) != set(equation.conditions):
            wanted, got = (", ".join(names) or "nothing" for names in (equation.conditions, known.names))
            raise UserError(f"{equation.name}: its sample_known must give {wanted}; it gives {got}")
        return known

    def _told_on_grid(self, told: Batch, shape: tuple[int, ...]) -> Batch:
        static = None if told.static is None else self._on_grid(told.static, shape)
        mask = told.mask
        if mask is not None:
            mask = self._on_grid(mask.to(self.dtype).unsqueeze(-1), shape).squeeze(-1) > 0.5
        return told._replace(static=static, mask=mask)

    def _on_grid(self, state: Tensor, shape: tuple[int, ...], part: Grid | None = None) -> Tensor:
        if (tuple(state.shape[1:-1]) if part is None else part.whole.shape) == shape:
            return state
        if part is not None:
            downsample: Callable[..., Tensor] = self.equation.downsample
            return downsample(state.unsqueeze(1), shape, self.preset.downsampling, grid=part).squeeze(1)
        return self.equation.downsample(state.unsqueeze(1), shape, self.preset.downsampling).squeeze(1)


@contextmanager
def threads_for(num_points: int) -> Iterator[None]:
    """One thread on small grids: quicker, and the same bits whatever the number of threads."""
    before = torch.get_num_threads()
    if num_points < THREADED_POINTS:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
