"""Whether the parts of a run fit together, and the surrogate they are for."""

from __future__ import annotations

from factformer import engine
from factformer.data.store import Dataset
from factformer.errors import UserError
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
