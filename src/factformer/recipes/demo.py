"""The demonstration: Kolmogorov flow on a coarse grid, learnt on a CPU in minutes.

Not a setting of the paper: predicting increments and training on the symmetries of the flow help most when
training is short.
"""

from __future__ import annotations

from factformer.recipes._settings import check_scale, model_section, optimizer_section
from factformer.training.experiment import Experiment

PROBLEM = "kolmogorov_flow"
RESOLUTION = 32


def experiment(
    scale: str = "small", model: str = "factformer_plus", protocol: str = "latent_marching"
) -> Experiment:
    """The same small experiment at either scale; the paper has no such problem."""
    check_scale(scale)
    sizes = {
        "dim": 48,
        "depth": 2,
        "heads": 4,
        "head_dim": 16,
        "kernel_dim": 32,
        "fourier_std": 1.0,
        "residual": True,
    }
    training = {
        "updates": 500,
        "batch_size": 8,
        "learning_rate": 2e-3,
        "ema_decay": 0.99,
        "augment": True,
        "log_every": 10,
        "validate_every": 100,
        "checkpoint_every": 100,
    }
    return Experiment.parse(
        {
            "problem": PROBLEM,
            "recipe": "demo",
            "scale": scale,
            "model": model_section(model, "small", sizes),
            "data": {"path": "data/demo", "preset": "small", "resolution": RESOLUTION},
            "protocol": {
                "name": protocol,
                "marching_steps": 4,
                "curriculum": 0.2,
                "pushforward": 1,
                "pushforward_from": 0.5,
                "pushforward_every": 3,
                "unroll": 2,
            },
            "training": optimizer_section(model, training),
        }
    )
