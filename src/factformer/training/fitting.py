"""Training on one's own arrays with the same loop, in one call."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from numbers import Integral
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from torch import Tensor

from factformer import catalog
from factformer.config import assignments
from factformer.data.agreement import require_open_end
from factformer.data.numbers import as_tensor
from factformer.data.store import ArrayDataset, Dataset
from factformer.errors import UserError
from factformer.grid import Grid
from factformer.models._backbone import Backbone, ModelConfig, backbone_of
from factformer.problem import Boundary, Field, Problem
from factformer.surrogate import Surrogate, model_config
from factformer.training.experiment.definition import Experiment
from factformer.training.loop.machine import Machine
from factformer.training.loop.train import train
from factformer.training.runfolder.reporting import LiveReporter

Array = Tensor | NDArray[Any]
OURS = "factformer_plus"

DECIDED = {
    "problem": "name=",
    "data.num_context_frames": "num_context_frames=",
    "data.resolution": "another grid=",
    "data.path": "the arrays or a dataset",
}
"""Keys of an experiment that say what the data say, and what says it here."""


def fit(
    train_array: Array | Dataset,
    *,
    grid: Grid | None = None,
    frame_dt: float | None = None,
    fields: Sequence[str] | Mapping[str, int] | None = None,
    inputs: Array | None = None,
    input_fields: Sequence[str] | Mapping[str, int] | None = None,
    valid_array: Array | Dataset | None = None,
    valid_inputs: Array | None = None,
    num_context_frames: int | None = None,
    horizon: int | None = None,
    boundary: Boundary | None = None,
    name: str | None = None,
    model: str | ModelConfig | type[Backbone] = OURS,
    updates: int = 1000,
    out: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    machine: Machine = Machine(),  # noqa: B008 - immutable
    progress: bool = True,
    settings: Mapping[str, Any] | None = None,
) -> Surrogate:
    """Train a surrogate on frames ``(trajectory, frame, *grid, channel)`` in physical units.

    ``fields`` names the channels: ``["pressure"]`` for scalars, ``{"pressure": 1, "velocity": 2}`` for
    groups. ``settings`` are dotted keys of an experiment, such as ``{"model.dim": 64}``. A steady problem
    gives ``inputs`` ``(sample, 1, *grid, channel)`` with their ``input_fields``; its frames then hold one
    frame per sample. Frames are one unit of time apart (``frame_dt``) and the model sees four of them
    (``num_context_frames``) unless you say otherwise. Instead of arrays, a `Dataset` such as one of The Well
    brings all of that along.

    ``model`` is a name of the catalog, a `ModelConfig`, or a `Backbone` class of one's own. By default it is
    `factformer_plus`, trained frame by frame with Muon and a little noise on the context; the others march up to four
    frames per call and train with AdamW.

    ``out`` keeps the run folder, so that ``resume=True`` can go on with it; ``overwrite=True`` replaces the run that
    is there. A run that is stopped by a signal raises `InterruptedError`.
    """
    if isinstance(train_array, Dataset):
        given = {
            "grid": grid,
            "frame_dt": frame_dt,
            "fields": fields,
            "inputs": inputs,
            "input_fields": input_fields,
            "num_context_frames": num_context_frames,
            "horizon": horizon,
            "boundary": boundary,
            "name": name,
        }
        said = [f"{key}=" for key, value in given.items() if value is not None]
        if said:
            raise UserError(f"a dataset says this itself, leave it out: {', '.join(said)}; open_dataset can change it")
        dataset: Dataset = train_array
    else:
        frames = _as_tensor(train_array)
        in_time = {"num_context_frames": num_context_frames, "horizon": horizon, "frame_dt": frame_dt}
        if inputs is not None and any(value is not None for value in in_time.values()):
            raise UserError(f"inputs= make a steady problem, which has no {', '.join(f'{key}=' for key in in_time)}")
        num_context_frames = 4 if num_context_frames is None else num_context_frames
        if grid is None or fields is None:
            raise UserError("an array says nothing about itself: give its grid= and the names of its fields=")
        if (inputs is None) != (input_fields is None):
            raise UserError("a steady problem needs inputs and input_fields; leave both out for frames in time")
        if not isinstance(grid, Grid):
            raise UserError(f"grid= takes a Grid, such as Grid((64, 64), extent=1.0, periodic=True); got {grid!r}")
        for key, count in (("num_context_frames", num_context_frames), ("horizon", horizon)):
            if count is not None and not isinstance(count, Integral):
                raise UserError(f"{key}= takes a whole number, got {count!r}")
        require_open_end(grid, boundary)
        steady, room = inputs is not None, frames.shape[1] - num_context_frames
        if horizon is not None and 0 < room < horizon:
            raise UserError(f"horizon={horizon}, but of {frames.shape[1]} frames {room} are left after the context")
        problem = Problem(
            name=name or "custom",
            grid=grid,
            outputs=_fields(fields),
            inputs=() if input_fields is None else _fields(input_fields),
            frame_dt=1.0 if frame_dt is None else frame_dt,
            num_context_frames=1 if steady else num_context_frames,
            horizon=1 if steady else max(1, min(16, room)) if horizon is None else horizon,
            boundary=boundary or ("periodic" if all(grid.periodic) else "reflect"),
            steady=steady,
        )
        dataset = ArrayDataset(frames, problem, "train", inputs=inputs)
    if valid_inputs is not None and (valid_array is None or not dataset.problem.steady):
        raise UserError("valid_inputs= belongs to the valid_array= of a steady problem")
    if resume and out is None:
        raise UserError("resume=True needs out=, the folder of the run to go on with")
    if not isinstance(machine, Machine):
        raise UserError(f'machine= takes a Machine, such as Machine("cuda"); got {machine!r}')
    if not isinstance(settings or {}, Mapping):
        raise UserError(f'settings= takes a mapping such as {{"model.dim": 64}}, got {settings!r}')
    held_out = _held_out(valid_array, valid_inputs, dataset)
    chosen = model_config(model)

    with (
        catalog.using(models=[backbone_of(chosen)]),
        tempfile.TemporaryDirectory(prefix="factformer-") as scratch,
    ):
        experiment = _experiment(dataset, chosen, updates, settings or {})
        outcome = train(
            experiment,
            dataset,
            held_out,
            folder=out or Path(scratch) / "run",
            machine=machine,
            resume=resume,
            overwrite=overwrite,
            command="factformer.fit",
            reporter=LiveReporter(silent=not progress),
        )
    if outcome.surrogate is None:
        where = f"; go on with resume=True, out={str(out)!r}" if out else "; give out= to be able to go on"
        raise InterruptedError(f"training stopped after update {outcome.update}: {outcome.reason}{where}")
    return outcome.surrogate


def _held_out(values: Array | Dataset | None, inputs: Array | None, dataset: Dataset) -> Dataset | None:
    if values is None:
        return None
    if isinstance(values, Dataset):
        values.require(dataset.problem)
        return values
    return ArrayDataset(values, dataset.problem, "valid", inputs=inputs, normalizer=dataset.normalizer())


def _experiment(dataset: Dataset, config: ModelConfig, updates: int, settings: Mapping[str, Any]) -> Experiment:
    """Defaults that suit any data: frame by frame and with Muon for the model of ours, which learns most so
    (docs/research-log.md); others march as far as the trajectories allow, up to four frames per call."""
    for key in settings:
        if key in DECIDED:
            raise UserError(f"{key} is decided by the data: give {DECIDED[key]} to fit instead of the setting")
    problem, model = dataset.problem, config.name
    room = dataset.num_frames - problem.num_context_frames
    steps = 1 if model == OURS else min(4, max(1, room // 2))
    ours = {
        "optimizer": "muon",
        "learning_rate": 6e-3 if updates < 3000 else 3e-3,
        "batch_size": 4,
        "noise": 0.0 if problem.steady else 0.01,
        "ema_decay": 0.99 if updates < 3000 else 0.999,
        "on_divergence": "halve",
    }
    protocol: dict[str, Any] = {"name": "steady"}
    if not problem.steady:
        pushed = max(0, min(3 if model == OURS else 1, room // steps - 1))
        protocol = {"name": "latent_marching", "marching_steps": steps, "pushforward": pushed}
    every = max(1, updates // 10)
    experiment = Experiment.parse(
        {
            "problem": problem.name,
            "model": {**({} if problem.steady else {"residual": True}), **config.model_dump(exclude_unset=True)},
            "protocol": protocol,
            "training": {
                "updates": updates,
                "checkpoint_every": every,
                "validate_every": every,
                "log_every": max(1, updates // 100),
                **(ours if model == OURS else {"learning_rate": 1e-3}),
            },
        }
    )
    return experiment.override(assignments(settings))


def _fields(names: Sequence[str] | Mapping[str, int]) -> tuple[Field, ...]:
    if isinstance(names, Mapping):
        return tuple(Field(name, channels) for name, channels in names.items())
    if isinstance(names, str):
        names = [names]
    return tuple(Field(name) for name in names)


def _as_tensor(array: Array) -> Tensor:
    tensor = as_tensor(array, "train_array")
    if tensor.ndim < 4:
        raise UserError(f"train_array must have shape (trajectory, frame, *grid, channel), got {tuple(tensor.shape)}")
    return tensor
