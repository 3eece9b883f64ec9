"""A model on a scenario of APEBench: trajectories, training and error, in the protocol of that benchmark.

50 trajectories of 51 states to learn from, one state in and one out, 10,000 updates of 20 windows. Roll-outs begin at
the first states of 30 unseen trajectories. The error of a predicted state is the root mean square of its difference
over that of the truth, summed over channels and averaged over trajectories. The error of a model is the geometric mean
over 100 states. Models train with the defaults of `fit`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from factformer._support.files import whole_file
from factformer.data.store import ArrayDataset
from factformer.models import find_model
from factformer.problem import Field, Problem
from factformer.rollout import rollout
from factformer.studies.apebench.scenarios import Scenario
from factformer.studies.cells import Scale
from factformer.studies.scales import DEFAULT_MINUTES, TINY_MODEL, TINY_TRAINING
from factformer.surrogate import Surrogate
from factformer.training.experiment.defaults import default_experiment
from factformer.training.experiment.definition import Experiment

SPLITS = {"train": 1, "test": 2}
"""Seeds of the starts."""
BATCH = 10
"""Trajectories that are rolled out at once."""


@dataclass(frozen=True)
class Size:
    """How many trajectories there are, how many states each has, and how long a model trains."""

    trajectories: dict[str, int]
    states: dict[str, int]
    updates: int


WHOLE = Size({"train": 50, "test": 30}, {"train": 51, "test": 101}, 10_000)
SIZES: dict[Scale, Size] = {
    "tiny": Size({"train": 3, "test": 2}, {"train": 12, "test": 7}, TINY_TRAINING["updates"]),
    "reduced": WHOLE,
    "paper": WHOLE,
}


def trajectories(scenario: Scenario, size: Size, split: str, folder: Path, device: torch.device) -> Tensor:
    """``(trajectory, state, *grid, channel)``, solved once on ``device`` and kept in ``folder``."""
    count, states = size.trajectories[split], size.states[split]
    path = folder / f"{scenario.name}-{split}-{count}-{states}.npy"
    if not path.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        values = scenario.data(count, states, SPLITS[split], device).cpu().numpy()
        with whole_file(path) as partial, partial.open("wb") as file:
            np.save(file, values, allow_pickle=False)
    return torch.from_numpy(np.load(path, allow_pickle=False))


def dataset_of(scenario: Scenario, states: Tensor) -> ArrayDataset:
    """Windows of one state in, one out."""
    name, field = f"apebench_{scenario.name}", Field("state", states.shape[-1])
    return ArrayDataset(states, Problem(name, scenario.grid, (field,), frame_dt=scenario.frame_dt))


def experiment_on(
    dataset: ArrayDataset,
    model: str,
    scale: Scale,
    *,
    seed: int,
    minutes: float | None,
    assignments: Sequence[str] = (),
) -> Experiment:
    """What `fit` would do, with the batches of the benchmark; ``minutes`` of training, if given, replace updates."""
    changes = ["training.batch_size=20", f"training.seed={seed}"]
    if scale == "tiny":
        known = find_model(model).config_class.model_fields
        changes += [f"model.{key}={value}" for key, value in TINY_MODEL.items() if key in known]
        changes += [f"training.{key}={value}" for key, value in TINY_TRAINING.items()]
    if scale == "reduced" or minutes is not None:
        changes.append(f"training.budget_minutes={minutes or DEFAULT_MINUTES}")
    return default_experiment(dataset, model, SIZES[scale].updates, [*changes, *assignments])


def errors_of(surrogate: Surrogate, truth: Tensor, device: torch.device) -> dict[str, Any]:
    """The error of every predicted state and their geometric mean, beside those of the first state repeated."""
    surrogate = surrogate.to(device).eval()
    count, found = truth.shape[1] - 1, []
    with torch.no_grad():
        for part in truth.split(BATCH):
            frames = rollout(surrogate, part[:, :1].to(device), count)
            found.append(torch.stack([frame.cpu() for frame in frames], dim=1))
    wanted = truth[:, 1:]
    errors = state_errors(torch.cat(found), wanted)
    return {
        "geometric_mean": geometric_mean(errors),
        "per_frame": errors.tolist(),
        "persistence": geometric_mean(state_errors(truth[:, :1].expand_as(wanted), wanted)),
        "parameters": sum(weight.numel() for weight in surrogate.parameters()),
    }


def state_errors(prediction: Tensor, truth: Tensor) -> Tensor:
    """The mean normalised RMSE of each state, from frames ``(batch, state, *grid, channel)``."""
    axes = tuple(range(2, truth.ndim - 1))
    difference, norm = (values.double().square().sum(axes).sqrt() for values in (prediction - truth, truth))
    return (difference / norm).sum(-1).mean(0)


def geometric_mean(errors: Tensor) -> float:
    return float(errors.log().mean().exp())
