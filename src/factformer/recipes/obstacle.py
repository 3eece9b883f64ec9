"""Flow past one to four random bodies: 4 frames in, 16 out, frame by frame; mask and viscosity condition the model."""

from __future__ import annotations

from factformer.recipes import kolmogorov
from factformer.recipes._settings import assemble, marching_plan
from factformer.training.experiment.definition import Experiment

SIZES = {
    "paper": {"dim": 128, "depth": 4, "heads": 8, "kernel_dim": 128, "fourier_std": 4.0},
    "small": {"dim": 48, "depth": 2, "heads": 4, "head_dim": 16, "kernel_dim": 32, "fourier_std": 4.0},
}


def experiment(scale: str = "small", model: str = "factformer_plus", protocol: str = "latent_marching") -> Experiment:
    """The training of `kolmogorov` on `obstacle_flow`."""
    plan = marching_plan(protocol, 1)
    return assemble(
        "obstacle",
        "obstacle_flow",
        scale,
        model,
        plan,
        sizes=SIZES,
        training=kolmogorov.TRAINING,
        own=kolmogorov.OWN,
    )
