"""Time and progress: how much of training is over, in updates or in seconds of a budget."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from factformer.training.experiment.config import TrainingConfig


class Clock:
    """Counts the seconds of training steps, over all legs of a run.

    Start-up, the first update of a process (which compiles), validation and checkpoints do not count: a
    budget compares models by what their training costs.
    """

    def __init__(self, config: TrainingConfig, device: torch.device) -> None:
        self.updates = config.updates
        self.budget = None if config.budget_minutes is None else 60 * config.budget_minutes
        self.device = device
        self._counted = 0.0
        self._since: float | None = None

    @property
    def seconds(self) -> float:
        running = 0.0 if self._since is None else time.perf_counter() - self._since
        return self._counted + running

    def start(self, seconds: float) -> None:
        """Run on from ``seconds``."""
        self._counted, self._since = seconds, time.perf_counter()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """What happens here is not training; a GPU finishes its queue on either side."""
        self._wait()
        self._counted, self._since = self.seconds, None
        try:
            yield
        finally:
            self._wait()
            self._since = time.perf_counter()

    def progress(self, update: int, seconds: float) -> float:
        """What is over when ``update`` (counted from 1) begins, from 0 to 1."""
        if self.budget is None:
            return min((update - 1) / self.updates, 1.0)
        return min(seconds / self.budget, 1.0)

    def seconds_left(self, update: int, seconds_per_update: float) -> float:
        if self.budget is None:
            return (self.updates - update) * seconds_per_update
        return max(self.budget - self.seconds, 0.0)

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
