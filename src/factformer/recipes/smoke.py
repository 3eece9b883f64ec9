"""Smoke buoyancy, three-dimensional, in a box: 4 frames in, 16 out, four per call (Table 3 of the paper)."""

from __future__ import annotations

from factformer.recipes._settings import (
    PAPER_UPDATES,
    check_scale,
    model_section,
    optimizer_section,
    resolution,
)
from factformer.training.experiment import Experiment

PROBLEM = "smoke_buoyancy"


def experiment(
    scale: str = "small", model: str = "factformer", protocol: str = "latent_marching"
) -> Experiment:
    """The paper's settings, or a small model and a short training for a CPU."""
    check_scale(scale)
    paper = scale == "paper"
    sizes = {"dim": 128, "depth": 3, "heads": 6, "kernel_dim": 192}
    small_sizes = {"dim": 32, "depth": 2, "heads": 4, "head_dim": 16, "kernel_dim": 32}
    training = {
        "updates": PAPER_UPDATES.get(protocol, 100_000),
        "batch_size": 2,
        "learning_rate": 3e-4,
        "log_every": 50,
        "validate_every": 1000,
        "checkpoint_every": 1000,
    }
    small_training = {
        "updates": 600,
        "batch_size": 2,
        "learning_rate": 1e-3,
        "log_every": 10,
        "validate_every": 100,
        "checkpoint_every": 100,
    }
    return Experiment.parse(
        {
            "problem": PROBLEM,
            "recipe": "smoke",
            "scale": scale,
            "model": model_section(model, scale, {"fourier_std": 1.0, **(sizes if paper else small_sizes)}),
            "data": {"path": f"data/{PROBLEM}", "preset": scale, "resolution": resolution(PROBLEM, scale)},
            "protocol": {
                "name": protocol,
                "marching_steps": 4,
                "curriculum": 0.06,
                "pushforward": 2,
                "pushforward_from": 0.10,
                "pushforward_every": 3,
                "unroll": 2,
            },
            "training": optimizer_section(model, training if paper else small_training),
        }
    )
