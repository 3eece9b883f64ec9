"""Training: the experiment, the loop, and what keeps a run safe. Names are loaded when first used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from factformer.training.experiment import Experiment as Experiment
    from factformer.training.fitting import fit as fit
    from factformer.training.launch import run_experiment as run_experiment
    from factformer.training.loop import train as train
    from factformer.training.machine import Machine as Machine
    from factformer.training.outcome import Outcome as Outcome

_HOMES = {
    "Experiment": "experiment",
    "Machine": "machine",
    "Outcome": "outcome",
    "fit": "fitting",
    "run_experiment": "launch",
    "train": "loop",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
