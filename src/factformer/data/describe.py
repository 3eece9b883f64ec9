"""A problem in the words of a user: a name of the catalog, or a few lines of YAML, with any value changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import Field as Value

from factformer import catalog
from factformer.config import Config, apply_overrides
from factformer.errors import UserError
from factformer.grid import Grid
from factformer.problem import Field, Problem


class ProblemDescription(Config):
    """Everything of a problem but the numbers of points, which the data say.

    ``outputs`` and ``inputs`` map field names to numbers of channels; a value for an axis may be one for
    all of them.
    """

    name: str
    num_axes: int
    outputs: dict[str, int]
    inputs: dict[str, int] = Value(default_factory=dict)
    extent: float | list[float] = 1.0
    periodic: bool | list[bool] = False
    points: str | list[str] = "nodes"
    frame_dt: float = 1.0
    num_context_frames: int = 4
    horizon: int = 16
    boundary: Literal["periodic", "zero", "reflect"] | None = None
    steady: bool = False
    parameters: dict[str, Any] = Value(default_factory=dict)
    """What the data were made with, as far as it is known; of a PDE of the catalog only."""

    def problem(self, shape: Sequence[int], num_frames: int) -> Problem:
        """The problem on ``shape`` points; context and horizon shrink to what ``num_frames`` allow."""
        grid = Grid(shape, self.extent, self.periodic, self.points)
        boundary = self.boundary or ("periodic" if all(grid.periodic) else "reflect")
        context = 1 if self.steady else max(1, min(self.num_context_frames, num_frames - 1))
        return Problem(
            name=self.name,
            grid=grid,
            outputs=tuple(Field(name, count) for name, count in self.outputs.items()),
            inputs=tuple(Field(name, count) for name, count in self.inputs.items()),
            frame_dt=self.frame_dt,
            num_context_frames=context,
            horizon=1 if self.steady else max(1, min(self.horizon, num_frames - context)),
            boundary=boundary,
            steady=self.steady,
        )


def describe_problem(problem: str | Path | Mapping[str, Any], settings: Sequence[str] = ()) -> ProblemDescription:
    """The description of a problem of the catalog, of a YAML or JSON file, or from the values themselves.

    ``settings`` are assignments such as ``frame_dt=0.1``.
    """
    if isinstance(problem, Mapping):
        values, where = dict(problem), "problem"
    elif Path(problem).suffix in (".yaml", ".yml", ".json"):
        values, where = _read_values(Path(problem)), str(problem)
    else:
        values, where = _catalog_values(str(problem)), "problem"
    description = ProblemDescription.parse(apply_overrides({"parameters": {}, **values}, settings), where)
    if description.parameters:
        if description.name not in catalog.names("pdes"):
            raise UserError(f"{where}: parameters are those of a PDE of the catalog, and {description.name!r} is none")
        catalog.find("pdes", description.name).pde.parameters.parse(description.parameters, "parameters")
    return description


def _read_values(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise UserError(f"no problem file {path}")
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise UserError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict):
        raise UserError(f"{path} must hold names and values, such as `frame_dt: 0.1`")
    return values


def _catalog_values(name: str) -> dict[str, Any]:
    problem: Problem = catalog.find("pdes", name).pde.problem(32)
    grid = problem.grid
    return {
        "name": problem.name,
        "num_axes": grid.num_axes,
        "outputs": {item.name: item.num_channels for item in problem.outputs},
        "inputs": {item.name: item.num_channels for item in problem.inputs} if problem.steady else {},
        "extent": list(grid.extent),
        "periodic": list(grid.periodic),
        "points": list(grid.points),
        "frame_dt": problem.frame_dt,
        "num_context_frames": problem.num_context_frames,
        "horizon": problem.horizon,
        "boundary": problem.boundary,
        "steady": problem.steady,
    }
