"""Navier-Stokes flow with ν = 1e-5 as the literature has it: 10 frames in, 10 out, on 64 × 64 points.

The data are those of the paper on Fourier neural operators (Li et al. 2021), solved anew: 1000 flows to train on and
200 to test. The error is the relative L2 error of the ten predicted frames, which `evaluate` reports.
"""

from __future__ import annotations

from factformer.recipes import kolmogorov
from factformer.recipes._settings import assemble, marching_plan
from factformer.training.experiment.definition import Experiment


def experiment(scale: str = "small", model: str = "factformer_plus", protocol: str = "latent_marching") -> Experiment:
    """One frame per call. The small scale has fewer flows, of ν = 1e-4."""
    plan = marching_plan(protocol, 1, pushforward=1, pushforward_from=0.1)
    return assemble("navier_stokes_literature", "navier_stokes", scale, model, plan, kolmogorov.SETTINGS)
