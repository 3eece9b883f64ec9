"""What a file of The Well says about its problem: fields, grid, boundary and frame interval, inferred.

The Well stores coordinates but not whether points are nodes or cells, nor how much a model should see and
predict. `infer_problem` takes the simplest reading; `open_dataset` lets the caller say otherwise, of the grid
by any of `GRID_KEYS`, with the coordinates of the file for what is not said. Scalars that vary in time are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from factformer._support.axes import TOLERANCE, evenly_spaced, per_axis, require_increasing
from factformer._support.text import cut
from factformer.data.agreement import changed_problem
from factformer.data.layout import FIELD_GROUPS, Entry
from factformer.data.opening import require_written
from factformer.errors import UserError
from factformer.grid import Grid
from factformer.problem import Boundary, Field, Problem

NUM_CONTEXT_FRAMES, HORIZON = 4, 16
CONDITIONS = frozenset({"PERIODIC", "WALL", "OPEN"})
"""Kinds of boundaries that The Well knows."""
CARTESIAN = "cartesian"
LONGEST_LINE = 2**24
"""Entries of ``dimensions/time`` or of an axis."""
GRID_KEYS = ("extent", "periodic", "points", "coordinates")


def infer_problem(file: h5py.File, path: Path, said: Mapping[str, Any]) -> tuple[Problem, dict[str, list[Entry]]]:
    """The problem of a foreign file and where each of its fields is; ``said`` is what the caller says of its grid.

    Fields that vary in time are predicted, those that do not are static, and scalars that vary by trajectory are
    parameters. A file with a single frame and static fields is a steady problem.
    """
    num_axes = int(file.attrs["n_spatial_dims"])
    varying, constant, where = _fields(file, num_axes)
    if not varying:
        raise UserError(f"{path} has no field that varies in time")
    times = read_times(file)
    steady = len(times) == 1 and bool(constant)
    context = 0 if steady else max(1, min(NUM_CONTEXT_FRAMES, len(times) - 1))
    grid, boundary = _grid(file, path, said)
    return Problem(
        name=_word(file.attrs.get("dataset_name", path.stem)),
        grid=grid,
        state=tuple(varying),
        static=tuple(constant),
        parameters=tuple(name for name, values in read_numbers(file).items() if values.ndim),
        frame_dt=frame_interval(times, path),
        num_context_frames=context,
        horizon=1 if steady else max(1, min(HORIZON, len(times) - context)),
        boundary=boundary,
    ), where


def read_times(file: h5py.File) -> NDArray[np.float64]:
    """The times of the frames, those of the first trajectory where each has its own."""
    return read_line(file, "time")


def read_line(file: h5py.File, name: str) -> NDArray[np.float64]:
    """The times or the coordinates of an axis, those of the first trajectory where each has its own."""
    source = file["dimensions"][name]
    if not source.ndim or not source.size or source.ndim > 2:
        raise UserError(f"dimensions/{name} of shape {source.shape} must be a list of numbers, and not an empty one")
    if source.size > LONGEST_LINE:
        raise UserError(f"dimensions/{name} has shape {source.shape}: no axis is that long, the file is damaged")
    require_written(Path(file.filename), f"dimensions/{name}", source)
    values = np.asarray(source, dtype=np.float64)
    return values[0] if values.ndim == 2 else values


def read_scalars(file: h5py.File) -> dict[str, float]:
    """The numbers that a file was simulated with and that are the same for all of its trajectories."""
    names = map(_word, file.attrs.get("simulation_parameters", []))
    values = {name: np.asarray(file.attrs[name]) for name in names if name in file.attrs}
    return {name: float(value) for name, value in values.items() if not value.ndim and value.dtype.kind in "fiu"}


def read_numbers(file: h5py.File) -> dict[str, NDArray[np.float64]]:
    """Scalars that do not vary in time: one number for each trajectory, or one for all of them.

    Those that cannot be a parameter are left out: others than real numbers, and names that fields have already.
    """
    group = file.get("scalars", {})
    fields = {name for kind in FIELD_GROUPS if kind in file for name in file[kind]}
    found = {}
    for name in group:
        source = group[name]
        if source.attrs.get("time_varying", False) or source.dtype.kind not in "fiu" or source.shape is None:
            continue
        if name.isidentifier() and name not in fields and source.size in (1, int(file.attrs["n_trajectories"])):
            values = np.asarray(source[()], dtype=np.float64).reshape(-1)
            varies = bool(source.attrs.get("sample_varying", source.ndim > 0))
            found[name] = values if varies else values.reshape(())
    return found


def frame_interval(times: NDArray[np.float64], path: Path) -> float:
    """The interval of evenly spaced frames."""
    if not np.isfinite(times).all() or (np.diff(times) <= 0).any():
        raise UserError(f"{path}: its times do not increase from frame to frame: correct dimensions/time in the file")
    if not is_even(times):
        raise UserError(
            f"the frames of {path} are not evenly spaced in time: interpolate them to even times before, or correct "
            "dimensions/time in the file if the times are wrong"
        )
    return mean_interval(times)


def mean_interval(times: NDArray[np.float64]) -> float:
    """The mean distance of two times; 1 where there is one."""
    return float(times[-1] - times[0]) / (len(times) - 1) if len(times) > 1 else 1.0


def is_even(times: NDArray[np.float64]) -> bool:
    """Whether times increase by the same interval each, up to a hundredth of it."""
    interval = mean_interval(times)
    return 0 < interval < np.inf and bool((np.abs(np.diff(times) - interval) <= 0.01 * interval).all())


def grid_from_axes(
    axes: Sequence[NDArray[np.float64]],
    periodic: bool | Sequence[bool],
    where: str | Path,
    *,
    extent: float | Sequence[float | None] | None = None,
    points: str | Sequence[str | None] | None = None,
    coordinates: Sequence[Sequence[float] | None] | None = None,
) -> Grid:
    """A grid through the coordinates that a file holds, uniform where they are.

    What the caller says comes first: whether axes are ``periodic``, their ``extent``, the kind of ``points`` and,
    for an axis whose points the file misplaces, other ``coordinates``. ``where`` names the file in messages.
    """
    count = len(axes)
    wraps = per_axis("periodic", periodic, count)
    lengths, kinds = per_axis("extent", extent, count), per_axis("points", points, count)
    others = per_axis("coordinates", coordinates, count)
    parts: list[tuple[float, str, list[float] | None]] = []
    for m, (x, other) in enumerate(zip(axes, others, strict=True)):
        if other is not None and len(other) != len(x):
            raise UserError(f"axis {m} of {where} has {len(x)} points, coordinates were given for {len(other)}")
        place = _infer_axis if other is None else _explicit_axis
        values = np.asarray(x if other is None else other, dtype=np.float64)
        require_increasing(f"axis {m} of {where}", values.tolist())
        parts.append(place(f"axis {m} of {where}", values, wraps[m], lengths[m], kinds[m]))
    return Grid(
        [len(x) for x in axes],
        [length for length, _, _ in parts],
        wraps,
        [kind for _, kind, _ in parts],
        coordinates=[explicit for _, _, explicit in parts],
    )


def regridded(problem: Problem, where: Path, said: Mapping[str, Any]) -> Problem:
    """The problem of a file of ours, on the grid of its points with what the caller says of it."""
    if not said:
        return problem
    grid = problem.grid
    wraps = per_axis("periodic", said.get("periodic", grid.periodic), grid.num_axes)
    # the period of uneven points is known from the file alone
    known = [
        grid.extent[m] if wraps[m] and grid.periodic[m] and not grid.is_uniform(m) else None
        for m in range(grid.num_axes)
    ]
    axes = [grid.axis(m).numpy() for m in range(grid.num_axes)]
    return changed_problem(
        problem, grid=grid_from_axes(axes, where=where, **{"extent": known, **said, "periodic": wraps})
    )


def _infer_axis(
    name: str, x: NDArray[np.float64], periodic: bool, extent: float | None, points: str | None
) -> tuple[float, str, list[float] | None]:
    """Length, kind of points and, where neither nodes nor cells from 0 on fit, the coordinates.

    A periodic axis may start anywhere: its origin is a matter of choice and is not kept.
    """
    if not evenly_spaced(np.diff(x), x):
        return _explicit_axis(name, x, periodic, extent, points)
    spacing = float(x[-1] - x[0]) / (len(x) - 1)
    cells = abs(x[0] - spacing / 2) <= TOLERANCE * spacing
    said = extent is not None or points is not None
    if not (periodic or said or cells or abs(x[0]) <= TOLERANCE * spacing):
        return _explicit_axis(name, x, periodic, extent, points)
    kind = points if points is not None else "cells" if cells and not periodic else "nodes"
    gaps = len(x) if periodic or kind == "cells" else len(x) - 1
    return spacing * gaps if extent is None else extent, kind, None


def _explicit_axis(
    name: str, x: NDArray[np.float64], periodic: bool, extent: float | None, points: str | None
) -> tuple[float, str, list[float] | None]:
    if periodic and extent is None:
        raise UserError(f"{name} is not evenly spaced, which leaves its period open: say extent, or periodic=false")
    length = float(x[-1] - x[0]) if extent is None else extent
    return length, "nodes" if points is None else points, x.tolist()


def _grid(file: h5py.File, path: Path, said: Mapping[str, Any]) -> tuple[Grid, Boundary]:
    names = [_word(name) for name in file["dimensions"].attrs["spatial_dims"]]
    axes = []
    for name in names:
        axes.append(read_line(file, name))
        if len(axes[-1]) < 2:
            raise UserError(f"axis {name} of {path} has a single point: such files cannot be read")
    kinds = _conditions(file)
    grid = grid_from_axes(axes, where=path, **{"periodic": [kinds.get(name) == "PERIODIC" for name in names], **said})
    if all(grid.periodic):
        return grid, "periodic"
    return grid, "zero" if "WALL" in kinds.values() else "reflect"


def _conditions(file: h5py.File) -> dict[str, str]:
    """The kind of boundary by the name of the axis."""
    return {
        _word(name): _word(condition.attrs["bc_type"]).upper()
        for condition in file["boundary_conditions"].values()
        for name in condition.attrs["associated_dims"]
    }


def unknown_parts(file: h5py.File) -> dict[str, list[str]]:
    """What of a foreign file is not understood: what is ``assumed`` instead, and what is ``left_out``."""
    found: dict[str, list[str]] = {}
    if not set(_conditions(file).values()) <= CONDITIONS:
        found["assumed"] = ["boundary"]
    kind = _word(file.attrs.get("grid_type", CARTESIAN))
    if kind.lower() != CARTESIAN:
        found["left_out"] = [f"the geometry {cut(kind)} (its axes are read as Cartesian)"]
    return found


def _word(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _fields(file: h5py.File, num_axes: int) -> tuple[list[Field], list[Field], dict[str, list[Entry]]]:
    varying: list[Field] = []
    constant: list[Field] = []
    where: dict[str, list[Entry]] = {}
    for order, group in enumerate(FIELD_GROUPS):
        members: Any = file[group].attrs.get("field_names", []) if group in file else []
        for name in map(_word, members):
            source = file[group][name]
            num_channels = num_axes**order
            if name in where:
                raise UserError(f"{file.filename} names two fields {name!r}")
            where[name] = [Entry(f"{group}/{name}", slice(0, num_channels), (num_axes,) * order)]
            (varying if source.attrs["time_varying"] else constant).append(Field(name, num_channels))
    return varying, constant, where
