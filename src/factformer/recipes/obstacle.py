"""Flow past one to four random bodies: 4 frames in, 16 out, frame by frame; mask and viscosity condition the model."""

from __future__ import annotations

from dataclasses import replace

from factformer.recipes import kolmogorov
from factformer.recipes._settings import assemble, marching_plan
from factformer.training.experiment.definition import Experiment

SIZES = {scale: {**sizes, "fourier_std": 4.0} for scale, sizes in kolmogorov.SETTINGS.sizes.items()}
SETTINGS = replace(kolmogorov.SETTINGS, sizes=SIZES)


def experiment(scale: str = "small", model: str = "factformer_plus", protocol: str = "latent_marching") -> Experiment:
    """The training of `kolmogorov` on `obstacle_flow`."""
    plan = marching_plan(protocol, 1)
    return assemble("obstacle", "obstacle_flow", scale, model, plan, SETTINGS)
