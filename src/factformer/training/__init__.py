"""Training: the experiment, the loop, and what keeps a run safe. Names are loaded when first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from factformer.lazy import load_lazily

if TYPE_CHECKING:
    from factformer.training.experiment import Experiment as Experiment
    from factformer.training.fitting import fit as fit
    from factformer.training.launch import run_experiment as run_experiment
    from factformer.training.loop import train as train
    from factformer.training.machine import Machine as Machine
    from factformer.training.outcome import Outcome as Outcome

__all__ = load_lazily(
    __name__,
    {
        "Experiment": "factformer.training.experiment",
        "Machine": "factformer.training.machine",
        "Outcome": "factformer.training.outcome",
        "fit": "factformer.training.fitting",
        "run_experiment": "factformer.training.launch",
        "train": "factformer.training.loop",
    },
)
