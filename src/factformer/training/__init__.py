"""Training: the experiment, the loop, and what keeps a run safe. Names are loaded when first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from factformer._support.lazy import load_lazily

if TYPE_CHECKING:
    from factformer.training.experiment.definition import Experiment as Experiment
    from factformer.training.fitting import fit as fit
    from factformer.training.launch import run_experiment as run_experiment
    from factformer.training.loop.machine import Machine as Machine
    from factformer.training.loop.outcome import Outcome as Outcome
    from factformer.training.loop.train import train as train

__all__ = load_lazily(
    __name__,
    {
        "Experiment": "factformer.training.experiment.definition",
        "Machine": "factformer.training.loop.machine",
        "Outcome": "factformer.training.loop.outcome",
        "fit": "factformer.training.fitting",
        "run_experiment": "factformer.training.launch",
        "train": "factformer.training.loop.train",
    },
)
