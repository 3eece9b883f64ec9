"""Damped waves of a plasma in a phase space of four axes: 2 frames in, 1 out per call, in patches of two points."""

from __future__ import annotations

from factformer.recipes import kolmogorov
from factformer.recipes._settings import Settings, assemble, marching_plan
from factformer.training.experiment.definition import Experiment

VELOCITIES = (0.0, 0.0, 0.15, 0.15)
"""Waves per unit of the positional encoding: nothing depends on the position, so that it is one of velocities alone."""
SETTINGS = Settings(
    sizes={
        "paper": {
            "dim": 96,
            "depth": 4,
            "heads": 6,
            "head_dim": 32,
            "kernel_dim": 64,
            "patch": 2,
            "fourier_std": VELOCITIES,
        },
        "small": {
            "dim": 48,
            "depth": 2,
            "heads": 4,
            "head_dim": 16,
            "kernel_dim": 32,
            "patch": (3, 3, 2, 2),
            "fourier_std": VELOCITIES,
        },
    },
    training=kolmogorov.SETTINGS.training,
)


def experiment(scale: str = "small", model: str = "factformer_plus", protocol: str = "latent_marching") -> Experiment:
    """`vlasov_poisson` with two space dimensions: 32⁴ points, or 12 × 12 × 24 × 24 for a CPU."""
    plan, presets = marching_plan(protocol, 1), {"paper": "four_axes", "small": "four_axes_small"}
    return assemble("vlasov", "vlasov_poisson", scale, model, plan, SETTINGS, presets)
