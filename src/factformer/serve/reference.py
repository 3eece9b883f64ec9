"""The equation that a bundle was trained on: its random starts, and its solver beside the surrogate."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from factformer import catalog
from factformer.config import Config
from factformer.errors import UserError
from factformer.pdes import PDE, Preset, find_pde
from factformer.problem import Problem
from factformer.surrogate import Surrogate

ENDLESS = 10**9
"""Frames that a solver is asked for: it gives them one at a time, and is left when enough are taken."""


@dataclass(frozen=True)
class Reference:
    """A PDE of the catalog with the parameters of a bundle's training data."""

    equation: PDE
    parameters: Config
    problem: Problem

    @property
    def why_no_start(self) -> str:
        """Why a random flow cannot be made; empty where it can."""
        problem = self.problem
        conditions = problem.forcing or problem.masked or (problem.static and not problem.steady)
        return f"{problem.name} has more than its state to start from" if conditions else ""

    @property
    def why_no_solver(self) -> str:
        """Why the solver cannot start from a frame of the surrogate; empty where it can."""
        problem, equation = self.problem, self.equation
        axes = problem.grid.num_axes
        if self.why_no_start:
            return self.why_no_start
        channels = problem.num_static_channels if problem.steady else problem.num_state_channels
        if equation.initial_channels(axes) != channels:
            return f"the solver of {problem.name} does not start from all of its fields"
        return equation.why_not_stored(self.parameters)

    def with_parameters(self, values: Mapping[str, float]) -> Config:
        """The equation's parameters with some of them changed."""
        known = {name: value for name, value in values.items() if name in type(self.parameters).model_fields}
        return self.parameters.replace(**known) if known else self.parameters

    def frames(self, state: Tensor, values: Mapping[str, float]) -> Iterator[Tensor]:
        """The solution after ``state`` ``(1, *grid, channel)``, frame by frame, as `factformer.simulate` gives it.

        The first is ``state`` itself; that of a steady problem is its solution.
        """
        count = 1 if self.problem.steady else ENDLESS
        return self.equation.frames(state, count, self.problem.frame_dt, self.with_parameters(values))

    def start(self, seed: int, values: Mapping[str, float]) -> Iterator[Tensor]:
        """Frames of a random flow on the bundle's grid; the last ones, as many as it sees, are a context.

        It is made as the data of the equation's first preset: on its finer grid, after its warm-up. For a steady
        problem these are the static fields of one sample.
        """
        equation, problem = self.equation, self.problem
        preset = next(iter(equation.presets.values()), None)
        parameters = self.with_parameters(values)
        factor = _refinement(equation, preset)
        grid = equation.grid_of([factor * size for size in problem.grid.shape], parameters)
        generator = torch.Generator().manual_seed(seed)
        initial = equation.sample_initial(
            grid, [generator], dtype=torch.float32, device="cpu", initial=preset.initial if preset else None
        )
        if problem.steady:
            yield initial
            return
        dropped = round((preset.warmup if preset else 0.0) / problem.frame_dt)
        count = dropped + problem.num_context_frames
        for state in equation.frames(initial, count, problem.frame_dt, parameters):
            yield state if factor == 1 else self._stored(state, preset)

    def _stored(self, state: Tensor, preset: Preset | None) -> Tensor:
        method = preset.downsampling if preset else None
        return self.equation.downsample(state.unsqueeze(1), self.problem.grid.shape, method).squeeze(1)


def _refinement(equation: PDE, preset: Preset | None) -> int:
    if preset is None or not equation.downsamplings or equation.steady:
        return 1
    return max(1, preset.simulation_resolution // preset.resolution)


def find_reference(surrogate: Surrogate) -> Reference | str:
    """The equation that a bundle's provenance names, or one line that says why there is none."""
    problem, provenance = surrogate.problem, surrogate.provenance
    name = str(provenance.get("problem", problem.name))
    if name not in catalog.names("pdes"):
        return f"{problem.name} is no equation of the catalog"
    equation = find_pde(name)
    axes = problem.grid.num_axes
    if axes not in equation.dimensions or equation.fields(axes) != problem.state or equation.static != problem.static:
        return f"the fields of the bundle are not those of the equation {name}"
    made_with = provenance.get("data_parameters") or {}
    known = {key: value for key, value in made_with.items() if key not in problem.parameters}
    try:
        parameters = equation.parameters.parse(known)
        grid = equation.grid_of(problem.grid.shape, parameters)
    except UserError as error:
        return f"the parameters of the training data are not those of the equation {name}: {error}"
    if grid.key != problem.grid.key:
        return f"the grid of the bundle is not that of the equation {name}"
    return Reference(equation, parameters, problem)
