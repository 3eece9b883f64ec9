"""Darcy flow, two-dimensional and steady: coefficient in, solution out (the resolution study of the paper)."""

from __future__ import annotations

from factformer.recipes._settings import Settings, assemble
from factformer.training.experiment.definition import Experiment

SETTINGS = Settings(
    sizes={
        "paper": {"dim": 128, "depth": 3, "heads": 12, "kernel_dim": 128, "fourier_std": 1.0},
        "small": {"dim": 48, "depth": 2, "heads": 4, "head_dim": 16, "kernel_dim": 32, "fourier_std": 1.0},
    },
    training={
        "paper": {"batch_size": 8, "learning_rate": 8e-4, "validation_windows": 32},
        "small": {
            "updates": 1500,
            "batch_size": 8,
            "learning_rate": 1e-3,
            "validate_every": 250,
            "checkpoint_every": 250,
            "validation_windows": 16,
        },
    },
    baseline={"modes": 20},  # of the Fourier models, from the paper's appendix
)


def experiment(scale: str = "small", model: str = "factformer", protocol: str = "steady") -> Experiment:
    """The paper's settings, or a small model and a short training for a CPU."""
    return assemble("darcy", "darcy_flow", scale, model, {"name": protocol}, SETTINGS)
