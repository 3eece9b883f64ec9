"""What a roll-out starts from, read from a file: context frames and all else that is known of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from factformer.arrays import as_number
from factformer.batch import Batch
from factformer.config import unknown_name
from factformer.data.agreement import describe_geometry, frame_stride
from factformer.data.formats.arrays import SUFFIXES, TIMES, LazyArray, describe_arrays, open_arrays
from factformer.data.formats.foreign import NO_PARTS, is_well
from factformer.data.formats.importers import Column, ImportedDataset, assign_columns
from factformer.data.formats.parts import PartReader, Parts, Sizes, is_number, joined_columns
from factformer.data.formats.pdebench import Found, describe_times
from factformer.data.formats.sources import describe_source
from factformer.data.layout import AXIS_NAMES
from factformer.data.store import StoredDataset, open_dataset, parts_for
from factformer.data.windows import span
from factformer.errors import UserError
from factformer.evaluation.accuracy import check_setting
from factformer.problem import STEP, Field, Problem

STORED = (".hdf5", ".h5")


@dataclass(frozen=True)
class Context:
    """What a roll-out starts from: a batch, which frame of its file it begins with, and how many there were."""

    batch: Batch
    start: int
    num_available: int
    made_with: Mapping[str, Any] = field(default_factory=dict)
    """Provenance of the data, where they tell it."""
    stride: int = 1
    """Frames of the file in one frame of the surrogate."""

    def __str__(self) -> str:
        """Such as ``frames 20 to 23 of 24``, counted from 0; nothing where there is no time."""
        if self.batch.context is None:
            return ""
        count = self.batch.context.shape[1]
        last = self.start + span(count, self.stride) - 1
        which = f"frame {self.start}" if count == 1 else f"frames {self.start} to {last}"
        apart = f", {self.stride} apart," if self.stride > 1 and count > 1 else ""
        return f"{which}{apart} of {self.num_available}"


def read_context(
    path: Path,
    problem: Problem,
    num_frames: int = 1,
    *,
    start: int | None = None,
    fields: Mapping[str, str] | None = None,
    layout: str | None = None,
    parts: Parts = NO_PARTS,
    parameters: Mapping[str, Any] | None = None,
) -> Context:
    """What predicts ``num_frames`` from a file: a dataset of ours or of The Well, or arrays as `convert` reads them.

    ``fields`` says which arrays are which field, ``parts`` which hold what else is known, ``layout`` what their axes
    are, as for `convert`; a single trajectory needs no axis of its own. ``parameters`` are numbers to take instead of
    those of the file. The context begins at frame ``start``, by default so that it ends with the last frame of arrays
    and begins with the first of a dataset. The samples of a steady problem need no axis of frames. Forcing begins with
    the first frame of the file.
    """
    given = _given(problem, parameters or {})
    if path.suffix in STORED and is_well(path):
        if fields or layout or parts.arrays:
            numbers = [f"--set parameters.{name}={text}" for name, text in parts.parameters.items() if is_number(text)]
            advice = f"; numbers are given by {' '.join(numbers)}" if numbers else ""
            raise UserError(f"{path} is in The Well's layout: it takes no layout, no fields and no other parts{advice}")
        data: ImportedDataset | StoredDataset
        data, stride = _stored(path, problem, given)
        first, num_forced = 0, data.num_frames
    else:
        for name in fields or {}:
            if name not in (known := [f.name for f in _seen(problem)]):
                raise unknown_name("field", name, known)
        said = [part.strip() for text in (fields or {}).values() for part in text.split(",")]
        taken = [*(f.name for f in _seen(problem)), *said, *parts.arrays]
        described = _described(path, taken)
        seen = _columns(described, problem, fields or {}, layout)
        _require_same_box(described, problem, [seen[0].size(axis) for axis in AXIS_NAMES[: problem.grid.num_axes]])
        if STEP in problem.parameters and STEP not in parts.parameters:
            given.setdefault(STEP, _interval(described, problem, seen[0].size("t")))
        data, num_forced = _arrays(described, problem, seen, parts, layout, given)
        interval = given.get(STEP, problem.frame_dt)
        stride = described.frame_stride(data.num_frames, interval) if problem.num_context_frames else 1
        first = max(data.num_frames - span(problem.num_context_frames, stride), 0)
    if not problem.num_context_frames:
        if start is not None:
            raise UserError(f"{problem.name!r} is steady: its samples have no frames to start from, leave out --start")
        if data.num_frames != 1:
            raise UserError(f"{path} holds {data.num_frames} frames a sample: {problem.name!r} is steady and takes one")
        batch = _with_parameters(data.known(slice(None), slice(0, 1)), problem, data, given)
        return Context(batch, 0, 1, data.provenance)
    first, count = first if start is None else start, problem.num_context_frames
    if not 0 <= first <= data.num_frames - span(count, stride):
        asked = "" if stride == 1 else f" that lie {stride} apart"
        asked += "" if start is None else f" from frame {start} on, counted from 0"
        raise UserError(f"{path} holds {data.num_frames} frames, too few for {count} context frames{asked}")
    predicted = num_frames if problem.forcing else 0
    if problem.forcing and first + span(count + predicted, stride) > num_forced:
        raise UserError(
            f"{path} holds forcing for {num_forced} frames, too few for {count} context frames from frame {first} on "
            f"and {num_frames} predicted ones; ask for fewer, or for an earlier --start"
        )
    batch = data.batch(slice(None), first, predicted, num_context_frames=count, stride=stride)
    return Context(_with_parameters(batch, problem, data, given), first, data.num_frames, data.provenance, stride)


def _given(problem: Problem, parameters: Mapping[str, Any]) -> dict[str, float]:
    """Parameters that somebody has said, if the problem has them."""
    for name in parameters:
        if name not in problem.parameters:
            there = problem.parameters or ("none",)
            raise unknown_name(f"parameter of {problem.name!r}", name, there)
    return {name: as_number(value, f"parameter {name!r}") for name, value in parameters.items()}


def _stored(path: Path, problem: Problem, given: dict[str, float]) -> tuple[StoredDataset, int]:
    """A dataset that holds what ``problem`` needs, but for the parameters ``given``; how many of its frames one is.

    A surrogate for several time steps is told the interval of the frames, unless it is ``given``.
    """
    opened = open_dataset(path)
    found = opened.problem
    if _seen(found) != _seen(problem):
        wanted, there = (", ".join(f.name for f in _seen(item)) for item in (problem, found))
        raise UserError(f"{path} is of {found.name!r} with {there}; a surrogate of {problem.name!r} needs {wanted}")
    changes = parts_for(opened, problem)
    interval = given.get(STEP, problem.frame_dt)
    try:
        stride = check_setting(replace(problem, frame_dt=interval), found)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    if STEP in problem.parameters and STEP not in found.parameters:
        apart = stride * found.frame_dt
        if STEP in given and not math.isclose(apart, interval, rel_tol=1e-6):
            raise UserError(
                f"{path}: its frames are {found.frame_dt:g} apart, of which frame_dt={interval:g} is no multiple"
            )
        given[STEP] = apart
    if changes:
        found = open_dataset(path, **changes).problem
    left, kept = ([name for name in item.parameters if name not in given] for item in (problem, found))
    parts, wanted_parts = ([part for part in item.parts if part != "parameters"] for item in (found, problem))
    if parts != wanted_parts or kept != left:
        wanted, there = (
            ", ".join((*names, *numbers)) or "nothing" for names, numbers in ((wanted_parts, left), (parts, kept))
        )
        raise UserError(f"{path} holds {there} beside its state; a surrogate of {problem.name!r} needs {wanted}")
    count, horizon = problem.num_context_frames, problem.horizon
    return open_dataset(path, num_context_frames=count, horizon=horizon, **changes), stride


def _interval(found: Found, problem: Problem, num_frames: int) -> float:
    """The time between frames that a surrogate for several time steps is told: its own, or that of the file."""
    interval = found.frame_dt(num_frames) if num_frames > 1 else None
    if interval is None or frame_stride(problem.frame_dt, interval, tolerance=1e-3):
        return problem.frame_dt
    return interval


def _described(path: Path, taken: Sequence[str]) -> Found:
    """The arrays of a file with their times; names that PDEBench gives a meaning have none here."""
    if path.suffix in SUFFIXES:
        arrays = {name: array for name, array in open_arrays(path).items() if not _is_moment(name, array, taken)}
        return describe_times(path, arrays, taken=taken)
    return describe_source(path, taken=taken)


def _is_moment(name: str, array: LazyArray, taken: Sequence[str]) -> bool:
    """Whether an array says when a state was, which is no interval between frames."""
    return name.lower() in TIMES and name not in taken and math.prod(array.shape) == 1


def _require_same_box(described: Found, problem: Problem, shape: Sequence[int]) -> None:
    """Raise where a file has coordinates of another box; those that only number the points say nothing."""
    axes = described.axes(shape, needed=False) or []
    if all(np.allclose(x, np.arange(len(x)) + x[:1].clip(0, 1)) for x in axes):
        return
    found = described.grid(problem.grid, shape)
    difference = describe_geometry(problem.grid, found) if found else ""
    if difference:
        raise UserError(
            f"{described.path} is not of the surrogate's problem: {difference}; only the resolution may differ; "
            "leave the coordinates out if they are wrong"
        )


def _arrays(
    found: Found,
    problem: Problem,
    seen: list[Column],
    parts: Parts,
    layout: str | None,
    given: Mapping[str, float],
) -> tuple[ImportedDataset, int]:
    """Arrays as a dataset of all that ``problem`` needs, and how many frames have forcing."""
    axes = AXIS_NAMES[: problem.grid.num_axes]
    sizes = Sizes(seen[0].size("n"), None, tuple(seen[0].size(axis) for axis in axes))
    path = found.path
    reader = PartReader(path, found.arrays, parts, sizes, layout, layouts=found.layouts)
    for part in ("static", "forcing", "parameters"):
        known = [*(f.name for f in getattr(problem, part))] if part != "parameters" else list(problem.parameters)
        for name in getattr(parts, part):
            if name not in known:
                raise unknown_name(f"{part} of {problem.name!r}", name, known or ("none",))
    if parts.mask and not problem.masked:
        raise UserError(f"{problem.name!r} has no mask; leave it out")
    columns: dict[str, list[Column]] = {problem.start: seen}
    if problem.static and "static" not in columns:
        columns["static"] = joined_columns(reader.columns("static", problem.static))
    columns["forcing"] = joined_columns(reader.columns("forcing", problem.forcing))
    columns["mask"] = reader.mask() if problem.masked else []
    numbers = reader.parameters([name for name in problem.parameters if name not in given])
    numbers |= {name: np.full(sizes.num_trajectories, value) for name, value in given.items()}
    data = ImportedDataset(path, problem, columns, "test", parameters=numbers)
    return data, min((column.size("t") for column in columns["forcing"]), default=0)


def _with_parameters(
    batch: Batch, problem: Problem, data: ImportedDataset | StoredDataset, given: Mapping[str, float]
) -> Batch:
    """The batch with the parameters that are ``given`` in place of those of the data."""
    if not given:
        return batch
    held = (
        dict(zip(data.problem.parameters, batch.parameters.unbind(1), strict=True))
        if batch.parameters is not None
        else {}
    )
    columns = [torch.full((batch.size,), given[name]) if name in given else held[name] for name in problem.parameters]
    return batch._replace(parameters=torch.stack(columns, dim=1))


def _seen(problem: Problem) -> tuple[Field, ...]:
    """The fields that a file must show: the state or, without context frames, the static fields."""
    return problem.state if problem.num_context_frames else problem.static


def _columns(described: Found, problem: Problem, names: Mapping[str, str], layout: str | None) -> list[Column]:
    """The arrays that hold what is seen, each with its axes: as `convert` finds them, or those of one trajectory.

    Which of the two fits the grid decides; where neither does, because the frames are of another resolution, the first
    that makes sense.
    """
    num_axes, path = problem.grid.num_axes, described.path
    found = {name: array for name, array in described.arrays.items() if array.shape}  # a number is no field
    options: dict[str, Any] = {"num_axes": num_axes, "layout": layout, "steady": problem.num_context_frames == 0}
    options |= {"layouts": described.layouts, "lengths": described.axis_lengths()}
    possible, refused = [], []
    for single in (False, True) if layout is None and described.layouts is None else (False,):
        fitted = {name: np.asarray(array[...])[None] for name, array in found.items()} if single else found
        try:
            columns = assign_columns(path, fitted, _seen(problem), names, **options)
        except UserError as error:
            refused.append(error)
            continue
        shapes = {tuple(column.size(axis) for axis in AXIS_NAMES[:num_axes]) for column in columns}
        if shapes == {problem.grid.shape}:
            return columns
        if len(shapes) == 1 and all(size > 1 for shape in shapes for size in shape):
            possible.append(columns)
        else:
            held = describe_arrays(found)
            refused.append(UserError(f"the arrays of {path} are on no common grid of {num_axes} axes: it holds {held}"))
    if not possible:
        raise refused[0]
    return possible[0]
