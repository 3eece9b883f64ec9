"""A problem in the words of a user: a name of the catalog, or a few lines of YAML, with any value changed."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field as Value
from pydantic import PrivateAttr, field_validator

from factformer import catalog
from factformer._support.axes import per_axis
from factformer._support.documents import read_yaml
from factformer.config import Config, apply_overrides, unknown_name
from factformer.data.agreement import describe_difference, require_open_end
from factformer.data.formats.well import GRID_KEYS, grid_from_axes
from factformer.errors import UserError
from factformer.grid import Grid
from factformer.pdes import find_pde
from factformer.problem import Boundary, Field, Problem, migrated

CHANGEABLE = ("name", *GRID_KEYS, "frame_dt", "num_context_frames", "horizon", "boundary")
"""What may be said of a problem that a file describes."""


class ProblemDescription(Config):
    """Everything of a problem but the numbers of points, which the data say.

    ``state``, ``static`` and ``forcing`` map field names to numbers of channels; a problem without context frames is
    steady and its static fields decide its state. ``parameters`` are a list of names of numbers that each trajectory
    has, or a mapping of what the data were made with. A value for an axis may be one for all of them. ``coordinates``
    are for axes that are not evenly spaced: an increasing list each, null for the others.
    """

    name: str = Value(min_length=1)
    num_axes: int = Value(ge=1, le=4)
    state: dict[str, int]
    static: dict[str, int] = Value(default_factory=dict)
    forcing: dict[str, int] = Value(default_factory=dict)
    masked: bool = False
    extent: float | list[float] = 1.0
    periodic: bool | list[bool] = False
    points: str | list[str] = "nodes"
    coordinates: list[list[float] | None] | None = None
    frame_dt: float = 1.0
    num_context_frames: int = 4
    horizon: int = 16
    boundary: Literal["periodic", "zero", "reflect"] | None = None
    parameters: list[str] | dict[str, Any] = Value(default_factory=dict)
    """Names of numbers of each trajectory; or what all were made with, of a PDE of the catalog only."""

    _said: frozenset[str] = PrivateAttr(default=frozenset())
    _of_catalog: bool = PrivateAttr(default=False)

    @field_validator("num_axes", "extent", "frame_dt", "num_context_frames", "horizon", mode="before")
    @classmethod
    def _no_truth(cls, value: Any) -> Any:
        if isinstance(value, bool):
            raise ValueError("a number is needed here, not true or false")
        return value

    @property
    def said(self) -> dict[str, Any]:
        """What a user has said: not the defaults, nor what the catalog says."""
        return {name: getattr(self, name) for name in sorted(self._said) if getattr(self, name) is not None}

    @property
    def state_fields(self) -> tuple[Field, ...]:
        return tuple(Field(name, count) for name, count in self.state.items())

    @property
    def static_fields(self) -> tuple[Field, ...]:
        return tuple(Field(name, count) for name, count in self.static.items())

    @property
    def forcing_fields(self) -> tuple[Field, ...]:
        return tuple(Field(name, count) for name, count in self.forcing.items())

    @property
    def parameter_names(self) -> tuple[str, ...]:
        """Numbers that each trajectory has."""
        return tuple(self.parameters) if isinstance(self.parameters, list) else ()

    @property
    def made_with(self) -> dict[str, Any]:
        """Parameters of the solver that all trajectories share."""
        return {} if isinstance(self.parameters, list) else self.parameters

    def problem(
        self,
        shape: Sequence[int],
        num_frames: int,
        *,
        axes: Sequence[NDArray[np.float64]] | None = None,
        frame_dt: float | None = None,
        where: str | Path = "the data",
    ) -> Problem:
        """The problem on ``shape`` points.

        Coordinates and frame interval of a file, ``axes`` and ``frame_dt``, hold where nobody has said otherwise.
        Context and horizon shrink to what ``num_frames`` allow, unless somebody has said them.
        """
        grid = self._grid(shape, axes, where)
        steady = bool(self.static) and self.num_context_frames == 0
        with naming(where):
            context, horizon = frame_counts(num_frames, steady, self.num_context_frames, self.horizon, self.said)
            if "boundary" in self.said:
                require_open_end(grid, self.boundary)
            return Problem(
                self.name,
                grid,
                self.state_fields,
                self.static_fields,
                self.forcing_fields,
                self.parameter_names,
                masked=self.masked,
                frame_dt=self.frame_dt if frame_dt is None or "frame_dt" in self.said else frame_dt,
                num_context_frames=context,
                horizon=horizon,
                boundary=self._boundary(grid),
            )

    def assumed(self, has_coordinates: Any, has_interval: bool) -> tuple[str, ...]:
        """What neither a file nor a user nor the catalog says, so that a default holds."""
        if self._of_catalog:
            return ()
        open_ = [] if has_coordinates else ["extent", "points"]
        open_ += [] if has_interval or self.num_context_frames == 0 else ["frame_dt"]
        return tuple(name for name in (*open_, "periodic") if name not in self._said)

    def require(self, found: Problem, num_frames: int, where: str | Path) -> None:
        """Raise where the problem that was ``found`` in a file contradicts this one.

        A PDE of the catalog has a frame interval, a box and walls of its own: other ones must be said.
        """
        advice = ""
        if self._of_catalog:
            difference = describe_difference(self.problem(found.grid.shape, num_frames), found)
            advice = "; say which one holds with --set frame_dt=, extent=, periodic=, points= or boundary="
        elif self.num_axes != found.grid.num_axes:
            difference = f"num_axes={self.num_axes} expected, {found.grid.num_axes} found"
        elif bool(self.num_context_frames) != bool(found.num_context_frames):
            difference = (
                f"num_context_frames={self.num_context_frames} expected, "
                f"{found.num_context_frames} found (0 is a steady problem)"
            )
        else:
            difference = describe_difference(replace(found, static=self.static_fields or found.static), found)
        if difference:
            raise UserError(f"{where} does not fit {self.name!r}: {difference}{advice}")

    def _grid(self, shape: Sequence[int], axes: Sequence[NDArray[np.float64]] | None, where: str | Path) -> Grid:
        said = {name: value for name, value in self.said.items() if name in GRID_KEYS}
        if axes is not None:
            return grid_from_axes(axes, where=where, **{"periodic": self.periodic, **said})
        with naming(where):
            grid = Grid(shape, self.extent, self.periodic, self.points)
        if self.coordinates is None:
            return grid
        explicit = per_axis("coordinates", self.coordinates, grid.num_axes)
        known = "extent" in self.said or self._of_catalog
        return grid_from_axes(
            [grid.axis(m).numpy() for m in range(grid.num_axes)],
            grid.periodic,
            where,
            extent=[length if known or x is None else None for length, x in zip(grid.extent, explicit, strict=True)],
            points=grid.points,
            coordinates=explicit,
        )

    def _boundary(self, grid: Grid) -> Boundary:
        if "boundary" in self.said and self.boundary is not None:
            return self.boundary
        if all(grid.periodic):
            return "periodic"
        return "reflect" if self.boundary in (None, "periodic") else self.boundary


@contextmanager
def naming(where: str | Path) -> Iterator[None]:
    """Says ``where`` in front of what is wrong with a problem or a grid."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{where}: {error}") from None


def frame_counts(
    num_frames: int, steady: bool, context: int, horizon: int, said: Collection[str] = ()
) -> tuple[int, int]:
    """Context and horizon in ``num_frames``: what somebody has ``said`` must fit, the rest shrinks until it does.

    A steady problem has no context and predicts one frame.
    """
    for name, count in (("num_context_frames", 1 if steady else context), ("horizon", horizon)):
        if name in said and (not isinstance(count, int) or count < 1):
            raise UserError(f"{name}={count} asked for: it is a number of frames, 1 or more")
    for name, count, others in (("num_context_frames", context, 1), ("horizon", horizon, min(context, num_frames - 1))):
        most = 1 if steady else max(1, num_frames - others)
        if name in said and count > most:
            raise UserError(f"{name}={count} asked for, but of {num_frames} frames at most {most} are left for it")
    if steady:
        return 0, 1
    context = max(1, min(context, num_frames - 1))
    return context, max(1, min(horizon, num_frames - context))


def describe_problem(problem: str | Path | Mapping[str, Any], settings: Sequence[str] = ()) -> ProblemDescription:
    """The description of a problem of the catalog, of a YAML or JSON file, or from the values themselves.

    ``settings`` are assignments such as ``frame_dt=0.1``.
    """
    if isinstance(problem, Mapping):
        problem = migrated(problem)
        return describe_values(problem, settings, said=problem)
    if Path(problem).suffix in (".yaml", ".yml", ".json"):
        values = migrated(_read_values(Path(problem)))
        return describe_values(values, settings, said=values, where=str(problem))
    description = describe_values(_catalog_values(str(problem)), settings)
    description._of_catalog = True
    return description


def describe_values(
    values: Mapping[str, Any], settings: Sequence[str], said: Collection[str] = (), where: str = "problem"
) -> ProblemDescription:
    """The description from its values with ``settings``, of which, with these, those called ``said`` are a user's."""
    given = apply_overrides({"parameters": {}, **values}, settings)
    for name in given:
        if name not in ProblemDescription.model_fields:
            raise UserError(f"{where}: {unknown_name('key', name, ProblemDescription.model_fields)}")
    description = ProblemDescription.parse(given, where)
    if not description.state:
        raise UserError(f"{where}.state: name at least one field and its number of channels, such as {{u: 1}}")
    description._said = frozenset({*said, *(re.split("[.=]", setting)[0].strip() for setting in settings)})
    require_parameters(description.name, description.made_with, where)
    return description


def describe_changes(settings: Sequence[str]) -> dict[str, Any]:
    """What ``settings`` say of a problem that a file describes, by the rules of `ProblemDescription`.

    Whether its solver has such ``parameters`` is known with its name (`require_parameters`).
    """
    given = apply_overrides({"parameters": {}}, settings)
    for name in given:
        if name not in (*CHANGEABLE, "parameters"):
            raise unknown_name("attribute of a problem", name, (*CHANGEABLE, "parameters"))
    parameters = given.pop("parameters")
    rest = {"name": "what the file says", "num_axes": 1, "state": {}}
    description = ProblemDescription.parse({**rest, **given}, "problem")
    said = {name: getattr(description, name) for name in given}
    return {**{name: value for name, value in said.items() if value is not None}, "parameters": parameters}


def require_parameters(name: str, parameters: Any, where: str | Path) -> None:
    """Raise where ``parameters`` are none of the PDE called ``name``."""
    if not isinstance(parameters, Mapping):
        raise UserError(f"{where}: parameters are names with values, such as parameters.drag=0; got {parameters!r}")
    if parameters and name not in catalog.names("pdes"):
        raise UserError(
            f"{where}: parameters are those of a PDE of the catalog, and {name!r} is none; name one, or leave them out"
        )
    if parameters:
        find_pde(name).parameters.parse(parameters, "parameters")


def _read_values(path: Path) -> dict[str, Any]:
    if not path.exists():
        raise UserError(f"no problem file {path}")
    return read_yaml(path)


def _catalog_values(name: str) -> dict[str, Any]:
    problem = find_pde(name).problem(32)
    grid = problem.grid
    return {
        "name": problem.name,
        "num_axes": grid.num_axes,
        "state": {item.name: item.num_channels for item in problem.state},
        "static": {item.name: item.num_channels for item in problem.static},
        "extent": list(grid.extent),
        "periodic": list(grid.periodic),
        "points": list(grid.points),
        "frame_dt": problem.frame_dt,
        "num_context_frames": problem.num_context_frames,
        "horizon": problem.horizon,
        "boundary": problem.boundary,
    }
