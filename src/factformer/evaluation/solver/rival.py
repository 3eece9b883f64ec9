"""The solver as a rival of the surrogate: on any grid, from a stored frame or from the full state, with long steps.

A solver also trades accuracy for speed, by its grid and by its step. So on each grid it takes the longest step that
does not add to its error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Literal

import torch
from torch import Tensor

from factformer import metrics
from factformer.batch import Batch
from factformer.config import Config
from factformer.data.dataset import Dataset
from factformer.data.generate.plan import trajectory_seed
from factformer.data.generate.solve import threads_for
from factformer.data.windows import frames_from
from factformer.evaluation.timing import median_seconds
from factformer.grid import Grid
from factformer.pdes import PDE, Settings, solve
from factformer.problem import Problem

Start = Literal["stored frame", "full state"]
STARTS: tuple[Start, ...] = ("stored frame", "full state")
SLACK, LEAST = 1.02, 1e-4
"""A longer step does not add to the error where it stays within 2 % of the least, or 1e-4."""
MOST_STEPS = 1024
"""Steps between two frames that are tried at most."""
SEARCH = (
    "steps between two frames are doubled from 1 on until the error no longer falls; the fewest are taken whose "
    f"error is at most {100 * (SLACK - 1):.0f} % or {LEAST:g} above the least"
)
SAME_STATE = 0.02
"""Relative difference of a frame that was solved again from the stored one, up to which they are the same flow."""


@dataclass(frozen=True)
class Measured:
    """Seconds of all trajectories over the horizon, the mean error of each field, and the step."""

    seconds: float
    errors: dict[str, float]
    dt: float | None


@dataclass(frozen=True)
class Rival:
    """The solver of a dataset's first ``size`` trajectories, over the frames that ``problem`` predicts.

    ``problem`` is the surrogate's: its frames are ``stride`` of the data apart.
    """

    equation: PDE
    dataset: Dataset
    problem: Problem
    stride: int
    size: int
    device: torch.device
    states: dict[Start, Tensor | None] = field(default_factory=dict)
    timed: dict[tuple[int, float | None], float] = field(default_factory=dict)
    """Seconds by resolution and step: the work is the same from either start."""

    @property
    def made_by(self) -> dict[str, Any]:
        return self.dataset.provenance

    @property
    def last_known(self) -> int:
        """The frame of the data that the prediction starts from."""
        return (self.problem.num_context_frames - 1) * self.stride

    @property
    def num_solved(self) -> int:
        """Frames that the solver gives: those predicted and, in time, the one that they start from."""
        return min(self.problem.num_context_frames, 1) + self.problem.horizon

    @property
    def reference(self) -> int:
        """The resolution of the solver that made the data."""
        return int(self.made_by.get("simulation_resolution") or self.stored)

    @property
    def stored(self) -> int:
        """The resolution that the stored grid stands for."""
        shape = self.dataset.problem.grid.shape
        return next((size for size in shape if self.equation.shape(size) == shape), shape[0])

    def grid(self, resolution: int) -> Grid:
        """The solver's grid of so many points, with as many axes as the data."""
        shape = self.equation.shape(resolution)
        axes = self.dataset.problem.grid.num_axes
        return self.equation.problem(shape if len(shape) == axes else (resolution,) * axes, self.settings().shared).grid

    def settings(self, **changes: Any) -> Settings:
        """The parameters that the data were made with, and changed ones."""
        return Settings.parse(self.equation, {**self.made_by.get("parameters", {}), **changes})

    def frames(
        self, start: Tensor, num_frames: int, frame_dt: float, known: Batch | None = None, **changes: Any
    ) -> Iterator[Tensor]:
        """``start`` and the frames after it, with changed parameters; of a steady problem its solution alone."""
        parameters = self._parameters(**changes)
        return islice(solve(self.equation, start, num_frames, frame_dt, parameters, known), num_frames)

    def _parameters(self, **changes: Any) -> Config:
        """Those of the trajectories, as the solver takes them."""
        settings, names = self.settings(**changes), self.dataset.problem.parameters
        if not names:
            return settings.shared
        return settings.of(names, self.dataset.read(range(self.size), part="parameters"))

    def known(self, shape: Sequence[int]) -> Batch | None:
        """What the stored trajectories give the solver beside their start, on a grid of ``shape``."""
        if not self.equation.conditions:
            return None
        frames = frames_from(self.last_known, self.problem.horizon + 1, self.stride)
        given = self.dataset.known(range(self.size), frames)._replace(parameters=None).to(self.device)
        static, mask, forcing = given.static, given.mask, given.forcing
        return Batch(
            static=None if static is None else self._on(static[:, None], shape)[:, 0],
            forcing=None if forcing is None else self._on(forcing, shape),
            mask=None if mask is None else self._on(mask[:, None, ..., None].float(), shape)[:, 0, ..., 0] > 0.5,
        )

    def state(self, start: Start) -> Tensor | None:
        """What the solver starts from, on the stored grid or on its own; None where it cannot be had."""
        if start not in self.states:
            self.states[start] = self._stored_state() if start == "stored frame" else self._full_state()
        return self.states[start]

    def truth(self) -> Tensor:
        """The stored frames that are to be predicted."""
        frames = frames_from(self.last_known + self.stride, self.problem.horizon, self.stride)
        return self.dataset.read(range(self.size), frames).to(self.device)

    def measure(self, resolution: int, start: Start) -> Measured | None:
        """The solver on a grid of ``resolution`` points; None where it cannot be run there.

        Errors are taken on the coarser of its grid and the stored one: what a grid does not hold is not counted.
        """
        found = self.state(start)
        if found is None:
            return None
        shape, stored = self.grid(resolution).shape, self.dataset.problem.grid.shape
        if self.equation.why_not_solved(shape, self._parameters()):
            return None
        coarsest = shape if math.prod(shape) < math.prod(stored) else stored
        try:
            state, truth = self._on(found[:, None], shape)[:, 0], self._on(self.truth(), coarsest)
            known, inside = self.known(shape), _mask(self.known(coarsest))
            self._on(torch.zeros(1, 1, *shape, self.problem.num_state_channels), coarsest)
        except ValueError:  # stored on the solver's own grid, or not a divisor of it
            return None

        def run(**changes: Any) -> Tensor:
            solved = list(self.frames(state, self.num_solved, self.problem.frame_dt, known, **changes))
            return torch.stack(solved[-self.problem.horizon :], 1)

        def errors(**changes: Any) -> dict[str, float]:
            predicted = self._on(run(**changes), coarsest)
            found = metrics.grouped_relative_l2(predicted, truth, self.problem.state_slices, mask=inside)
            return {name: float(value) for name, value in found.items()}

        with torch.no_grad(), threads_for(math.prod(shape)):
            changes: dict[str, float] = {}
            if "dt" in self.equation.parameters.model_fields:
                interval = self.problem.frame_dt
                steps = fewest_steps(lambda number: mean_error(errors(dt=interval / number)))
                changes = {"dt": interval / steps}
            scores = errors(**changes)
            dt = changes.get("dt")
            if (resolution, dt) not in self.timed:
                self.timed[resolution, dt] = median_seconds(lambda: run(**changes), self.device, repeats=3)
        return Measured(self.timed[resolution, dt], scores, dt)

    def reference_seconds(self) -> float:
        """Seconds of the solver as it made the data, over the horizon."""
        state, known = self.state("full state"), None
        if state is None:
            state, known = self._initial()

        @torch.no_grad()
        def run() -> None:
            for _ in self.frames(state, self.num_solved, self.problem.frame_dt, known):
                pass

        with threads_for(self.grid(self.reference).num_points):
            run()
            return median_seconds(run, self.device, repeats=3)

    def _on(self, frames: Tensor, shape: Sequence[int]) -> Tensor:
        """Frames on another grid, as the data were brought to theirs."""
        if tuple(frames.shape[2:-1]) == tuple(shape):
            return frames
        return self.equation.coarsened(frames, shape, self.made_by.get("downsampling"))

    def _initial(self) -> tuple[Tensor, Batch | None]:
        """The starts of the trajectories on the solver's grid, drawn again from their seeds, and what is given too."""
        seed = int(self.made_by.get("seed") or 0)
        seeds = [trajectory_seed(seed, self.dataset.split, index) for index in range(self.size)]
        generators = [torch.Generator().manual_seed(one) for one in seeds]
        grid, place = self.grid(self.reference), dict[str, Any](dtype=torch.float32, device=self.device)
        known = None
        if self.equation.conditions:
            count, frame_dt = self.problem.horizon + 1, self.problem.frame_dt
            known = self.equation.sample_known(grid, generators, count, frame_dt, **place)
        initial = self.made_by.get("initial")
        drawn = self.equation.sample_initial(grid, generators, initial=initial, **place)
        return self.equation.start_for(drawn, self._parameters()), known

    def _stored_state(self) -> Tensor | None:
        return self._shown(self._stored_start(), self.known(self.dataset.problem.grid.shape))

    def _stored_start(self) -> Tensor:
        """What the predictions start from, as it is stored: the last known frame, or the static fields."""
        last = slice(max(self.last_known, 0), max(self.last_known, 0) + 1)
        values = self.dataset.read(range(self.size), last, part=self.problem.start).to(self.device)
        return values if self.problem.start == "static" else values[:, 0]

    @torch.no_grad()
    def _full_state(self) -> Tensor | None:
        """The solver's state at the last known frame, solved again; None where that does not give the stored frame."""
        if self.equation.conditions:  # what it is given was stored on the stored grid alone
            return None
        state = self._initial()[0]
        if self.problem.start == "state":
            frame_dt = self.dataset.problem.frame_dt
            passed = round(float(self.made_by.get("warmup") or 0.0) / frame_dt) + self.last_known
            for frame in self.frames(state, passed + 1, frame_dt):
                state = frame
        try:
            again = self._on(state[:, None], self.dataset.problem.grid.shape)
        except ValueError:
            return None
        if not float(metrics.relative_l2(again, self._stored_start()[:, None]).max()) < SAME_STATE:
            return None
        return self._shown(state)

    def _shown(self, frame: Tensor, known: Batch | None = None) -> Tensor | None:
        """The solver's state that a frame shows, if starting from it gives that frame back; else None.

        Static fields are all that the solver needs.
        """
        if self.problem.start == "static":
            return frame
        axes, whole = self.problem.grid.num_axes, slice(0, frame.shape[-1])
        sizes = (self.equation.initial_channels(axes), self.equation.restart_channels(axes))
        for channels in (whole, *self.problem.state_slices.values()):
            if channels.stop - channels.start not in sizes:
                continue
            state = frame[..., channels].contiguous()
            if self.equation.why_not_solved(state.shape[1:-1], self._parameters()):
                continue
            first = next(self.frames(state, 1, self.problem.frame_dt, known))
            if float(metrics.relative_l2(first[:, None], frame[:, None], mask=_mask(known)).max()) < 1e-3:
                return state
        return None


def _mask(known: Batch | None) -> Tensor | None:
    return None if known is None else known.mask


def mean_error(errors: dict[str, float]) -> float:
    """Of all fields together; infinite where one is no number."""
    mean = sum(errors.values()) / len(errors)
    return mean if math.isfinite(mean) else math.inf


def fewest_steps(error: Callable[[int], float]) -> int:
    """The fewest steps between frames, of 1, 2, 4, …, that do not add to the error (`SEARCH`)."""
    found: dict[int, float] = {}
    number, best = 1, 1
    while number <= MOST_STEPS:
        found[number] = error(number)
        before = found.get(number // 2, math.inf)
        settled = abs(before - found[number]) <= 0.25 * ((SLACK - 1) * found[number] + LEAST)
        best = min(found, key=lambda steps: found[steps])
        # Data that were made with a long step are met best with that one.
        if settled or (math.isfinite(found[best]) and number >= 4 * best):
            break
        number *= 2
    limit = SLACK * found[best] + LEAST
    return min(steps for steps, value in found.items() if value <= limit)
