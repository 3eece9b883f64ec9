"""Isotropic turbulence, three-dimensional: 10 frames in, 10 out, two per call (Table 2 of the paper)."""

from __future__ import annotations

from factformer.recipes._settings import (
    PAPER_UPDATES,
    check_scale,
    model_section,
    optimizer_section,
    resolution,
)
from factformer.training.experiment import Experiment

PROBLEM = "isotropic_turbulence"


def experiment(
    scale: str = "small", model: str = "factformer", protocol: str = "latent_marching"
) -> Experiment:
    """The paper's settings, or a small model and a short training for a CPU."""
    check_scale(scale)
    paper = scale == "paper"
    sizes = {"dim": 128, "depth": 4, "heads": 6, "kernel_dim": 192}
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
            "recipe": "turbulence",
            "scale": scale,
            "model": model_section(model, scale, {"fourier_std": 8.0, **(sizes if paper else small_sizes)}),
            "data": {"path": f"data/{PROBLEM}", "preset": scale, "resolution": resolution(PROBLEM, scale)},
            "protocol": {
                "name": protocol,
                "marching_steps": 2,
                "curriculum": 0.05,
                "pushforward": 2,
                "pushforward_from": 0.08,
                "pushforward_every": 2,
                "unroll": 2,
            },
            "training": optimizer_section(model, training if paper else small_training),
        }
    )
