"""A foreign file as a dataset: arrays that a problem describes, or a file that describes itself."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from factformer.config import unknown_name
from factformer.data.agreement import changed_problem
from factformer.data.dataset import Dataset
from factformer.data.describe import (
    CHANGEABLE,
    ProblemDescription,
    describe_changes,
    describe_problem,
    describe_values,
    frame_counts,
    naming,
    require_parameters,
)
from factformer.data.formats.arrays import LazyArray, open_arrays
from factformer.data.formats.importers import Column, ImportedDataset, assign_columns
from factformer.data.formats.parts import PartReader, Parts, Sizes, fields_of, joined_columns
from factformer.data.formats.pdebench import Found
from factformer.data.formats.resample import even_times, resampled
from factformer.data.formats.sources import describe_source
from factformer.data.formats.well import GRID_KEYS, mean_interval
from factformer.data.formats.xarray_files import describe_xarray
from factformer.data.hdf5 import SplitFile, is_ours
from factformer.data.layout import AXIS_NAMES, MASK
from factformer.data.normalization import Normalizer
from factformer.data.opening import reading_hdf5
from factformer.data.splits import SUFFIXES, split_of
from factformer.data.store import StoredDataset
from factformer.errors import UserError
from factformer.grid import Grid

NO_PARTS = Parts()


def import_dataset(
    path: str | Path,
    problem: str | Path | Mapping[str, Any] | None = None,
    *,
    split: str | None = None,
    fields: Mapping[str, str] | None = None,
    parts: Parts = NO_PARTS,
    layout: str | None = None,
    resolution: int | None = None,
    settings: Sequence[str] = (),
    resample_time: bool = False,
    allow_external: bool = False,
) -> Dataset:
    """A foreign file as a dataset.

    ``problem`` is a name of the catalog, a YAML or JSON file or a mapping (`ProblemDescription`); files of
    PDEBench and The Well describe themselves. ``fields`` maps fields to arrays of the file, ``parts`` says which
    arrays hold static fields, forcing, parameters and the mask, ``layout`` names the axes of the arrays (`importers`),
    ``resolution`` keeps every s-th point, ``settings`` are assignments that change the problem. What the file says of
    its grid and its frame interval holds where neither the problem nor the settings say otherwise; a PDE of the catalog
    that says otherwise by itself is refused. ``split`` is by default the one that a file of The Well's layout says, and
    else ``"train"``. Frames at uneven times are refused or, with ``resample_time``, interpolated to ``frame_dt`` where
    the problem says it; times that decrease or are too few are refused always. HDF5 files that lead to other files
    (external links and storage, virtual datasets) are refused unless ``allow_external``.
    """
    request = Request(
        Path(path), problem, split, fields or {}, parts, layout, resolution, settings, resample_time, allow_external
    )
    return read_request(request)[0]


@dataclass(frozen=True)
class Request:
    """What somebody wants of a file: the arguments of `import_dataset`."""

    path: Path
    problem: str | Path | Mapping[str, Any] | None
    split: str | None
    fields: Mapping[str, str] = field(default_factory=dict)
    parts: Parts = NO_PARTS
    layout: str | None = None
    resolution: int | None = None
    settings: Sequence[str] = ()
    resample_time: bool = False
    allow_external: bool = False


def read_request(request: Request) -> tuple[Dataset, Mapping[str, Any]]:
    """`import_dataset`, and the parameters of the solver that the problem and the settings say."""
    path, fields, parts = request.path, request.fields, request.parts
    if path.suffix in SUFFIXES and is_well(path, allow_external=request.allow_external):
        if request.layout is not None or fields or request.resolution is not None:
            raise UserError(f"{path} is in The Well's layout: it takes no layout, fields or resolution")
        if request.resample_time:
            raise UserError(f"{path} is in The Well's layout, whose frames are not resampled: interpolate them before")
        return _well_dataset(request)
    if request.problem is None:
        found = describe_source(path, taken=parts.arrays, allow_external=request.allow_external)
        if not found.values:
            raise UserError(
                f"{path} does not say what it holds: name a problem of the catalog or a problem file with --problem "
                "(docs/how-to/own-data.md shows one)"
            )
        if request.layout is not None or fields:
            raise UserError(f"{path} describes itself: without a problem it takes no layout and no fields")
        description, names = describe_values(found.values, request.settings), found.names
        _require_said(found, description)
    else:
        description, names = describe_problem(request.problem, request.settings), fields
        # a field may be called t, as a temperature is
        said = [part.strip() for text in fields.values() for part in text.split(",")]
        taken = [*description.state, *description.static, *description.forcing, *said, *parts.arrays]
        found = describe_source(path, taken=taken, allow_external=request.allow_external)
        found = found.changed(assumed=description.assumed(found.coordinates, found.has_interval))
    known = [*description.state, *description.static, *description.forcing]
    for name in names if request.problem is not None else ():
        if name not in known:
            raise unknown_name("field", name, known)
    return _array_dataset(found, description, names, request), description.made_with


def is_well(path: Path, *, allow_external: bool = False) -> bool:
    with reading_hdf5(path, allow_external=allow_external) as file:
        return is_ours(file) or ("n_trajectories" in file.attrs and "dimensions" in file and "t0_fields" in file)


def _well_dataset(request: Request) -> tuple[Dataset, Mapping[str, Any]]:
    path, problem, settings, allow_external = request.path, request.problem, request.settings, request.allow_external
    split = request.split or split_of([path], allow_external=allow_external) or "train"
    description = None if problem is None else describe_problem(problem, settings)
    given = describe_changes(settings) if description is None else description.said
    of_grid = {name: value for name, value in given.items() if name in GRID_KEYS}
    file = SplitFile(path, allow_external=allow_external, **of_grid)
    # files of others do not tell how much a model should see and predict
    usual = file.problem if description is None or file.is_ours else description
    context, horizon = (given.get(name, getattr(usual, name)) for name in ("num_context_frames", "horizon"))
    with naming(path):
        context, horizon = frame_counts(file.num_frames, file.problem.steady, context, horizon, said=given)
    changes = {name: value for name, value in given.items() if name in CHANGEABLE}
    changes |= {"num_context_frames": context, "horizon": horizon, **_chosen_parts(path, request.parts)}
    parameters = given.get("parameters", {})
    if description is None:
        data = StoredDataset([path], split, allow_external=allow_external, **changes)
        require_parameters(data.problem.name, parameters, path)
        return data, parameters
    changes |= {"name": description.name, "state": description.state_fields}
    data = StoredDataset([path], split, allow_external=allow_external, **changes)
    description.require(data.problem, data.num_frames, path)
    return data, parameters


def _chosen_parts(path: Path, parts: Parts) -> dict[str, Any]:
    """What is chosen by name of a file in The Well's layout, whose arrays have names already."""
    if parts.mask not in (None, "", MASK.name):
        raise UserError(f"{path} is in The Well's layout: its mask is its field {MASK.name!r}, got {parts.mask!r}")
    chosen: dict[str, Any] = {"static": parts.static, "forcing": parts.forcing, "parameters": parts.parameters}
    for part, names in chosen.items():
        for name, array in names.items():
            if array != name:
                raise UserError(f"{path} is in The Well's layout: its {part} {array!r} keeps its name, got {name!r}")
    named = {part: list(names) for part, names in chosen.items() if names}
    return {**named, "masked": True} if parts.mask else named


def _array_dataset(
    found: Found, description: ProblemDescription, names: Mapping[str, str], request: Request
) -> ImportedDataset:
    path, said = found.path, description.said
    steady = bool(description.static) and description.num_context_frames == 0
    state = assign_columns(
        path,
        found.arrays,
        description.state_fields,
        names,
        num_axes=description.num_axes,
        layout=request.layout,
        steady=steady,
        all_there=not (description.static or description.forcing or request.parts.arrays),
        layouts=found.layouts,
        lengths=found.axis_lengths(),
    )
    shape = _common_shape(path, state, "".join(AXIS_NAMES[: description.num_axes]))
    num_frames = state[0].size("t")
    sizes = Sizes(state[0].size("n"), num_frames, tuple(shape))
    times = found.times_to_resample(num_frames, said.get("frame_dt")) if request.resample_time else None
    even, frame_dt = None, None
    if times is not None:
        even = even_times(times, said.get("frame_dt"), str(path))
        num_frames, frame_dt = len(even), mean_interval(even)
    elif not steady:
        frame_dt = found.frame_dt(num_frames)
    problem = description.problem(
        shape, num_frames, axes=found.axes(shape, needed="extent" not in said), frame_dt=frame_dt, where=path
    )
    description.require(problem, num_frames, path)

    def open_beside(file: Path) -> Mapping[str, LazyArray]:
        return open_arrays(file, allow_external=request.allow_external)

    reader = PartReader(path, found.arrays, request.parts, sizes, request.layout, open_beside, found.layouts)
    static, forcing = (reader.columns(part, getattr(problem, part), names) for part in ("static", "forcing"))
    parameters = reader.parameters(problem.parameters)
    mask = reader.mask() if problem.masked or request.parts.mask else []
    problem = replace(
        problem,
        static=fields_of(static),
        forcing=fields_of(forcing),
        parameters=tuple(parameters),
        masked=bool(mask),
    )
    columns = {"state": state, "static": joined_columns(static), "forcing": joined_columns(forcing), "mask": mask}
    if times is not None and even is not None:
        columns = {part: [resampled(column, times, even) for column in each] for part, each in columns.items()}
    overruled_box = found.overruled_box(problem.grid) if "extent" in said else None
    step = _step(problem.grid, request.resolution)
    problem = problem.with_grid(problem.grid.every(step))
    implied = problem.boundary == "periodic" and "periodic" not in found.assumed
    assumed = [name for name in found.assumed if not (implied and name == "boundary")]
    read = [] if request.layout else [column.name for column in state]
    dimensions = {name: found.dimensions[name] for name in read if name in found.dimensions}
    is_overruled = "frame_dt" in said and times is None and not steady
    in_use = {column.name for part in columns.values() for column in part}
    in_use |= {request.parts.parameters.get(name, name) for name in parameters}
    notes = {
        "parameters": description.made_with,
        "assumed": [name for name in assumed if name not in said],
        "left_out": [*(name for name in found.arrays if not _is_used(name, in_use)), *found.left_out],
        "layout": {column.name: column.layout for column in state},
        "dimensions": dimensions,
        "units": {name: unit for name, unit in found.units.items() if name in in_use or name == "time"},
        "overruled": found.overruled(said["frame_dt"], num_frames) if is_overruled else None,
        "overruled_box": overruled_box,
        "resampled": None if times is None else f"frames were interpolated to every {problem.frame_dt:g}",
    }
    return ImportedDataset(
        path,
        problem,
        columns,
        request.split or "train",
        step,
        {key: value for key, value in notes.items() if value},
        parameters=parameters,
        sources=[*found.sources[1:], *reader.sources],
    )


def _is_used(name: str, in_use: Collection[str]) -> bool:
    """Whether an array is read; a component such as ``U.0`` also where the whole is, and the other way round."""
    whole = name.rpartition(".")[0]
    return name in in_use or whole in in_use or any(used.rpartition(".")[0] == name for used in in_use)


def _require_said(found: Found, description: ProblemDescription) -> None:
    """Raise where nobody has said what a file cannot say."""
    for name in found.unsaid:
        if name not in description.said:
            each = ", ".join(["true", "false", "true", "false"][: description.num_axes])
            raise UserError(
                f"{found.path} does not say whether its axes are periodic: add --set {name}=true, --set {name}=false "
                f"or, axis by axis, --set '{name}=[{each}]'"
            )


def sources(data: Dataset) -> list[Path]:
    """The files that a dataset is read from."""
    if isinstance(data, StoredDataset):
        return data.paths
    assert isinstance(data, ImportedDataset)
    return data.sources


def _common_shape(path: Path, columns: Sequence[Column], axes: str) -> list[int]:
    shapes = {column.name: [column.size(letter) for letter in axes] for column in columns}
    first = next(iter(shapes.values()))
    if any(shape != first for shape in shapes.values()):
        raise UserError(f"the arrays of {path} are on different grids: {shapes}")
    return first


def _step(grid: Grid, resolution: int | None) -> int:
    """Every how many points to keep so that ``resolution`` of them span the same box."""
    if resolution is None:
        return 1
    steps = set()
    for size, wraps, points in zip(grid.shape, grid.periodic, grid.points, strict=True):
        cells = points == "cells" and not wraps
        full, kept = (size, resolution) if wraps else (size - 1, resolution - 1)
        if resolution < 2 or full % kept or (cells and resolution != size):
            raise UserError(f"{size} points cannot be thinned out to {resolution} on the same box")
        steps.add(full // kept)
    if len(steps) > 1:
        raise UserError(f"grid {grid.shape} cannot be thinned out to {resolution} points along every axis")
    return steps.pop()


def xarray_dataset(
    given: Any, said: Mapping[str, Any], split: str = "train", normalizer: Normalizer | None = None
) -> ImportedDataset:
    """A DataArray or Dataset of xarray as a dataset; ``said`` are attributes of the problem, or its ``fields``."""
    found = describe_xarray(given, Path(f"the {type(given).__name__}"))
    if not found.values:
        raise UserError(f"{found.path} has no variable over time and the axes of a grid; name its dimensions so")
    values = {**found.values, "name": "custom", **{key: value for key, value in said.items() if key != "fields"}}
    if "fields" in said:
        unknown = [name for name in said["fields"] if name not in values["state"]]
        if unknown:
            raise unknown_name("variable over time", unknown[0], values["state"])
        values["state"] = {name: values["state"][name] for name in said["fields"]}
    grid = values.pop("grid", None)
    if grid is None and found.unsaid:
        raise UserError(
            f"{found.path} does not say whether its axes are periodic: give grid=, or an attribute such as "
            ".attrs['periodic'] = [True, False]"
        )
    if grid is not None:
        values["periodic"], found = list(grid.periodic), found.changed(coordinates={})
    description = describe_values(values, (), said=[key for key in said if key not in ("fields", "grid")])
    data = _array_dataset(found, description, found.names, Request(found.path, None, split))
    if grid is not None:
        data.problem = changed_problem(data.problem, grid=grid)
    return data.with_normalizer(normalizer)
