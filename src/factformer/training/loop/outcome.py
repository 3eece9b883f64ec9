"""How a run ended, and what its bundle says about where the weights came from."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from factformer.data.dataset import Dataset
from factformer.surrogate import Surrogate
from factformer.training.experiment.definition import Experiment
from factformer.training.loop.state import Counters
from factformer.training.runfolder.folder import versions


@dataclass(frozen=True)
class Outcome:
    """How a run ended: finished, with its surrogate on the CPU, or stopped on request."""

    finished: bool
    update: int
    folder: Path
    reason: str = ""
    surrogate: Surrogate | None = None
    rank: int = 0
    """Which process tells this; all of them get an outcome, the first one speaks."""
    last: dict[str, Any] = field(default_factory=dict)
    """The last line of the log."""

    def summary(self) -> dict[str, Any]:
        """For a machine to read."""
        return {
            "finished": self.finished,
            "update": self.update,
            "folder": str(self.folder),
            "reason": self.reason,
            "last": self.last,
        }


def provenance(experiment: Experiment, dataset: Dataset, counters: Counters, command: str) -> dict[str, Any]:
    """Everything that led to the weights: seed, data, settings, versions, and how well they did."""
    best = experiment.training.ship == "best" and counters.best is not None
    return {
        "problem": experiment.problem,
        "recipe": experiment.recipe,
        "scale": experiment.scale,
        "seed": experiment.training.seed,
        "dataset": dataset.fingerprint,
        "data_parameters": dataset.provenance.get("parameters", {}),
        "simulated_seconds": dataset.simulated_seconds,
        "updates": counters.update,
        "training_seconds": round(counters.seconds, 3),
        "rollbacks": counters.attempt,
        "shipped": counters.best if best else "last",
        "metrics": {"validation": counters.best_error}
        if best
        else {key: value for key, value in counters.last.items() if key != "seconds"},
        "weights": "last" if experiment.training.ema_decay is None else "average",
        "protocol": experiment.protocol.model_dump(mode="json"),
        "training": experiment.training.model_dump(mode="json"),
        "command": command,
        "versions": versions(),
    }
