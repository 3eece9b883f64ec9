"""Smoke buoyancy, three-dimensional, in a box: 4 frames in, 16 out, four per call (Table 3 of the paper)."""

from __future__ import annotations

from factformer.recipes import turbulence
from factformer.recipes._settings import Settings, assemble, marching_plan
from factformer.training.experiment.definition import Experiment

SETTINGS = Settings(
    sizes={
        "paper": {"dim": 128, "depth": 3, "heads": 6, "kernel_dim": 192, "fourier_std": 1.0},
        "small": {"dim": 32, "depth": 2, "heads": 4, "head_dim": 16, "kernel_dim": 32, "fourier_std": 1.0},
    },
    training=turbulence.TRAINING,
    own={  # docs/research-log.md
        "factformer_plus": {
            "paper": {"training": {"batch_size": 1}, "protocol": {"marching_steps": 1}},
            "small": {"protocol": {"marching_steps": 1}},
        }
    },
)


def experiment(scale: str = "small", model: str = "factformer", protocol: str = "latent_marching") -> Experiment:
    """The paper's settings, or a small model and a short training for a CPU; trained like turbulence."""
    plan = marching_plan(protocol, 4, pushforward_from=0.10)
    return assemble("smoke", "smoke_buoyancy", scale, model, plan, SETTINGS)
