"""The demonstration: Kolmogorov flow on a coarse grid, learnt on a CPU in minutes.

Not a setting of the paper: predicting increments, frame by frame, training on the symmetries of the flow, many small
batches and Muon help most when training is short; a little noise on the context helps longer roll-outs.
"""

from __future__ import annotations

from factformer.recipes._settings import check_scale, model_section, optimizer_section, protocol_section
from factformer.training.experiment.definition import Experiment

PROBLEM = "kolmogorov_flow"
RESOLUTION = 32


def experiment(scale: str = "small", model: str = "factformer_plus", protocol: str = "latent_marching") -> Experiment:
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
        "updates": 1600,
        "batch_size": 4,
        "optimizer": "muon",
        "learning_rate": 8e-3,
        "ema_decay": 0.99,
        "augment": True,
        "noise": 0.005,
        "log_every": 20,
        "validate_every": 200,
        "checkpoint_every": 200,
    }
    return Experiment.parse(
        {
            "problem": PROBLEM,
            "recipe": "demo",
            "scale": scale,
            "model": model_section(model, "small", sizes, num_axes=2),
            "data": {"path": "data/demo", "preset": "small", "resolution": RESOLUTION},
            "protocol": protocol_section(
                {
                    "name": protocol,
                    "marching_steps": 1,
                    "pushforward": 1,
                    "pushforward_from": 0.5,
                    "pushforward_every": 3,
                    "unroll": 2,
                }
            ),
            "training": optimizer_section(model, training),
        }
    )
