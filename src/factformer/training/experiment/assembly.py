"""Whether the parts of a run fit together, and the surrogate they are for."""

from __future__ import annotations

from typing import Any

import numpy as np

from factformer import engine
from factformer.data.dataset import Dataset
from factformer.data.normalization import Normalizer
from factformer.data.statistics import Moments, shared_deviation
from factformer.data.windows import span
from factformer.errors import UserError
from factformer.parallel.attaching import check_cuttable
from factformer.problem import Problem
from factformer.protocols import BaseProtocol
from factformer.surrogate import Surrogate, build_surrogate
from factformer.training.experiment.definition import Experiment

MEASURED = 32
"""Trajectories whose increments over several frames are looked at."""


def new_surrogate(experiment: Experiment, dataset: Dataset, protocol: BaseProtocol) -> Surrogate:
    """A fresh surrogate for the data, marching as far per call as the protocol trains it to."""
    surrogate = build_surrogate(
        protocol.problem,
        experiment.model,
        marching_steps=protocol.steps_per_call,
        normalizer=strided_normalizer(dataset, experiment.protocol.strides[0]),
    )
    surrogate.latent_grid(protocol.problem.grid.every(experiment.protocol.coarse))  # raises where it has no patches
    engine.attach(surrogate)
    return surrogate


def take_weights(surrogate: Surrogate, source: Surrogate, where: str) -> list[str]:
    """Copy the weights of ``source`` that fit by name and shape; says how many, and one line for each that does not.

    Statistics stay those of the data that are trained on.
    """
    if source.config.name != surrogate.config.name:
        raise UserError(
            f"{where} holds the model {source.config.name!r} and this run trains {surrogate.config.name!r}; "
            f"set model.name={source.config.name} or begin from another bundle"
        )
    ours, theirs = (
        {name: tensor for name, tensor in part.state_dict().items() if not name.startswith("normalizer.")}
        for part in (surrogate, source)
    )
    taken, lines = {}, []
    for name, tensor in ours.items():
        other = theirs.get(name)
        if other is None:
            lines.append(f"{name} is not in {where} and begins anew")
        elif other.shape != tensor.shape:
            there, here = tuple(other.shape), tuple(tensor.shape)
            lines.append(f"{name} has shape {there} in {where} and {here} here, and begins anew")
        else:
            taken[name] = other
    lines += [f"{name} of {where} has no place here" for name in theirs if name not in ours]
    if not taken:
        raise UserError(f"none of the weights of {where} fit this model: {lines[0]}")
    surrogate.load_state_dict({**surrogate.state_dict(), **taken})
    return [f"began with {len(taken)} of {len(ours)} tensors of {where}", *lines]


def strided_normalizer(dataset: Dataset, stride: int) -> Normalizer:
    """Statistics of the training split with the increments over ``stride`` frames, from all phases.

    Those are of some trajectories spread over the split: stored statistics know the increments of neighbours alone.
    """
    known = dataset.normalizer()
    if stride == 1:
        return known
    problem = dataset.problem
    total = Moments.empty(problem.num_state_channels)
    count = min(dataset.num_trajectories, MEASURED)
    for index in range(count):
        frames = dataset.read_exact([index * dataset.num_trajectories // count])[0]
        for before, after in zip(frames, frames[stride:], strict=False):
            total = total.merge(Moments.of(after.astype(np.float64) - before))
    std = shared_deviation(total.std, 0 * total.std, problem.state, known.state_std.tolist())
    return Normalizer(**{**known.to_dict(), "increment_std": std})


def run_identity(experiment: Experiment, dataset: Dataset, problem: Problem) -> dict[str, Any]:
    """What a checkpoint must share with the run that reads it."""
    return {
        "model": experiment.model.fingerprint(),
        "dataset": dataset.fingerprint,
        "seed": experiment.training.seed,
        "problem": problem.identity(),
        "experiment": experiment.model_dump(mode="json"),
    }


LENGTHS = {"marching_steps": 1, "pushforward": 0, "unroll": 1, "calls": 1}
"""Settings of protocols that lengthen a training window, and the value at which they do not."""


def check_window(protocol: BaseProtocol, num_frames: int, stride: int = 1) -> None:
    """Raise where trajectories are too short to train on, with the settings that would help."""
    length = protocol.window_length
    if span(length, stride) <= num_frames:
        return
    apart, lower = (f" that lie {stride} apart", ["protocol.stride"]) if stride > 1 else ("", [])
    lower += [f"protocol.{key}" for key, least in LENGTHS.items() if getattr(protocol.config, key, least) > least]
    if protocol.problem.num_context_frames > 1:
        lower.append("the number of context frames")
    help_by = f"; lower {' or '.join(lower)}" if lower else ""
    raise UserError(f"training windows of {length} frames{apart} do not fit into trajectories of {num_frames}{help_by}")


def check_batch(batch_size: int, num_processes: int, accumulate: int) -> None:
    """Raise where a batch cannot be shared out evenly."""
    if batch_size % (num_processes * accumulate):
        raise UserError(
            f"training.batch_size={batch_size} is the batch of all devices together and must be a multiple "
            f"of devices x training.accumulate = {num_processes} x {accumulate}"
        )


def check_cut(experiment: Experiment, *, sees_frames: bool = False) -> None:
    """Raise where a model or a setting cannot be had with a grid that is cut over processes.

    ``sees_frames``: there are losses or metrics of one's own, which take whole frames.
    """
    check_cuttable(experiment.model)
    if experiment.training.gradient_loss:
        raise UserError("training.gradient_loss compares neighbours of all points and cannot be cut; set it to 0")
    if getattr(experiment.protocol, "coarse", 1) > 1:
        raise UserError("protocol.coarse leaves out points and cannot be cut over processes; set it to 1")
    if sees_frames:
        raise UserError("loss_terms= and metrics= see whole frames, and a domain that is cut has none: leave one out")
