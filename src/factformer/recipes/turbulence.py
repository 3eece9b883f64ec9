"""Isotropic turbulence, three-dimensional: 10 frames in, 10 out, two per call (Table 2 of the paper)."""

from __future__ import annotations

from factformer.recipes._settings import Settings, assemble, marching_plan
from factformer.training.experiment.definition import Experiment

TRAINING = {
    "paper": {"batch_size": 2, "learning_rate": 3e-4},
    "small": {"updates": 600, "batch_size": 2, "learning_rate": 1e-3, "validate_every": 100, "checkpoint_every": 100},
}
SETTINGS = Settings(
    sizes={
        "paper": {"dim": 128, "depth": 4, "heads": 6, "kernel_dim": 192, "fourier_std": 8.0},
        "small": {"dim": 32, "depth": 2, "heads": 4, "head_dim": 16, "kernel_dim": 32, "fourier_std": 8.0},
    },
    training=TRAINING,
    own={"factformer_plus": {"paper": {"training": {"batch_size": 1}}}},
)


def experiment(scale: str = "small", model: str = "factformer", protocol: str = "latent_marching") -> Experiment:
    """The paper's settings, or a small model and a short training for a CPU."""
    plan = marching_plan(protocol, 2, curriculum=0.05, pushforward_every=2)
    return assemble("turbulence", "isotropic_turbulence", scale, model, plan, SETTINGS)
