"""Whether the parts of a run fit together, and the surrogate they are for."""

from __future__ import annotations

import math

from factformer import engine
from factformer._support.limits import require_memory
from factformer.data.store import Dataset
from factformer.errors import UserError
from factformer.grid import per_axis
from factformer.problem import Problem
from factformer.protocols import BaseProtocol
from factformer.surrogate import Surrogate, build_surrogate
from factformer.training.experiment.definition import Experiment


def new_surrogate(experiment: Experiment, dataset: Dataset, protocol: BaseProtocol) -> Surrogate:
    """A fresh surrogate for the data, marching as far per call as the protocol trains it to."""
    surrogate = build_surrogate(
        dataset.problem,
        experiment.model,
        marching_steps=protocol.steps_per_call,
        normalizer=dataset.normalizer(),
    )
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


def check_window(length: int, num_frames: int) -> None:
    """Raise where trajectories are too short to train on."""
    if length > num_frames:
        raise UserError(
            f"training windows of {length} frames do not fit into trajectories of {num_frames}; lower "
            "protocol.marching_steps, protocol.pushforward, protocol.unroll or the number of context frames"
        )


def check_batch(batch_size: int, num_processes: int, accumulate: int) -> None:
    """Raise where a batch cannot be shared out evenly."""
    if batch_size % (num_processes * accumulate):
        raise UserError(
            f"training.batch_size={batch_size} is the batch of all devices together and must be a multiple "
            f"of devices x training.accumulate = {num_processes} x {accumulate}"
        )


def check_memory(experiment: Experiment, problem: Problem, length: int, num_processes: int, *, on_cpu: bool) -> None:
    """Raise where a batch of windows of ``length`` frames cannot fit into main memory.

    On the CPU, the latent fields that the backward pass needs, one for each layer, count too; there are more of them.
    """
    config, model = experiment.training, experiment.model
    share = config.batch_size // num_processes
    numbers = share * length * problem.grid.num_points * problem.num_state_channels
    if on_cpu:
        points = problem.grid.num_points // math.prod(per_axis("model.patch", model.patch, problem.grid.num_axes))
        numbers += share // config.accumulate * points * model.dim * (model.depth + 1)
    what = f"a batch of {share} windows of {length} frames"
    require_memory(4 * numbers, what, "lower training.batch_size or raise training.accumulate")
