"""Foreign files as datasets, and into our store: npy, npz, MATLAB, PDEBench and The Well."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from factformer._support.files import clean_leftovers
from factformer.config import unknown_name
from factformer.data.describe import (
    CHANGEABLE,
    ProblemDescription,
    describe_changes,
    describe_problem,
    describe_values,
    frame_counts,
    require_parameters,
)
from factformer.data.formats.arrays import open_arrays
from factformer.data.formats.importers import Column, ImportedDataset, assign_columns
from factformer.data.formats.pdebench import Found, describe_file
from factformer.data.formats.well import GRID_KEYS
from factformer.data.formats.well_statistics import write_well_statistics
from factformer.data.generate.progress import ProgressBar
from factformer.data.hdf5 import SplitFile, is_ours
from factformer.data.identity import source_state
from factformer.data.layout import AXIS_NAMES, Contents, stored_fields, varying_fields
from factformer.data.numbers import Rounding
from factformer.data.opening import reading_hdf5
from factformer.data.splits import SPLITS, SUFFIXES, split_names, split_of
from factformer.data.store import WORDS, Dataset, StoredDataset
from factformer.data.writer import BlowUpError, SplitWriter
from factformer.errors import UserError
from factformer.grid import Grid
from factformer.problem import num_channels

BYTES_AT_A_TIME = 2**28


def import_dataset(
    path: str | Path,
    problem: str | Path | Mapping[str, Any] | None = None,
    *,
    split: str | None = None,
    fields: Mapping[str, str] | None = None,
    layout: str | None = None,
    resolution: int | None = None,
    settings: Sequence[str] = (),
    allow_external: bool = False,
) -> Dataset:
    """A foreign file as a dataset.

    ``problem`` is a name of the catalog, a YAML or JSON file or a mapping (`ProblemDescription`); files of
    PDEBench and The Well describe themselves. ``fields`` maps fields to arrays of the file, ``layout`` names
    the axes of the arrays (`importers`), ``resolution`` keeps every s-th point, ``settings`` are assignments
    that change the problem. What the file says of its grid and its frame interval holds where neither the problem
    nor the settings say otherwise; a PDE of the catalog that says otherwise by itself is refused.
    ``split`` is by default the one that a file of The Well's layout says, and else ``"train"``. HDF5 files that lead to
    other files (external links and storage, virtual datasets) are refused unless ``allow_external``.
    """
    return _import(Path(path), problem, split, fields or {}, layout, resolution, settings, allow_external)[0]


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
    allow_external: bool = False,
    overwrite: bool = False,
    progress: bool = False,
) -> Path:
    """Write a foreign file, or the ``trajectories`` of it, as one split of our store and return its path.

    ``out`` is a file, or a folder for ``<split>.hdf5``; a file or folder called after a split, or a file in a folder
    called so, needs no ``split``. The other arguments are those of `import_dataset`.
    """
    out = Path(out)
    named = _named_split(out, split)
    data, given = _import(Path(source), problem, named, fields or {}, layout, resolution, settings, allow_external)
    target = out if out.suffix in SUFFIXES else out / f"{data.split}.hdf5"
    chosen = range(*trajectories.indices(data.num_trajectories))
    if not chosen:
        raise UserError(f"no trajectory left: {source} holds {data.num_trajectories}, asked for {_text(trajectories)}")
    origin = {"source": Path(source).name, "trajectories": _text(trajectories)}
    writer = SplitWriter(target, _contents(data, chosen, given, origin), state=source_state(Path(source)))
    try:
        clean_leftovers(target.parent)
        writer.prepare(overwrite=overwrite)
        _copy(data, chosen, writer, Path(source), progress)
    except BlowUpError as error:
        bad = f"trajectory {chosen[error.trajectory]} holds NaN or infinite values in {error.what}"
        raise UserError(f"{source}: {bad}; mend or leave it out") from None
    finally:
        writer.release()
    if data.split == "train":
        write_well_statistics(target)
    return target


def _import(
    path: Path,
    problem: str | Path | Mapping[str, Any] | None,
    split: str | None,
    fields: Mapping[str, str],
    layout: str | None,
    resolution: int | None,
    settings: Sequence[str],
    allow_external: bool,
) -> tuple[Dataset, Mapping[str, Any]]:
    """`import_dataset`, and the parameters of the solver that the problem and the settings say."""
    if path.suffix in SUFFIXES and is_well(path, allow_external=allow_external):
        if layout is not None or fields or resolution is not None:
            raise UserError(f"{path} is in The Well's layout: it takes no layout, fields or resolution")
        split = split or split_of([path], allow_external=allow_external) or "train"
        return _well_dataset(path, problem, split, settings, allow_external)
    arrays = open_arrays(path, allow_external=allow_external)
    if problem is None:
        found = describe_file(path, arrays)
        if not found.values:
            raise UserError(f"{path} does not say what it holds: name a problem of the catalog or a problem file")
        if layout is not None or fields:
            raise UserError(f"{path} describes itself: without a problem it takes no layout and no fields")
        description, names = describe_values(found.values, settings), found.names
    else:
        description, names = describe_problem(problem, settings), fields
        # a field may be called t, as a temperature is
        said = [part.strip() for text in fields.values() for part in text.split(",")]
        found = replace(describe_file(path, arrays, taken=[*description.state, *description.static, *said]), assumed=())
    known = [*description.state, *description.static]
    for name in names:
        if name not in known:
            raise unknown_name("field", name, known)
    data = _array_dataset(found, description, names, layout, split or "train", resolution)
    return data, description.parameters


def _copy(data: Dataset, chosen: range, writer: SplitWriter, source: Path, progress: bool) -> None:
    """Write the ``chosen`` trajectories of ``source``, or those that an interrupted run has left to do."""
    parts = ("state", *data.problem.parts)
    rounding = {part: Rounding(f"the {WORDS.get(part, part)} of {source}") for part in parts if part != "mask"}
    try:
        with ProgressBar(f"convert {source.name}", len(chosen), enabled=progress, unit="trajectories") as bar:
            batches = writer.pending(_batch_size(data))
            bar.advance(len(chosen) - sum(len(batch) for batch in batches))
            for batch in batches:
                indices = chosen[batch.start : batch.stop]
                with writer.batch(batch) as output:
                    read = {part: rounding[part].kept(data.read_exact(indices, part=part)) for part in rounding}
                    if "mask" in parts:
                        output.write_mask(data.read_exact(indices, part="mask"))
                    if "static" in read:
                        output.write_static(read["static"])
                    if "parameters" in read:
                        output.write_parameters(read["parameters"])
                    for index, frame in enumerate(read["state"].swapaxes(0, 1)):
                        output.write(frame, read["forcing"][:, index] if "forcing" in read else None)
                bar.advance(len(batch))
        for rounded in rounding.values():
            rounded.require_digits()
        writer.finish()
    except UserError:
        writer.discard()
        raise


def _contents(data: Dataset, chosen: range, given: Mapping[str, Any], origin: Mapping[str, Any]) -> Contents:
    """What the file will hold: the ``chosen`` trajectories with all that is known of them.

    Solver's parameters come from the data or, where these do not tell, from whoever converts them: ``given``.
    """
    provenance = {**data.provenance, **origin, "fingerprint": data.fingerprint}
    parameters = {**data.provenance.get("parameters", {}), **given}
    numbers = {name: float(value) for name, value in given.items() if type(value) in (int, float)}
    file = data.files[0] if isinstance(data, StoredDataset) else None
    if file:
        stored = {item.name for item in stored_fields(data.problem)}
        provenance["left_out"] = [name for name in file.field_names if name not in stored]
    return Contents(
        problem=data.problem,
        split=data.split,
        num_trajectories=len(chosen),
        num_frames=data.num_frames,
        seeds=tuple(file.seeds[index] for index in chosen) if file and file.seeds else (),
        start_time=file.start_time if file else 0.0,
        provenance={**provenance, **({"parameters": parameters} if parameters else {})},
        scalars={**(file.scalars if file else {}), **numbers},
    )


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
    per_trajectory = 4 * data.num_frames * problem.grid.num_points * num_channels(varying_fields(problem))
    return max(1, BYTES_AT_A_TIME // per_trajectory)


def is_well(path: Path, *, allow_external: bool = False) -> bool:
    with reading_hdf5(path, allow_external=allow_external) as file:
        return is_ours(file) or ("n_trajectories" in file.attrs and "dimensions" in file and "t0_fields" in file)


def _well_dataset(
    path: Path, problem: Any, split: str, settings: Sequence[str], allow_external: bool
) -> tuple[Dataset, Mapping[str, Any]]:
    description = None if problem is None else describe_problem(problem, settings)
    given = describe_changes(settings) if description is None else description.said
    of_grid = {name: value for name, value in given.items() if name in GRID_KEYS}
    file = SplitFile(path, allow_external=allow_external, **of_grid)
    # files of others do not tell how much a model should see and predict
    usual = file.problem if description is None or file.is_ours else description
    context, horizon = (given.get(name, getattr(usual, name)) for name in ("num_context_frames", "horizon"))
    context, horizon = frame_counts(file.num_frames, file.problem.steady, context, horizon, said=given)
    changes = {name: value for name, value in given.items() if name in CHANGEABLE}
    changes |= {"num_context_frames": context, "horizon": horizon}
    parameters = given.get("parameters", {})
    if description is None:
        data = StoredDataset([path], split, allow_external=allow_external, **changes)
        require_parameters(data.problem.name, parameters, path)
        return data, parameters
    changes |= {"name": description.name, "state": description.state_fields}
    data = StoredDataset([path], split, allow_external=allow_external, **changes)
    description.require(data.problem, data.num_frames, path)
    return data, parameters


def _array_dataset(
    found: Found,
    description: ProblemDescription,
    names: Mapping[str, str],
    layout: str | None,
    split: str,
    resolution: int | None,
) -> ImportedDataset:
    path, said = found.path, description.said
    steady = bool(description.static) and description.num_context_frames == 0
    state, static = (
        assign_columns(
            path,
            found.arrays,
            fields,
            names,
            num_axes=description.num_axes,
            layout=layout,
            steady=timeless,
            all_there=not description.static,
        )
        for fields, timeless in ((description.state_fields, steady), (description.static_fields, True))
    )
    shape = _common_shape(path, [*state, *static], "".join(AXIS_NAMES[: description.num_axes]))
    num_frames = state[0].size("t")
    problem = description.problem(
        shape,
        num_frames,
        axes=found.axes(shape, needed="extent" not in said),
        frame_dt=None if "frame_dt" in said else found.frame_dt(num_frames),
        where=path,
    )
    description.require(problem, num_frames, path)
    step = _step(problem.grid, resolution)
    problem = problem.with_grid(problem.grid.every(step))
    in_use = {column.name for column in (*state, *static)}
    notes = {
        "parameters": description.parameters,
        "assumed": [name for name in found.assumed if name not in said],
        "left_out": [name for name in found.arrays if name not in in_use],
    }
    known = {key: value for key, value in notes.items() if value}
    return ImportedDataset(path, problem, state, static, split, step, known)


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


def _named_split(out: Path, split: str | None) -> str | None:
    """The split that is asked for, by itself or by the name of the file to write, or else of its folder."""
    if split is not None and split not in SPLITS:
        raise unknown_name("split", split, SPLITS)
    if out.suffix[1:2].isalpha() and out.suffix not in SUFFIXES and not out.is_dir():
        raise UserError(f"cannot write {out}: name a file that ends in .hdf5, or a folder")
    named, folder = split_names(out if out.suffix in SUFFIXES else out / "any.hdf5")
    if split and named and split != named:
        raise UserError(f"{out} is called after the split {named!r}, asked for {split!r}: choose another name")
    return split or named or folder or None


def _text(chosen: slice) -> str:
    first, last = ("" if end is None else end for end in (chosen.start, chosen.stop))
    return f"{first}:{last}"
