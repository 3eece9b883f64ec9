"""Training on one's own arrays with the same loop, in one call."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Mapping, Sequence
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from factformer import catalog
from factformer._support.text import cut
from factformer.arrays import as_tensor, describe_part, fits, joined, joined_parameters, shape_advice
from factformer.bundle import load
from factformer.config import assignments, unknown_name
from factformer.data.agreement import require_open_end
from factformer.data.dataset import ArrayDataset, Dataset
from factformer.data.formats.foreign import xarray_dataset
from factformer.data.formats.mapped import is_mapped, mapped_dataset
from factformer.data.formats.xarray_files import is_xarray
from factformer.data.normalization import Normalizer
from factformer.data.numbers import AXES
from factformer.errors import UserError
from factformer.grid import Grid
from factformer.models._backbone import Backbone, ModelConfig, backbone_of
from factformer.problem import Boundary, Field, Problem
from factformer.surrogate import Surrogate, model_config
from factformer.training.experiment.defaults import OURS, UPDATES, default_experiment, prolonged
from factformer.training.loop.machine import Machine
from factformer.training.loop.own import Callback, LossTerm, Metric, Own
from factformer.training.loop.train import train
from factformer.training.runfolder.folder import RunFolder
from factformer.training.runfolder.trackers import Logger, open_reporter

log = logging.getLogger(__name__)

Array = Tensor | NDArray[Any]
DECIDED = {
    "problem": "name=",
    "data.num_context_frames": "num_context_frames=",
    "data.resolution": "another grid=",
    "data.path": "the arrays or a dataset",
}
"""Keys of an experiment that say what the data say, and what says it here."""
VALID_KEYS = ("frames", "static", "forcing", "parameters", "mask")
EXAMPLES = {
    "static": "{'depth': array}",
    "forcing": "{'inflow': array}",
    "parameters": "{'reynolds': array}",
}


def fit(
    train_array: Array | Dataset,
    *,
    grid: Grid | None = None,
    frame_dt: float | None = None,
    fields: Sequence[str] | Mapping[str, int] | None = None,
    static: Mapping[str, Array] | None = None,
    forcing: Mapping[str, Array] | None = None,
    parameters: Mapping[str, Array] | None = None,
    mask: Array | None = None,
    valid: Array | Dataset | Mapping[str, Any] | None = None,
    valid_array: Array | Dataset | Mapping[str, Any] | None = None,
    num_context_frames: int | None = None,
    horizon: int | None = None,
    boundary: Boundary | None = None,
    name: str | None = None,
    model: str | ModelConfig | type[Backbone] | None = None,
    init: str | Path | None = None,
    updates: int = UPDATES,
    out: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    machine: Machine = Machine(),  # noqa: B008 - immutable
    progress: bool = True,
    loggers: Sequence[Logger] = (),
    loss_terms: Mapping[str, LossTerm] | None = None,
    metrics: Mapping[str, Metric] | None = None,
    callbacks: Sequence[Callback] = (),
    settings: Mapping[str, Any] | None = None,
) -> Surrogate:
    """Train a surrogate on frames ``(trajectory, frame, *grid, channel)`` in physical units.

    ``fields`` names the channels: ``["pressure"]`` for scalars, ``{"pressure": 1, "velocity": 2}`` for
    groups. ``settings`` are dotted keys of an experiment, such as ``{"model.dim": 64}``. Frames are one unit of time
    apart (``frame_dt``) and the model sees four of them (``num_context_frames``) unless you say otherwise. Where the
    data allow it, `factformer_plus` gets patches of two points or a stride of two frames, and a line says so: with a
    stride ``surrogate.problem.frame_dt`` is twice that of the frames. ``{"protocol.stride": 1}`` keeps every frame.

    What else is known of a trajectory goes with it by name: ``static={"depth": (trajectory, *grid)}``,
    ``forcing={"inflow": (trajectory, frame, *grid)}``, both with an axis of channels at the end where there are
    several, ``parameters={"reynolds": (trajectory,)}``, and a ``mask`` ``(trajectory, *grid)`` or ``(*grid)`` that is
    true inside the domain. A steady problem has ``num_context_frames=0``: its static fields decide its one frame.

    ``valid`` holds trajectories to validate on; where more than frames is known, it is a mapping such as
    ``{"frames": …, "static": {"depth": …}}``. The first edition called it ``valid_array``. Instead of arrays, a
    `Dataset` such as one of The Well brings all of that along, and so does a DataArray or Dataset of xarray with names
    and coordinates. Arrays that are mapped into memory stay on the disk.

    ``model`` is a name of the catalog, a `ModelConfig`, or a `Backbone` class of one's own. By default it is
    `factformer_plus`, trained frame by frame with Muon and a little noise on the context; the others march up to four
    frames per call and train with AdamW.

    ``init`` is a bundle, a run folder or a name of the zoo to fine-tune: its model is taken unless ``model`` names one,
    and its weights as far as they fit. What does not fit begins anew and is named.

    ``out`` keeps the run folder, so that ``resume=True`` can continue it, for more ``updates`` too;
    ``overwrite=True`` replaces the run that is there. A run that is stopped by a signal raises `InterruptedError`.

    ``loggers`` are ``"tensorboard"``, ``"wandb"`` (both need ``out``) or functions ``f(values, update)``.
    ``loss_terms={"name": f}`` adds ``f(prediction, target)``, a number to make small, to the loss. ``metrics`` are
    functions ``f(prediction, target, problem)`` with one number per sample, computed where the run is validated.
    ``callbacks`` are called as ``f(update, surrogate)`` after each update; one that returns ``True`` ends the training.
    """
    if isinstance(train_array, Dataset):
        given = {
            "grid": grid,
            "frame_dt": frame_dt,
            "fields": fields,
            "static": static,
            "forcing": forcing,
            "parameters": parameters,
            "mask": mask,
            "num_context_frames": num_context_frames,
            "horizon": horizon,
            "boundary": boundary,
            "name": name,
        }
        twice = [f"{key}=" for key, value in given.items() if value is not None]
        if twice:
            raise UserError(f"a dataset says this itself, leave it out: {', '.join(twice)}; open_dataset can change it")
        dataset: Dataset = train_array
    elif is_xarray(train_array):
        beside = {"static": static, "forcing": forcing, "parameters": parameters, "mask": mask}
        for part, values in beside.items():
            if values is not None:
                raise UserError(f"xarray brings its own variables along: put {part} into a Dataset, or give arrays")
        said: dict[str, Any] = {
            "grid": grid,
            "frame_dt": frame_dt,
            "fields": None if fields is None else [item.name for item in _fields(fields)],
            "num_context_frames": num_context_frames,
            "horizon": horizon,
            "boundary": boundary,
            "name": name,
        }
        dataset = xarray_dataset(train_array, {key: value for key, value in said.items() if value is not None})
    else:
        frames = _frames(train_array)
        known = {"static": static, "forcing": forcing, "parameters": parameters, "mask": mask}
        _require_named(known)
        num_context_frames = 4 if num_context_frames is None else num_context_frames
        if not num_context_frames and (horizon is not None or frame_dt is not None):
            raise UserError("num_context_frames=0 is a steady problem, which has no horizon= and no frame_dt=")
        if grid is None or fields is None:
            raise UserError("an array says nothing about itself: give its grid= and the names of its fields=")
        if not isinstance(grid, Grid):
            raise UserError(f"grid= takes a Grid, such as Grid((64, 64), extent=1.0, periodic=True); got {cut(grid)}")
        if np.ndim(0.0 if frame_dt is None else frame_dt):
            raise UserError(
                "frame_dt= takes one number, the time between frames, not an array of times; give t[1] - t[0] where "
                "they are even, and interpolate the frames to even times where they are not"
            )
        for key, count in (("num_context_frames", num_context_frames), ("horizon", horizon)):
            if count is not None and not isinstance(count, Integral):
                raise UserError(f"{key}= takes a whole number, got {count!r}")
        require_open_end(grid, boundary)
        room = frames.shape[1] - num_context_frames
        if horizon is not None and 0 < room < horizon:
            raise UserError(f"horizon={horizon}, but of {frames.shape[1]} frames {room} are left after the context")
        problem = Problem(
            name=name or "custom",
            grid=grid,
            state=_fields(fields),
            static=_given_fields(static, "static", frames, grid),
            forcing=_given_fields(forcing, "forcing", frames, grid),
            parameters=tuple(parameters or ()),
            frame_dt=1.0 if frame_dt is None else frame_dt,
            num_context_frames=num_context_frames,
            horizon=max(1, min(16, room)) if horizon is None else horizon,
            boundary=boundary or ("periodic" if all(grid.periodic) else "reflect"),
            masked=mask is not None,
        )
        dataset = _dataset(frames, known, problem, "train")
    if resume and out is None:
        raise UserError("resume=True needs out=, the folder of the run to resume")
    if not isinstance(machine, Machine):
        raise UserError(f'machine= takes a Machine, such as Machine("cuda"); got {machine!r}')
    if not isinstance(settings or {}, Mapping):
        raise UserError(f'settings= takes a mapping such as {{"model.dim": 64}}, got {settings!r}')
    if valid is not None and valid_array is not None:
        raise UserError("valid= and valid_array= are the same: give one of them")
    held_out = _held_out(valid if valid is not None else valid_array, dataset, frame_dt)

    for key in settings or {}:
        if key in DECIDED:
            raise UserError(f"{key} is decided by the data: give {DECIDED[key]} to fit instead of the setting")
    if "training.updates" in (settings or {}) and updates != UPDATES:
        raise UserError("updates= and the setting training.updates say the same thing: give one of them")
    for key, functions in (("loss_terms", loss_terms), ("metrics", metrics)):
        if functions is not None and not isinstance(functions, Mapping):
            raise UserError(f"{key}= takes functions by name, such as {{'mine': f}}; got {cut(functions)}")
    if not isinstance(callbacks, Sequence):
        raise UserError(f"callbacks= takes several functions, such as [f]; got {cut(callbacks)}")
    own = Own(loss_terms or {}, metrics or {}, tuple(callbacks))
    own.check(dataset.problem, validated=held_out is not None)
    if init is not None and not isinstance(init, (str, Path)):
        raise UserError(
            f"init is the path of a bundle or run, or a name of the zoo, got {type(init).__name__}: save it"
        )
    if model is None:
        model = OURS if init is None else load(init).config
    changes = assignments({**({} if init is None else {"training.init": str(init)}), **(settings or {})})

    with (
        catalog.using(models=[backbone_of(model_config(model))]),
        tempfile.TemporaryDirectory(prefix="factformer-") as scratch,
    ):
        folder = Path(out or Path(scratch) / "run")
        reporter = open_reporter(folder, quiet=not progress, loggers=loggers)
        if resume and RunFolder(folder).config.is_file():
            experiment = prolonged(RunFolder(folder).read_config(), dataset, model, updates, changes)
        else:
            say = reporter.message if progress else log.warning  # it decides what a frame is
            experiment = default_experiment(dataset, model, updates, changes, say)
        outcome = train(
            experiment,
            dataset,
            held_out,
            folder=folder,
            machine=machine,
            resume=resume,
            overwrite=overwrite,
            command="factformer.fit",
            reporter=reporter,
            own=own,
        )
    if outcome.surrogate is None:
        where = f"; resume with resume=True, out={str(out)!r}" if out else "; give out= to be able to resume"
        raise InterruptedError(f"training stopped after update {outcome.update}: {outcome.reason}{where}")
    return outcome.surrogate


def _held_out(
    values: Array | Dataset | Mapping[str, Any] | None, dataset: Dataset, frame_dt: float | None
) -> Dataset | None:
    if values is None:
        return None
    if isinstance(values, Dataset):
        values.require(dataset.problem)
        return values
    if is_xarray(values):
        problem = dataset.problem
        said = {key: getattr(problem, key) for key in ("name", "grid", "num_context_frames", "horizon", "boundary")}
        said |= {"fields": [item.name for item in problem.state]} | ({} if frame_dt is None else {"frame_dt": frame_dt})
        held_out = xarray_dataset(values, said, "valid", dataset.normalizer())
        held_out.require(problem)
        return held_out
    given = dict(values) if isinstance(values, Mapping) else {"frames": values}
    for key in given:
        if key not in VALID_KEYS:
            raise unknown_name("part of valid", key, VALID_KEYS)
    if "frames" not in given:
        raise UserError("valid= is a mapping without frames: give them as {'frames': array}")
    missing = [part for part in dataset.problem.parts if part not in given]
    if missing:
        example = ", ".join(f"'{part}': …" for part in ("frames", *missing))
        raise UserError(f"the frames of valid= need {describe_part(dataset.problem, missing[0])}: valid={{{example}}}")
    return _dataset(given.pop("frames"), given, dataset.problem, "valid", dataset.normalizer())


def _require_named(known: Mapping[str, Any]) -> None:
    for part, values in known.items():
        if values is not None and part != "mask" and not isinstance(values, Mapping):
            raise UserError(f"{part}= takes arrays by name, such as {EXAMPLES[part]}; got {type(values).__name__}")


def _dataset(
    frames: Array, known: Mapping[str, Any], problem: Problem, split: str, normalizer: Normalizer | None = None
) -> Dataset:
    """A dataset from frames and what is known beside them, by name; arrays that lie in files stay there."""
    _require_named(known)
    if any(map(is_mapped, [frames, *(known.get("forcing") or {}).values(), *(known.get("static") or {}).values()])):
        return mapped_dataset(frames, known, problem, split, normalizer)
    axes, count = problem.grid.num_axes, len(frames)
    static, forcing, parameters = (known.get(part) for part in ("static", "forcing", "parameters"))
    return ArrayDataset(
        frames,
        problem,
        split,
        static=joined(static, problem.static, axes + 1, "static") if static else None,
        forcing=joined(forcing, problem.forcing, axes + 2, "forcing") if forcing else None,
        parameters=joined_parameters(parameters, problem.parameters, count).float() if parameters else None,
        mask=known.get("mask"),
        normalizer=normalizer,
    )


def _fields(names: Sequence[str] | Mapping[str, int]) -> tuple[Field, ...]:
    if isinstance(names, Mapping):
        return tuple(Field(name, channels) for name, channels in names.items())
    if isinstance(names, str):
        names = [names]
    return tuple(Field(name) for name in names)


def _given_fields(arrays: Mapping[str, Array] | None, part: str, frames: Array, grid: Grid) -> tuple[Field, ...]:
    """Fields with as many channels as their arrays have behind the axes of the grid."""
    fields = []
    for name, array in (arrays or {}).items():
        what = f"{part} {name!r}"
        shape = tuple(array.shape if is_mapped(array) else as_tensor(array, what).shape)
        one = (*frames.shape[: len(AXES[part])], *grid.shape)
        more = (*one, "channel")
        if not fits(shape, one) and not fits(shape, more):
            advice = shape_advice(shape, one, channels=False) or shape_advice(shape, more)
            raise UserError(
                f"{what} must have shape {one}, for ({', '.join(AXES[part])}, *grid), or an axis of channels after "
                f"that; got {shape}{advice}"
            )
        fields.append(Field(name, 1 if len(shape) == len(one) else shape[-1]))
    return tuple(fields)


def _frames(array: Array) -> Array:
    """The frames as a tensor; what lies in a file is left there."""
    frames = array if is_mapped(array) else as_tensor(array, "train_array")
    if frames.ndim < 4:
        raise UserError(f"train_array must have shape (trajectory, frame, *grid, channel), got {tuple(frames.shape)}")
    return frames
