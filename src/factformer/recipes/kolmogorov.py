"""Kolmogorov flow, two-dimensional: 10 frames in, 16 out, four per call (Table 1 of the paper)."""

from __future__ import annotations

from typing import Any

from factformer.recipes._settings import Settings, assemble, marching_plan
from factformer.training.experiment.definition import Experiment

FRAME_BY_FRAME: dict[str, dict[str, Any]] = {"protocol": {"marching_steps": 1}, "model": {"local_kernel": 7}}
NOISE = {"noise": 0.01}  # without it roll-outs at 128 points may leave the flow after some twenty frames
SETTINGS = Settings(
    sizes={
        "paper": {"dim": 128, "depth": 4, "heads": 8, "kernel_dim": 128, "fourier_std": 8.0},
        "small": {"dim": 48, "depth": 2, "heads": 4, "head_dim": 16, "kernel_dim": 32, "fourier_std": 8.0},
    },
    training={
        "paper": {"batch_size": 8, "learning_rate": 5e-4},
        "small": {
            "updates": 1500,
            "batch_size": 4,
            "learning_rate": 1e-3,
            "validate_every": 250,
            "checkpoint_every": 250,
        },
    },
    own={  # docs/research-log.md
        "factformer_plus": {
            "paper": {"training": {"batch_size": 4, **NOISE}, **FRAME_BY_FRAME},
            "small": {"training": NOISE, **FRAME_BY_FRAME},
        }
    },
)
PAPER_UNROLL = {"fno": 12, "ffno": 6}  # the caption of Table 1; every other model unrolls two steps


def experiment(scale: str = "small", model: str = "factformer", protocol: str = "latent_marching") -> Experiment:
    """The paper's settings, or a small model and a short training for a CPU."""
    plan = marching_plan(protocol, 4, unroll=PAPER_UNROLL.get(model, 2) if scale == "paper" else 2)
    return assemble("kolmogorov", "kolmogorov_flow", scale, model, plan, SETTINGS)
