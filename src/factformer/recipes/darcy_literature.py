"""Darcy flow as the literature has it: 1000 samples solved on 421 × 421 points, every fifth of them kept (85 × 85).

The preset `literature` of `darcy_flow` makes the data, with 200 samples to test on.
"""

from __future__ import annotations

from factformer.recipes import darcy
from factformer.recipes._settings import assemble
from factformer.training.experiment.definition import Experiment


def experiment(scale: str = "small", model: str = "factformer_plus", protocol: str = "steady") -> Experiment:
    """The settings of the recipe `darcy` on the literature's grid."""
    presets = {"paper": "literature", "small": "small"}
    return assemble("darcy_literature", "darcy_flow", scale, model, {"name": protocol}, darcy.SETTINGS, presets)
