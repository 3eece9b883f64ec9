"""PDEBench's HDF5 files: fields, axes and frame interval from the names they use.

Three layouts are in circulation (doi 10.18419/darus-2986):

* arrays ``(sample, frame, *grid)`` named ``tensor``, or ``density``, ``pressure``, ``Vx``, ``Vy``, ``Vz``,
  with ``x-coordinate`` … and ``t-coordinate`` (which may hold one more entry than there are frames);
  a steady file has ``nu (sample, *grid)`` as input of ``tensor``;
* groups ``0000, 0001, …``, each a sample with ``data (frame, *grid, channel)`` and ``grid/x``, ``grid/t``;
* ``velocity``, ``particles`` of incompressible flow, ``(sample, frame, *grid, channel)`` with ``t``.

The boundary is not in the files: flow called ``trans`` and grouped samples are read with zero gradient,
``nu`` with zero values, everything else as periodic; the caller may say otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from factformer.data.arrays import LazyArray
from factformer.data.layout import AXIS_NAMES
from factformer.data.well import frame_interval, grid_from_axes
from factformer.grid import Grid
from factformer.problem import Boundary, Field, Problem

COMPONENTS = ("Vx", "Vy", "Vz")
SCALARS = ("density", "pressure", "tensor")


@dataclass(frozen=True)
class Description:
    """What a file says about its problem, and which array each field is."""

    problem: Problem
    names: Mapping[str, str]
    arrays: Mapping[str, LazyArray]


class Samples:
    """The samples of a file with one group each, as one array ``(sample, frame, *grid, channel)``."""

    def __init__(self, arrays: list[LazyArray]) -> None:
        self._arrays = arrays

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self._arrays), *self._arrays[0].shape)

    def __getitem__(self, index: tuple[Any, ...]) -> Any:
        return np.stack([array[index[1:]] for array in self._arrays[index[0]]])


def describe_file(path: Path, arrays: Mapping[str, LazyArray]) -> Description | None:
    """The description of a PDEBench file; None when the names are not PDEBench's."""
    grouped = sorted(name for name in arrays if name.endswith("/data") and name.split("/")[0].isdigit())
    if grouped:
        return _describe_groups(path, arrays, grouped)
    if "velocity" in arrays and "particles" in arrays:
        return _describe_incompressible(path, arrays)
    if "x-coordinate" in arrays and any(name in arrays for name in SCALARS):
        return _describe_arrays(path, arrays)
    return None


def _describe_arrays(path: Path, arrays: Mapping[str, LazyArray]) -> Description:
    scalars = [name for name in SCALARS if name in arrays]
    shape = arrays[scalars[0]].shape
    steady = "nu" in arrays
    axes = [np.asarray(arrays[f"{name}-coordinate"][:], dtype=np.float64) for name in AXIS_NAMES[: len(shape) - 2]]
    periodic = not steady and "trans" not in path.stem.lower()
    components = [name for name in COMPONENTS if name in arrays]
    fields = [Field(name) for name in scalars]
    names = {name: name for name in scalars}
    if components:
        fields.append(Field("velocity", len(components)))
        names["velocity"] = ",".join(components)
    inputs = (Field("nu"),) if steady else ()
    boundary: Boundary = "zero" if steady else "reflect"
    times = np.asarray(arrays["t-coordinate"][:], dtype=np.float64)[: shape[1]] if "t-coordinate" in arrays else None
    grid = grid_from_axes(axes, [periodic] * len(axes))
    problem = _problem(path, grid, tuple(fields), inputs, times, shape[1], boundary)
    return Description(problem, {**names, "nu": "nu"} if steady else names, arrays)


def _describe_groups(path: Path, arrays: Mapping[str, LazyArray], grouped: list[str]) -> Description:
    first = grouped[0].split("/")[0]
    data = Samples([arrays[name] for name in grouped])
    num_axes = len(data.shape) - 3
    axes = [np.asarray(arrays[f"{first}/grid/{name}"][:], dtype=np.float64) for name in AXIS_NAMES[:num_axes]]
    times = np.asarray(arrays[f"{first}/grid/t"][:], dtype=np.float64)[: data.shape[1]]
    grid = grid_from_axes(axes, [False] * num_axes)
    fields = (Field("data", data.shape[-1]),)
    return Description(
        _problem(path, grid, fields, (), times, data.shape[1], "reflect"), {"data": "data"}, {"data": data}
    )


def _describe_incompressible(path: Path, arrays: Mapping[str, LazyArray]) -> Description:
    shape = arrays["velocity"].shape
    times = np.asarray(arrays["t"][0], dtype=np.float64)[: shape[1]] if "t" in arrays else None
    grid = Grid(shape[2:-1], 1.0, False, "cells")
    fields = (Field("velocity", shape[-1]), Field("particles"))
    problem = _problem(path, grid, fields, (), times, shape[1], "zero")
    return Description(problem, {"velocity": "velocity", "particles": "particles"}, arrays)


def _problem(
    path: Path,
    grid: Grid,
    outputs: tuple[Field, ...],
    inputs: tuple[Field, ...],
    times: NDArray[np.float64] | None,
    num_frames: int,
    boundary: Boundary,
) -> Problem:
    context = 1 if inputs else max(1, min(10, num_frames // 2))
    return Problem(
        name=path.stem,
        grid=grid,
        outputs=outputs,
        inputs=inputs,
        frame_dt=1.0 if times is None else frame_interval(times, path),
        num_context_frames=context,
        horizon=1 if inputs else max(1, min(16, num_frames - context)),
        boundary="periodic" if all(grid.periodic) else boundary,
        steady=bool(inputs),
    )
