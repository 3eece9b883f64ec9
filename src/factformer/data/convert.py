"""Foreign files as datasets, and into our store: npy, npz, MATLAB, PDEBench and The Well."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from factformer.config import apply_overrides, unknown_name
from factformer.data.arrays import open_arrays
from factformer.data.describe import describe_problem
from factformer.data.hdf5 import open_hdf5
from factformer.data.importers import Column, ImportedDataset, assign_columns
from factformer.data.layout import AXIS_NAMES, Contents
from factformer.data.pdebench import Description, describe_file
from factformer.data.progress import ProgressBar
from factformer.data.store import SPLITS, SUFFIXES, Dataset, StoredDataset
from factformer.data.well_statistics import write_well_statistics
from factformer.data.writer import BlowUpError, SplitWriter
from factformer.errors import UserError
from factformer.grid import Grid
from factformer.problem import Problem

CHANGEABLE = ("name", "extent", "periodic", "points", "frame_dt", "num_context_frames", "horizon", "boundary")
BYTES_AT_A_TIME = 2**28


def import_dataset(
    path: str | Path,
    problem: str | Path | Mapping[str, Any] | None = None,
    *,
    split: str = "train",
    fields: Mapping[str, str] | None = None,
    layout: str | None = None,
    resolution: int | None = None,
    settings: Sequence[str] = (),
) -> Dataset:
    """A foreign file as a dataset.

    ``problem`` is a name of the catalog, a YAML or JSON file or a mapping (`ProblemDescription`); files of
    PDEBench and The Well describe themselves. ``fields`` maps fields to arrays of the file, ``layout`` names
    the axes of the arrays (`importers`), ``resolution`` keeps every s-th point, ``settings`` are assignments
    that change the problem.
    """
    path = Path(path)
    if path.suffix in SUFFIXES and is_well(path):
        if layout or fields or resolution:
            raise UserError(f"{path} is in The Well's layout: it takes no layout, fields or resolution")
        return _well_dataset(path, problem, split, settings)
    arrays = open_arrays(path)
    names = dict(fields or {})
    found = describe_file(path, arrays) if problem is None else None
    if found is not None:
        if layout or fields:
            raise UserError(f"{path} describes itself: without a problem it takes no layout and no fields")
        return _described_dataset(path, found, split, resolution, settings)
    if problem is None:
        raise UserError(f"{path} does not say what it holds: name a problem of the catalog or a problem file")
    description = describe_problem(problem, settings)
    known = [*description.outputs, *description.inputs]
    for name in names:
        if name not in known:
            raise unknown_name("field", name, known)
    axes = "".join(AXIS_NAMES[: description.num_axes])
    blank = description.problem([4] * description.num_axes, num_frames=2)
    options: dict[str, Any] = {"num_axes": description.num_axes, "layout": layout, "steady": blank.steady}
    outputs = assign_columns(path, arrays, blank.outputs, names, **options)
    inputs = assign_columns(path, arrays, blank.inputs, names, **options) if blank.steady else []
    shape = _common_shape(path, [*outputs, *inputs], axes)
    step = _step(description.problem(shape, 2).grid, resolution)
    shape = [len(range(0, size, step)) for size in shape]
    stored = description.problem(shape, outputs[0].size("t"))
    return ImportedDataset(path, stored, outputs, inputs, split, step, parameters=description.parameters)


def convert(
    source: str | Path,
    out: str | Path,
    problem: str | Path | Mapping[str, Any] | None = None,
    *,
    split: str | None = None,
    trajectories: slice = slice(None),
    fields: Mapping[str, str] | None = None,
    layout: str | None = None,
    resolution: int | None = None,
    settings: Sequence[str] = (),
    overwrite: bool = False,
    progress: bool = False,
) -> Path:
    """Write a foreign file, or the ``trajectories`` of it, as one split of our store and return its path.

    ``out`` is a file, or a folder for ``<split>.hdf5``; a file called after a split needs no ``split``. The
    other arguments are those of `import_dataset`.
    """
    target, split = _target(Path(out), split)
    data = import_dataset(
        source, problem, split=split, fields=fields, layout=layout, resolution=resolution, settings=settings
    )
    chosen = range(*trajectories.indices(data.num_trajectories))
    if not chosen:
        raise UserError(f"no trajectory left: {source} holds {data.num_trajectories}, asked for {_text(trajectories)}")
    contents = Contents(
        problem=data.problem,
        split=split,
        num_trajectories=len(chosen),
        num_frames=data.num_frames,
        provenance={
            "source": Path(source).name,
            "fingerprint": data.fingerprint,
            "trajectories": _text(trajectories),
            **_made_with(data, problem, settings),
        },
    )
    writer = SplitWriter(target, contents)
    writer.prepare(overwrite=overwrite)
    try:
        with ProgressBar(f"convert {Path(source).name}", len(chosen), enabled=progress, unit="trajectories") as bar:
            batches = writer.pending(_batch_size(data))
            bar.advance(len(chosen) - sum(len(batch) for batch in batches))
            for batch in batches:
                indices = chosen[batch.start : batch.stop]
                with writer.batch(batch) as output:
                    if data.problem.steady:
                        output.write_inputs(data.read_inputs(indices)[:, 0].numpy())
                    for frame in data.read(indices).unbind(1):
                        output.write(frame.numpy())
                bar.advance(len(batch))
        writer.finish()
    except UserError as error:
        writer.discard()
        if isinstance(error, BlowUpError):
            bad = f"trajectory {chosen[error.trajectory]} holds NaN or infinite values in {error.what}"
            raise UserError(f"{source}: {bad}; mend or leave it out") from None
        raise
    finally:
        writer.release()
    if split == "train":
        write_well_statistics(target)
    return target


def _made_with(
    data: Dataset, problem: str | Path | Mapping[str, Any] | None, settings: Sequence[str]
) -> dict[str, Any]:
    """The solver's parameters, from the data or, where these do not tell, from whoever converts them."""
    given = {} if problem is None else describe_problem(problem, settings).parameters
    parameters = {**data.provenance.get("parameters", {}), **given}
    return {"parameters": parameters} if parameters else {}


def parse_trajectories(text: str) -> slice:
    """``"100"`` (the first 100), ``"100:120"`` or ``"100:"`` as a slice."""
    parts = text.split(":")
    try:
        numbers = [int(part) if part.strip() else None for part in parts]
    except ValueError:
        numbers = []
    if not 1 <= len(numbers) <= 2 or any(number is not None and number < 0 for number in numbers):
        raise UserError(f"trajectories are a number or a range such as 100:120, got {text!r}")
    return slice(None, numbers[0]) if len(numbers) == 1 else slice(*numbers)


def parse_assignments(texts: Sequence[str]) -> dict[str, str]:
    """``["density=rho"]`` as a mapping."""
    pairs = [text.partition("=") for text in texts]
    for text, (name, _, array) in zip(texts, pairs, strict=True):
        if not name.strip() or not array.strip():
            raise UserError(f"a field is given as FIELD=ARRAY, such as density=rho; got {text!r}")
    return {name.strip(): array.strip() for name, _, array in pairs}


def _batch_size(data: Dataset) -> int:
    """Trajectories at a time: many, because reading one of an array may mean reading all of it."""
    problem = data.problem
    per_trajectory = 4 * data.num_frames * problem.grid.num_points * problem.num_output_channels
    return max(1, BYTES_AT_A_TIME // per_trajectory)


def is_well(path: Path) -> bool:
    with open_hdf5(path) as file:
        return "n_trajectories" in file.attrs and "dimensions" in file and "t0_fields" in file


def _well_dataset(path: Path, problem: Any, split: str, settings: Sequence[str]) -> Dataset:
    data = StoredDataset([path], split)
    if problem is None:
        return StoredDataset([path], split, **_changes(data.problem, settings))
    description = describe_problem(problem, settings)
    wanted = description.problem(data.problem.grid.shape, data.num_frames)
    changes = {name: getattr(wanted, name) for name in ("name", "grid", "frame_dt", "num_context_frames", "horizon")}
    chosen = StoredDataset([path], split, outputs=wanted.outputs, boundary=wanted.boundary, **changes)
    chosen.require(wanted)
    return chosen


def _described_dataset(
    path: Path, found: Description, split: str, resolution: int | None, settings: Sequence[str]
) -> Dataset:
    problem = replace(found.problem, **_changes(found.problem, settings))
    step = _step(problem.grid, resolution)
    if step > 1:
        shape = [len(range(0, size, step)) for size in problem.grid.shape]
        problem = problem.with_grid(problem.grid.resample(shape))
    options: dict[str, Any] = {"num_axes": problem.grid.num_axes, "layout": None, "steady": problem.steady}
    outputs = assign_columns(path, found.arrays, problem.outputs, found.names, **options)
    inputs = assign_columns(path, found.arrays, problem.inputs, found.names, **options) if problem.steady else []
    return ImportedDataset(path, problem, outputs, inputs, split, step)


def _changes(problem: Problem, settings: Sequence[str]) -> dict[str, Any]:
    """Assignments such as ``frame_dt=0.1`` or ``periodic=true`` as changes of a problem."""
    given = apply_overrides({}, settings)
    for name in given:
        if name not in CHANGEABLE:
            raise unknown_name("attribute of a problem", name, CHANGEABLE)
    of_grid = {name: given.pop(name) for name in ("extent", "periodic", "points") if name in given}
    if of_grid:
        grid = problem.grid
        values = {"extent": grid.extent, "periodic": grid.periodic, "points": grid.points, **of_grid}
        coordinates = None if "extent" in of_grid or "points" in of_grid else grid.coordinates
        given["grid"] = Grid(grid.shape, **values, coordinates=coordinates)
        if "boundary" not in given:
            fallback = "reflect" if problem.boundary == "periodic" else problem.boundary
            given["boundary"] = "periodic" if all(given["grid"].periodic) else fallback
    return given


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


def _target(out: Path, split: str | None) -> tuple[Path, str]:
    if split is not None and split not in SPLITS:
        raise unknown_name("split", split, SPLITS)
    if out.suffix in SUFFIXES:
        return out, split or (out.stem if out.stem in SPLITS else "train")
    return out / f"{split or 'train'}.hdf5", split or "train"


def _text(chosen: slice) -> str:
    first, last = ("" if end is None else end for end in (chosen.start, chosen.stop))
    return f"{first}:{last}"
