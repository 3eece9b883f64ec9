"""The equation that a bundle was trained on: its random starts, and its solver beside the surrogate."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from factformer import catalog
from factformer.batch import Batch
from factformer.config import Config
from factformer.errors import UserError
from factformer.pdes import PDE, Preset, find_pde, solve
from factformer.problem import Problem, num_channels
from factformer.surrogate import Surrogate

ENDLESS = 10**9
"""Frames that a solver is asked for: it gives them one at a time, and is left when enough are taken."""
FORCED = 400
"""Frames after the context that the forcing of a random flow is known for."""


@dataclass(frozen=True)
class Reference:
    """A PDE of the catalog with the parameters of a bundle's training data."""

    equation: PDE
    parameters: Config
    problem: Problem

    @property
    def why_no_solver(self) -> str:
        """Why the solver cannot start from a frame of the surrogate; empty where it can."""
        problem, equation = self.problem, self.equation
        axes = problem.grid.num_axes
        if equation.initial_channels(axes) != num_channels(problem.start_fields):
            return f"the solver of {problem.name} does not start from all of its fields"
        return equation.why_not_stored(self.parameters) or equation.why_not_solved(problem.grid.shape, self.parameters)

    def with_parameters(self, values: Mapping[str, float]) -> Config:
        """The equation's parameters with some of them changed."""
        known = {name: value for name, value in values.items() if name in type(self.parameters).model_fields}
        return self.parameters.replace(**known) if known else self.parameters

    def frames(self, batch: Batch, state: Tensor, values: Mapping[str, float]) -> Iterator[Tensor]:
        """The solution after ``state`` ``(1, *grid, channel)``, frame by frame, as `factformer.simulate` gives it.

        The first is ``state`` itself, the last frame that ``batch`` sees; that of a steady problem is its solution.
        """
        problem = self.problem
        known = batch.from_frame(max(0, problem.num_context_frames - 1), None)._replace(parameters=None)
        count = 1 if problem.start == "static" else ENDLESS if known.forcing is None else known.forcing.shape[1]
        given = known if self.equation.conditions else None
        return solve(self.equation, state, count, batch.frame_dt(problem), self.with_parameters(values), given)

    def start(self, seed: int, values: Mapping[str, float]) -> Iterator[Batch | None]:
        """A random flow on the bundle's grid, as a batch of one sample; before it None for each frame that is solved.

        It is made as the data of the equation's first preset: on its finer grid, after its warm-up.
        """
        equation, problem = self.equation, self.problem
        preset = next(iter(equation.presets.values()), None)
        parameters = self.with_parameters(values)
        factor = _refinement(equation, preset)
        grid = equation.grid_of([factor * size for size in problem.grid.shape], parameters)
        generators = [torch.Generator().manual_seed(seed)]
        dropped = round((preset.warmup if preset else 0.0) / problem.frame_dt)
        count = dropped + problem.num_context_frames
        known = None
        if equation.conditions:
            num_known = count + (FORCED if equation.forcing else 0)
            known = equation.sample_known(
                grid, generators, num_known, problem.frame_dt, dtype=torch.float32, device="cpu"
            )
        initial = equation.sample_initial(
            grid, generators, dtype=torch.float32, device="cpu", initial=preset.initial if preset else None
        )
        initial = equation.start_for(initial, parameters)
        numbers = torch.tensor([[values[name] for name in problem.parameters]]) if problem.parameters else None
        if problem.start == "static":
            yield Batch(static=initial, parameters=numbers)
            return
        context: list[Tensor] = []
        for state in solve(equation, initial, count, problem.frame_dt, parameters, known):
            context = [*context, self._stored(state, preset).float()][-problem.num_context_frames :]
            yield None
        told = Batch() if known is None else self._told(known, dropped, preset)
        yield told._replace(context=torch.stack(context, dim=1), parameters=numbers)

    def _told(self, known: Batch, dropped: int, preset: Preset | None) -> Batch:
        """What is given beside the start, on the bundle's grid and from the first frame of the context on."""
        static, forcing, mask = known.static, known.forcing, known.mask
        return Batch(
            static=None if static is None else self._stored(static, preset),
            forcing=None
            if forcing is None
            else torch.stack([self._stored(frame, preset) for frame in forcing[:, dropped:].unbind(1)], dim=1),
            mask=None if mask is None else self._stored(mask.float().unsqueeze(-1), preset).squeeze(-1) > 0.5,
        )

    def _stored(self, state: Tensor, preset: Preset | None) -> Tensor:
        shape = self.problem.grid.shape
        if tuple(state.shape[1:-1]) == shape:
            return state
        method = preset.downsampling if preset else None
        return self.equation.downsample(state.unsqueeze(1), shape, method).squeeze(1)


def _refinement(equation: PDE, preset: Preset | None) -> int:
    if preset is None or not equation.downsamplings or equation.steady:
        return 1
    return max(1, preset.simulation_resolution // preset.resolution)


def whole_parameters(surrogate: Surrogate) -> list[str]:
    """Those of its parameters that its equation, if it is one of the catalog, takes as whole numbers."""
    name = str(surrogate.provenance.get("problem", surrogate.problem.name))
    if name not in catalog.names("pdes"):
        return []
    fields = find_pde(name).parameters.model_fields
    return [item for item in surrogate.problem.parameters if item in fields and fields[item].annotation is int]


def find_reference(surrogate: Surrogate) -> Reference | str:
    """The equation that a bundle's provenance names, or one line that says why there is none."""
    problem, provenance = surrogate.problem, surrogate.provenance
    name = str(provenance.get("problem", problem.name))
    if name not in catalog.names("pdes"):
        return f"{problem.name} is no equation of the catalog"
    equation = find_pde(name)
    axes = problem.grid.num_axes
    known = (equation.static, equation.forcing, equation.masked)
    same = known == (problem.static, problem.forcing, problem.masked)
    if axes not in equation.dimensions or equation.fields(axes) != problem.state or not same:
        return f"the fields of the bundle are not those of the equation {name}"
    made_with = provenance.get("data_parameters") or {}
    shared = {key: value for key, value in made_with.items() if key not in problem.parameters}
    try:
        parameters = equation.parameters.parse(shared)
        grid = equation.grid_of(problem.grid.shape, parameters)
    except UserError as error:
        return f"the parameters of the training data are not those of the equation {name}: {error}"
    if grid.key != problem.grid.key:
        return f"the grid of the bundle is not that of the equation {name}"
    return Reference(equation, parameters, problem)
