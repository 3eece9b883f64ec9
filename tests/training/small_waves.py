"""A small wave problem and the shortest training that uses every feature."""

import math

import torch

from factformer.data.dataset import ArrayDataset
from factformer.grid import Grid
from factformer.problem import Field, Problem
from factformer.training.experiment.definition import Experiment

TINY_MODEL = {"name": "factformer", "dim": 8, "depth": 1, "heads": 2, "head_dim": 4, "kernel_dim": 4}
LATENT = {
    "name": "latent_marching",
    "marching_steps": 2,
    "curriculum": 0.3,
    "pushforward": 1,
    "pushforward_from": 0.4,
    "pushforward_every": 2,
}


def waves(num_trajectories: int, num_frames: int = 12, size: int = 8, first: int = 0) -> torch.Tensor:
    """Travelling waves ``(trajectory, frame, x, y, 1)``, each with its own phase."""
    x = Grid((size, size), 2 * math.pi, True).axis(0, dtype=torch.float32)
    t = torch.arange(num_frames) * 0.2
    trajectories = []
    for index in range(first, first + num_trajectories):
        phase = 0.37 * index
        along_x = torch.sin(x[None, :, None] + t[:, None, None] + phase)
        trajectories.append(along_x * torch.cos(x[None, None, :] - 0.5 * t[:, None, None] + 2 * phase))
    return torch.stack(trajectories)[..., None]


def wave_problem(size: int = 8) -> Problem:
    grid = Grid((size, size), 2 * math.pi, True)
    return Problem("waves", grid, (Field("u"),), frame_dt=0.2, num_context_frames=3, horizon=4)


def wave_data() -> tuple[ArrayDataset, ArrayDataset]:
    dataset = ArrayDataset(waves(3), wave_problem())
    held_out = ArrayDataset(waves(2, first=7), wave_problem(), "valid", normalizer=dataset.normalizer())
    return dataset, held_out


def tiny_experiment(protocol: str = "latent_marching", **training) -> Experiment:
    settings = {
        "updates": 60,
        "batch_size": 2,
        "learning_rate": 3e-3,
        "ema_decay": 0.9,
        "log_every": 7,
        "validate_every": 20,
        "checkpoint_every": 11,
        "validation_windows": 2,
        **training,
    }
    return Experiment.parse(
        {
            "problem": "waves",
            "model": TINY_MODEL,
            "data": {"resolution": 8},
            "protocol": LATENT if protocol == LATENT["name"] else {"name": protocol},
            "training": settings,
        }
    )
