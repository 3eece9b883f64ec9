"""What a file of The Well says about its problem: fields, grid, boundary and frame interval, inferred.

The Well stores coordinates but not whether points are nodes or cells, nor how much a model should see and
predict. `infer_problem` takes the simplest reading; `open_dataset` lets the caller say otherwise.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from factformer.data.layout import FIELD_GROUPS, Entry
from factformer.errors import UserError
from factformer.grid import Grid
from factformer.problem import Boundary, Field, Problem

TOLERANCE = 1e-3  # of the spacing: coordinates are stored in float32
NUM_CONTEXT_FRAMES, HORIZON = 4, 16


def infer_problem(file: h5py.File, path: Path) -> tuple[Problem, dict[str, list[Entry]]]:
    """The problem of a foreign file and where each of its fields is.

    Fields that vary in time are predicted. A file with a single frame and fields that do not vary in time
    is a steady problem whose inputs those are; otherwise fields that do not vary in time are left out.
    """
    num_axes = int(file.attrs["n_spatial_dims"])
    varying, constant, where = _fields(file, num_axes)
    if not varying:
        raise UserError(f"{path} has no field that varies in time")
    times = np.asarray(file["dimensions"]["time"], dtype=np.float64)
    times = times[0] if times.ndim == 2 else times
    steady = len(times) == 1 and bool(constant)
    context = 1 if steady else max(1, min(NUM_CONTEXT_FRAMES, len(times) - 1))
    grid, boundary = _grid(file, path)
    return Problem(
        name=_word(file.attrs.get("dataset_name", path.stem)),
        grid=grid,
        outputs=tuple(varying),
        inputs=tuple(constant) if steady else (),
        frame_dt=frame_interval(times, path),
        num_context_frames=context,
        horizon=1 if steady else max(1, min(HORIZON, len(times) - context)),
        boundary=boundary,
        steady=steady,
    ), where


def frame_interval(times: NDArray[np.float64], path: Path) -> float:
    """The interval of evenly spaced frames."""
    if len(times) < 2:
        return 1.0
    interval = float(times[-1] - times[0]) / (len(times) - 1)
    if not interval > 0 or np.abs(np.diff(times) - interval).max() > 0.01 * interval:
        raise UserError(f"the frames of {path} are not evenly spaced in time")
    return interval


def infer_axis(x: NDArray[np.float64], periodic: bool) -> tuple[float, str, list[float] | None]:
    """Length, kind of points and, where neither nodes nor cells from 0 on fit, the coordinates.

    A periodic axis may start anywhere: its origin is a matter of choice and is not kept.
    """
    spacing = float(x[-1] - x[0]) / (len(x) - 1)
    uniform = spacing > 0 and bool(np.abs(np.diff(x) - spacing).max() <= TOLERANCE * spacing)
    if uniform and periodic:
        return spacing * len(x), "nodes", None
    if uniform and abs(x[0]) <= TOLERANCE * spacing:
        return spacing * (len(x) - 1), "nodes", None
    if uniform and abs(x[0] - spacing / 2) <= TOLERANCE * spacing:
        return spacing * len(x), "cells", None
    gaps = np.diff(x)
    return float(x[-1] - x[0]) + (float(gaps.mean()) if periodic else 0.0), "nodes", x.tolist()


def grid_from_axes(axes: list[NDArray[np.float64]], periodic: list[bool]) -> Grid:
    """A grid through given coordinates, uniform where they are."""
    parts = [infer_axis(x, wraps) for x, wraps in zip(axes, periodic, strict=True)]
    return Grid(
        [len(x) for x in axes],
        [length for length, _, _ in parts],
        periodic,
        [points for _, points, _ in parts],
        coordinates=[coordinates for _, _, coordinates in parts],
    )


def _grid(file: h5py.File, path: Path) -> tuple[Grid, Boundary]:
    names = [_word(name) for name in file["dimensions"].attrs["spatial_dims"]]
    axes = []
    for name in names:
        x = np.asarray(file["dimensions"][name], dtype=np.float64)
        axes.append(x[0] if x.ndim == 2 else x)
        if len(axes[-1]) < 2:
            raise UserError(f"axis {name} of {path} has a single point: such files cannot be read")
    kinds: dict[str, str] = {}
    for condition in file["boundary_conditions"].values():
        for name in condition.attrs["associated_dims"]:
            kinds[_word(name)] = _word(condition.attrs["bc_type"]).upper()
    periodic = [kinds.get(name) == "PERIODIC" for name in names]
    grid = grid_from_axes(axes, periodic)
    if all(periodic):
        return grid, "periodic"
    return grid, "zero" if "WALL" in kinds.values() else "reflect"


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
