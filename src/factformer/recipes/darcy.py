"""Darcy flow, two-dimensional and steady: coefficient in, solution out (Table 4 of the paper)."""

from __future__ import annotations

from factformer.recipes._settings import (
    PAPER_UPDATES,
    check_scale,
    model_section,
    optimizer_section,
    resolution,
)
from factformer.training.experiment import Experiment

PROBLEM = "darcy_flow"


def experiment(scale: str = "small", model: str = "factformer", protocol: str = "steady") -> Experiment:
    """The paper's settings, or a small model and a short training for a CPU."""
    check_scale(scale)
    paper = scale == "paper"
    sizes = {"dim": 128, "depth": 3, "heads": 12, "kernel_dim": 128}
    small_sizes = {"dim": 48, "depth": 2, "heads": 4, "head_dim": 16, "kernel_dim": 32}
    training = {
        "updates": PAPER_UPDATES.get(protocol, 100_000),
        "batch_size": 8,
        "learning_rate": 8e-4,
        "log_every": 50,
        "validate_every": 1000,
        "checkpoint_every": 1000,
        "validation_windows": 32,
    }
    small_training = {
        "updates": 1500,
        "batch_size": 8,
        "learning_rate": 1e-3,
        "log_every": 10,
        "validate_every": 250,
        "checkpoint_every": 250,
        "validation_windows": 16,
    }
    return Experiment.parse(
        {
            "problem": PROBLEM,
            "recipe": "darcy",
            "scale": scale,
            "model": model_section(
                model, scale, {"fourier_std": 1.0, **(sizes if paper else small_sizes)}, baseline={"modes": 20}
            ),
            "data": {"path": f"data/{PROBLEM}", "preset": scale, "resolution": resolution(PROBLEM, scale)},
            "protocol": {"name": protocol},
            "training": optimizer_section(model, training if paper else small_training),
        }
    )
