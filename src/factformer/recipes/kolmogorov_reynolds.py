"""Kolmogorov flow over a range of Reynolds numbers and forcing wavenumbers: 10 frames in, 16 out, frame by frame.

Not a setting of the paper: every flow has its own Reynolds number (200 to 2000, log-uniform) and forcing wavenumber
(4 to 10), which condition the model. The small scale has 100 to 400 and 4 to 8, which a coarse grid resolves.
"""

from __future__ import annotations

from factformer.recipes import kolmogorov
from factformer.recipes._settings import assemble, marching_plan
from factformer.training.experiment.definition import Experiment

PRESETS = {"paper": "reynolds", "small": "reynolds_small"}


def experiment(scale: str = "small", model: str = "factformer_plus", protocol: str = "latent_marching") -> Experiment:
    """The sizes and the training of `kolmogorov`, on flows of different parameters."""
    plan = marching_plan(protocol, 1)
    return assemble("kolmogorov_reynolds", "kolmogorov_flow", scale, model, plan, kolmogorov.SETTINGS, PRESETS)
