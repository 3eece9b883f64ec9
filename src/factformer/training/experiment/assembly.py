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
