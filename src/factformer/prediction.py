"""Predictions from files: read context frames, roll a bundle out, write the predicted frames."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from factformer._support.files import clean_leftovers, require_free, write_together
from factformer._support.limits import require_memory
from factformer.batch import Batch, describe_part
from factformer.bundle import load
from factformer.config import unknown_name
from factformer.data.convert import is_well
from factformer.data.formats.arrays import LazyArray, describe_arrays, open_arrays
from factformer.data.formats.importers import Column, ImportedDataset, assign_columns
from factformer.data.formats.pdebench import describe_times
from factformer.data.generate.progress import ProgressBar
from factformer.data.layout import AXIS_NAMES
from factformer.data.store import Dataset, open_dataset
from factformer.data.windows import span
from factformer.errors import UserError
from factformer.evaluation.accuracy import check_setting, other_parameters
from factformer.evaluation.memory import memory_explained
from factformer.evaluation.run import check_writable
from factformer.evaluation.timing import autocast, resolve_device
from factformer.problem import Field, Problem
from factformer.report.animation import write_animation
from factformer.report.planes import components
from factformer.rollout import rollout

STORED = (".hdf5", ".h5")
BATCH = 16
"""Samples that are rolled out at once."""
COPIES = 2
"""Of the predicted frames in memory: as they come, and put together."""


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


@dataclass(frozen=True)
class Prediction:
    """What `predict_file` wrote: where, the shape ``(batch, frame, *grid, channel)`` of what, and after which frames.

    A steady problem has nothing that its answer comes ``after``; ``other_grid`` and ``other_parameters`` are empty
    where they are those of the training data, or not known.
    """

    out: Path
    shape: tuple[int, ...]
    fields: tuple[str, ...]
    after: str = ""
    other_grid: str = ""
    other_parameters: str = ""


def predict_file(
    bundle: str | Path,
    source: Path,
    num_frames: int,
    out: Path,
    *,
    start: int | None = None,
    fields: Mapping[str, str] | None = None,
    layout: str | None = None,
    animation: Path | None = None,
    device: str | None = None,
    precision: str = "32-true",
    overwrite: bool = False,
    progress: bool = False,
) -> Prediction:
    """Roll out from the context frames in ``source`` (`read_context`) and write the predicted frames to ``out``."""
    if out.suffix not in (".npy", ".npz"):
        raise UserError(f"predictions are written as .npy or .npz, got {out.name!r}")
    if animation is not None and animation.suffix.lower() != ".gif":
        raise UserError(f"animations are written as GIF; give {animation.name!r} the ending .gif")
    files = [out] if animation is None else [out, animation]
    require_free(files, overwrite=overwrite)
    for path in files:
        check_writable(path.parent)
        clean_leftovers(path.parent)
    target = resolve_device(device)
    region = autocast(target, precision)
    surrogate = load(bundle).to(target)
    problem = surrogate.problem
    context = read_context(source, problem, num_frames, start=start, fields=fields, layout=layout)
    try:
        grid = surrogate.check(context.batch, 1, None)
    except UserError as error:
        raise UserError(f"{source}: {error}") from None
    num_values = context.batch.size * num_frames * math.prod(grid.shape) * problem.num_state_channels
    advice = "predict fewer --frames, or give fewer samples"
    require_memory(4 * num_values * COPIES, f"a roll-out of {num_frames} frames", advice)
    batches = list(context.batch.split(BATCH))
    predicted = []
    with (
        memory_explained(advice),
        torch.no_grad(),
        region,
        ProgressBar("rolling out", num_frames * len(batches), enabled=progress) as bar,
    ):
        for batch in batches:
            rolled = []
            for frame in rollout(surrogate, batch.to(target), num_frames):
                rolled.append(frame.cpu())
                bar.advance()
            predicted.append(torch.stack(rolled, dim=1))
        frames = torch.cat(predicted).numpy()
    if not np.isfinite(frames).all():
        raise UserError(f"the roll-out of {source} left the finite numbers; predict fewer than {num_frames} frames")

    def save(path: Path) -> None:
        if path.suffix == ".npy":
            np.save(path, frames)
        else:
            np.savez_compressed(path, frames=frames, frame_dt=problem.frame_dt)

    def animate(path: Path) -> None:
        frame_dt = problem.frame_dt if problem.num_context_frames else None
        write_animation(
            path, frames[0], component=components(problem.state)[0], grid=grid, frame_dt=frame_dt, overwrite=True
        )

    write_together(dict(zip(files, (save, animate), strict=False)))
    names = tuple(f.name for f in problem.state)
    home = " x ".join(map(str, problem.grid.shape))
    return Prediction(
        out,
        frames.shape,
        names,
        after=str(context),
        other_grid="" if grid.shape == problem.grid.shape else f"not the {home} points that it was trained on",
        other_parameters=other_parameters(surrogate, context.made_with),
    )


def read_context(
    path: Path,
    problem: Problem,
    num_frames: int = 1,
    *,
    start: int | None = None,
    fields: Mapping[str, str] | None = None,
    layout: str | None = None,
) -> Context:
    """What predicts ``num_frames`` from a file: a dataset of ours or of The Well, or arrays as `convert` reads them.

    ``fields`` says which arrays are which field and ``layout`` what their axes are, as for `convert`; a single
    trajectory needs no axis of its own. The context begins at frame ``start``, by default so that it ends with the last
    frame of arrays and begins with the first of a dataset. The samples of a steady problem need no axis of frames.
    """
    if path.suffix in STORED and is_well(path):
        if fields or layout:
            raise UserError(f"{path} is in The Well's layout: it takes no layout and no fields")
        found = open_dataset(path).problem
        if _seen(found) != _seen(problem):
            wanted, there = (", ".join(f.name for f in _seen(item)) for item in (problem, found))
            raise UserError(f"{path} is of {found.name!r} with {there}; a surrogate of {problem.name!r} needs {wanted}")
        if found.parts != problem.parts or found.parameters != problem.parameters:
            wanted, there = (", ".join((*item.parts, *item.parameters)) or "nothing" for item in (problem, found))
            raise UserError(f"{path} holds {there} beside its state; a surrogate of {problem.name!r} needs {wanted}")
        try:
            stride = check_setting(problem, found)
        except UserError as error:
            raise UserError(f"{path}: {error}") from None
        data: Dataset = open_dataset(path, num_context_frames=problem.num_context_frames, horizon=problem.horizon)
        first = 0
    else:
        for name in fields or {}:
            if name not in (known := [f.name for f in _seen(problem)]):
                raise unknown_name("field", name, known)
        if more := problem.parts[0 if problem.num_context_frames else 1 :]:
            needed = " and ".join(describe_part(problem, part) for part in more)
            raise UserError(
                f"{problem.name!r} needs {needed}: give a file in our layout, which can hold them, not {path}"
            )
        said = [part.strip() for text in (fields or {}).values() for part in text.split(",")]
        described = describe_times(path, open_arrays(path), taken=[*(f.name for f in _seen(problem)), *said])
        columns = _columns(path, described.arrays, problem, fields or {}, layout)
        data = ImportedDataset(path, problem, columns, columns if problem.static else [], "test")
        stride = 1 if problem.steady else described.frame_stride(data.num_frames, problem.frame_dt)
        first = max(data.num_frames - span(problem.num_context_frames, stride), 0)
    if not problem.num_context_frames:
        if start is not None:
            raise UserError(f"{problem.name!r} is steady: its samples have no frames to start from, leave out --start")
        if data.num_frames != 1:
            raise UserError(f"{path} holds {data.num_frames} frames a sample: {problem.name!r} is steady and takes one")
        return Context(data.known(slice(None), slice(0, 1)), 0, 1, data.provenance)
    first, count = first if start is None else start, problem.num_context_frames
    if not 0 <= first <= data.num_frames - span(count, stride):
        asked = "" if stride == 1 else f" that lie {stride} apart"
        asked += "" if start is None else f" from frame {start} on, counted from 0"
        raise UserError(f"{path} holds {data.num_frames} frames, too few for {count} context frames{asked}")
    predicted = num_frames if problem.forcing else 0
    if first + span(count + predicted, stride) > data.num_frames:
        raise UserError(
            f"{path} holds forcing for {data.num_frames} frames, too few for {count} context frames and {num_frames} "
            "predicted ones; ask for fewer"
        )
    batch = data.batch(slice(None), first, predicted, num_context_frames=count, stride=stride)
    return Context(batch, first, data.num_frames, data.provenance, stride)


def _seen(problem: Problem) -> tuple[Field, ...]:
    """The fields that a file must show: the state or, without context frames, the static fields."""
    return problem.state if problem.num_context_frames else problem.static


def _columns(
    path: Path, arrays: Mapping[str, LazyArray], problem: Problem, names: Mapping[str, str], layout: str | None
) -> list[Column]:
    """The arrays that hold what is seen, each with its axes: as `convert` finds them, or those of one trajectory.

    Which of the two fits the grid decides; where neither does, because the frames are of another resolution, the first
    that makes sense.
    """
    num_axes = problem.grid.num_axes
    found = {name: array for name, array in arrays.items() if array.shape}  # a number is no field
    options: dict[str, Any] = {"num_axes": num_axes, "layout": layout, "steady": problem.num_context_frames == 0}
    possible, refused = [], []
    for single in (False, True) if layout is None else (False,):
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
