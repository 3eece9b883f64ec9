"""Optional places to log to: TensorBoard and Weights & Biases, imported only when asked for."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from factformer.config import unknown_name
from factformer.errors import UserError
from factformer.training.loop.machine import is_launched_process
from factformer.training.runfolder.reporting import LiveReporter, Reporter, Tracker


class TensorBoard:
    """Event files in ``tensorboard/`` of the run folder."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise UserError("logging to TensorBoard needs the package: pip install 'factformer[tensorboard]'") from None
        self._open = lambda: SummaryWriter(str(folder / "tensorboard"))
        self.writer: Any = None

    def log(self, values: dict[str, float], update: int) -> None:
        if self.writer is None:  # not before the run has its folder
            self.writer = self._open()
        for name, value in values.items():
            self.writer.add_scalar(name, value, update)

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()


class WeightsAndBiases:
    """A run named after the folder; ``WANDB_PROJECT`` and the like are read from the environment."""

    def __init__(self, folder: Path) -> None:
        try:
            import wandb
        except ImportError:
            raise UserError("logging to Weights & Biases needs the package: pip install 'factformer[wandb]'") from None
        self._open = lambda: wandb.init(
            project=os.environ.get("WANDB_PROJECT", "factformer"),
            name=folder.name,
            id=os.environ.get("WANDB_RUN_ID"),
            resume="allow",
            dir=str(folder),
        )
        self.run: Any = None

    def log(self, values: dict[str, float], update: int) -> None:
        if self.run is None:  # not before the run has its folder
            self.run = self._open()
        self.run.log(values, step=update)

    def close(self) -> None:
        if self.run is not None:
            self.run.finish()


class Function:
    """A user's own function of the values of a log line and its update."""

    def __init__(self, function: Callable[[dict[str, float], int], object]) -> None:
        self.function = function

    def log(self, values: dict[str, float], update: int) -> None:
        self.function(values, update)

    def close(self) -> None:
        """There is nothing to close."""


Logger = str | Callable[[dict[str, float], int], object]
"""``"tensorboard"``, ``"wandb"``, or a function ``f(values, update)``."""
NAMED: dict[str, Callable[[Path], Tracker]] = {"tensorboard": TensorBoard, "wandb": WeightsAndBiases}


def open_reporter(folder: Path, *, quiet: bool = False, loggers: Sequence[Logger] = ()) -> Reporter:
    """What tells of a run, with further places to log to; processes other than the first say nothing."""
    if is_launched_process():
        return Reporter()
    trackers: list[Tracker] = []
    for logger in [loggers] if isinstance(loggers, str) else loggers:
        if callable(logger):
            trackers.append(Function(logger))
        elif logger in NAMED:
            trackers.append(NAMED[logger](folder))
        else:
            raise unknown_name("logger", str(logger), NAMED)
    return LiveReporter(trackers, silent=quiet)
