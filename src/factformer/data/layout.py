"""The file format: one split per HDF5 file in The Well's layout, with every array in one fixed place.

Scalars live in ``t0_fields``, vectors in ``t1_fields``, tensors in ``t2_fields``, each as
``(trajectory, frame, *grid, *components)``. A field whose number of channels is neither is kept as that many
scalars ``name_0, name_1, …``. What The Well's layout cannot say (where points sit, context and horizon,
solver settings, which fields are static or forcing) is in root attributes as JSON, and per-channel statistics in the
group ``statistics``. Static fields, and the mask among the scalars, have no axis of frames; parameters are scalars that
vary by trajectory.

Arrays are contiguous and allocated when the file is created, so that values can be written in place by
several processes, in any order, and the bytes of the finished file depend on its content alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import h5py
import numpy as np

import factformer
from factformer.config import fingerprint
from factformer.data.statistics import moment_sizes
from factformer.errors import UserError
from factformer.problem import Field, Problem

FORMAT = 2
"""Format 1 is the first edition's: it names statistics otherwise (`statistics_names`)."""
MASK = Field("mask")
"""How a mask is stored: as a scalar that does not vary in time, 1 inside the domain and 0 outside."""
FIELD_GROUPS = ("t0_fields", "t1_fields", "t2_fields")
AXIS_NAMES = ("x", "y", "z", "w")
ALIGNMENT = 4096  # arrays start on a page, so that they can be mapped into memory


@dataclass(frozen=True)
class Contents:
    """What a file of one split holds, down to the seed of each trajectory."""

    problem: Problem
    split: str
    num_trajectories: int
    num_frames: int
    seeds: tuple[int, ...] = ()
    start_time: float = 0.0
    provenance: Mapping[str, Any] = field(default_factory=dict)
    scalars: Mapping[str, float] = field(default_factory=dict)

    @cached_property
    def fingerprint(self) -> str:
        """Equal exactly when problem, solver settings, seeds, sizes and format are."""
        return fingerprint(
            {
                "format": 1,  # files of both formats hold the same values
                "problem": self.problem.identity(),
                "split": self.split,
                "num_trajectories": self.num_trajectories,
                "num_frames": self.num_frames,
                "seeds": list(self.seeds),
                "start_time": self.start_time,
                "provenance": dict(self.provenance),
                "scalars": dict(self.scalars),
            }
        )


@dataclass(frozen=True)
class Entry:
    """One dataset of the file: where it is, which channels it holds and the shape of its components."""

    path: str
    channels: slice
    components: tuple[int, ...]


def varying_fields(problem: Problem) -> tuple[Field, ...]:
    """The fields that are stored for every frame."""
    return (*problem.state, *problem.forcing)


def constant_fields(problem: Problem) -> tuple[Field, ...]:
    """The fields that are stored once per trajectory."""
    return (*problem.static, *([MASK] if problem.masked else []))


def stored_fields(problem: Problem) -> tuple[Field, ...]:
    """All fields of a file."""
    return (*varying_fields(problem), *constant_fields(problem))


def statistics_names(problem: Problem, version: int) -> dict[str, str]:
    """What each kind of statistics is called in a file of a format."""
    renamed = {"state": "output", "static": "input"} if version == 1 else {}
    return {kind: renamed.get(kind, kind) for kind in moment_sizes(problem)}


def entries(fields: Sequence[Field], num_axes: int) -> list[Entry]:
    """The datasets that hold ``fields``, in channel order."""
    result, start = [], 0
    for item in fields:
        stop = start + item.num_channels
        order = 0 if item.num_channels == 1 else {num_axes: 1, num_axes**2: 2}.get(item.num_channels)
        if order is not None:
            path = f"t{order}_fields/{item.name}"
            result.append(Entry(path, slice(start, stop), (num_axes,) * order))
        else:
            result += [
                Entry(f"t0_fields/{item.name}_{c}", slice(start + c, start + c + 1), ())
                for c in range(item.num_channels)
            ]
        start = stop
    return result


def create_file(path: Path, contents: Contents) -> None:
    """Write everything but the values of the fields and statistics, for which the space is set aside."""
    problem = contents.problem
    with h5py.File(
        path, "w", libver=("earliest", "v108"), alignment_threshold=ALIGNMENT, alignment_interval=ALIGNMENT
    ) as file:
        _write_attributes(file, contents)
        _write_dimensions(file, contents)
        _write_boundaries(file, problem)
        scalars = file.create_group("scalars")
        scalars.attrs["field_names"] = _strings([*contents.scalars, *problem.parameters])
        for name, value in contents.scalars.items():
            scalars.create_dataset(name, data=np.float32(value))
            scalars[name].attrs.update(sample_varying=False, time_varying=False)
        for name in problem.parameters:
            _reserve(file, f"scalars/{name}", (contents.num_trajectories,), np.dtype("<f4"))
            scalars[name].attrs.update(sample_varying=True, time_varying=False)
        if contents.seeds:
            file.create_dataset("seeds", data=np.array(contents.seeds, dtype=np.int64))
        _reserve_fields(file, contents)
        if contents.split == "train":
            for kind, size in moment_sizes(problem).items():
                for moment in ("mean", "std"):
                    _reserve(file, f"statistics/{kind}_{moment}", (size,), np.dtype("<f8"))


def offsets(path: Path) -> dict[str, int]:
    """Byte position in the file of every array that `create_file` has set space aside for."""
    with h5py.File(path, "r") as file:
        found: dict[str, int] = {}

        def visit(name: str, item: Any) -> None:
            if isinstance(item, h5py.Dataset) and name.split("/")[0] in (*FIELD_GROUPS, "scalars", "statistics"):
                found[name] = item.id.get_offset()

        file.visititems(visit)
        return found


def file_fingerprint(path: Path, *, unfinished: bool = False) -> str:
    """The fingerprint a file carries; empty for a file that is damaged or not ours.

    An ``unfinished`` file of another format has none either: nobody can write the rest of it.
    """
    try:
        with h5py.File(path, "r") as file:
            other = unfinished and int(file.attrs.get("format", 0)) != FORMAT
            return "" if other else str(file.attrs.get("fingerprint", ""))
    except OSError:
        return ""


def problem_text(problem: Problem) -> str:
    """JSON of a problem; explicit coordinates are kept in ``dimensions``: an attribute is short."""
    values = problem.to_dict()
    values["grid"]["coordinates"] = [axis is not None for axis in problem.grid.coordinates]
    return json.dumps(values, sort_keys=True)


def read_problem(file: h5py.File) -> Problem:
    """The problem that `create_file` has written down."""
    values = json.loads(file.attrs["problem"])
    explicit = values["grid"]["coordinates"]
    values["grid"]["coordinates"] = [
        file["dimensions"][name][:].tolist() if flag else None for flag, name in zip(explicit, AXIS_NAMES, strict=False)
    ]
    return Problem.from_dict(values)


def _write_attributes(file: h5py.File, contents: Contents) -> None:
    problem = contents.problem
    file.attrs["dataset_name"] = problem.name
    file.attrs["grid_type"] = "cartesian"
    file.attrs["n_spatial_dims"] = problem.grid.num_axes
    file.attrs["n_trajectories"] = contents.num_trajectories
    file.attrs["simulation_parameters"] = _strings(contents.scalars)
    for name, value in contents.scalars.items():
        file.attrs[name] = float(value)
    file.attrs["format"] = FORMAT
    file.attrs["factformer_version"] = factformer.__version__
    file.attrs["fingerprint"] = contents.fingerprint
    file.attrs["split"] = contents.split
    file.attrs["problem"] = problem_text(problem)
    file.attrs["provenance"] = json.dumps(dict(contents.provenance), sort_keys=True)


def _write_dimensions(file: h5py.File, contents: Contents) -> None:
    grid = contents.problem.grid
    # The Well keeps float32; explicit coordinates must come back as they were.
    dtype = np.float32 if all(grid.is_uniform(m) for m in range(grid.num_axes)) else np.float64
    group = file.create_group("dimensions")
    group.attrs["spatial_dims"] = _strings(AXIS_NAMES[: grid.num_axes])
    times = contents.start_time + contents.problem.frame_dt * np.arange(contents.num_frames)
    group.create_dataset("time", data=times.astype(np.float32))
    group["time"].attrs.update(sample_varying=False, time_varying=True)
    for m, name in enumerate(AXIS_NAMES[: grid.num_axes]):
        group.create_dataset(name, data=grid.axis(m).numpy().astype(dtype))
        group[name].attrs.update(sample_varying=False, time_varying=False)


def _write_boundaries(file: h5py.File, problem: Problem) -> None:
    kinds = {"periodic": "PERIODIC", "zero": "WALL", "reflect": "OPEN"}
    group = file.create_group("boundary_conditions")
    for name, size, padding in zip(AXIS_NAMES, problem.grid.shape, problem.padding, strict=False):
        condition = group.create_group(f"{name}_{padding}")
        condition.attrs["associated_dims"] = _strings([name])
        condition.attrs["associated_fields"] = _strings([])
        condition.attrs["bc_type"] = kinds[padding]
        condition.attrs.update(sample_varying=False, time_varying=False)
        mask = np.zeros(size, dtype=bool)
        mask[[0, -1]] = True
        condition.create_dataset("mask", data=mask)


def _reserve_fields(file: h5py.File, contents: Contents) -> None:
    problem = contents.problem
    grid = problem.grid
    leading: dict[str, tuple[int, ...]] = {}
    listed = [(entry, True) for entry in entries(varying_fields(problem), grid.num_axes)]
    listed += [(entry, False) for entry in entries(constant_fields(problem), grid.num_axes)]
    names: dict[str, list[str]] = {group: [] for group in FIELD_GROUPS}
    for name in FIELD_GROUPS:
        file.create_group(name)
    for entry, time_varying in listed:
        if entry.path in leading:
            raise UserError(f"problem {problem.name!r} has two fields to be stored as {entry.path}")
        frames = (contents.num_frames,) if time_varying else ()
        leading[entry.path] = (contents.num_trajectories, *frames)
        _reserve(file, entry.path, (*leading[entry.path], *grid.shape, *entry.components), np.dtype("<f4"))
        group, name = entry.path.split("/")
        names[group].append(name)
        file[entry.path].attrs["dim_varying"] = np.ones(grid.num_axes, dtype=bool)
        file[entry.path].attrs.update(sample_varying=True, time_varying=time_varying)
    for group, members in names.items():
        file[group].attrs["field_names"] = _strings(members)


def _reserve(file: h5py.File, path: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_layout(h5py.h5d.CONTIGUOUS)
    properties.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    properties.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    properties.set_obj_track_times(False)
    links = h5py.h5p.create(h5py.h5p.LINK_CREATE)
    links.set_create_intermediate_group(True)
    space = h5py.h5s.create_simple(shape)
    h5py.h5d.create(file.id, path.encode(), h5py.h5t.py_create(dtype), space, dcpl=properties, lcpl=links)


def _strings(values: Any) -> np.ndarray[Any, Any]:
    return np.array(list(values), dtype=h5py.string_dtype())
