"""Optional places to log to: TensorBoard and Weights & Biases, imported only when asked for."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from factformer.errors import UserError
from factformer.training.loop.machine import is_launched_process
from factformer.training.runfolder.reporting import LiveReporter, Reporter, Tracker


class TensorBoard:
    """Event files in ``tensorboard/`` of the run folder."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise UserError("--tensorboard needs the package: pip install 'factformer[tensorboard]'") from None
        self.writer: Any = SummaryWriter(str(folder / "tensorboard"))

    def log(self, values: dict[str, float], update: int) -> None:
        for name, value in values.items():
            self.writer.add_scalar(name, value, update)

    def close(self) -> None:
        self.writer.close()


class WeightsAndBiases:
    """A run named after the folder; ``WANDB_PROJECT`` and the like are read from the environment."""

    def __init__(self, folder: Path) -> None:
        try:
            import wandb
        except ImportError:
            raise UserError("--wandb needs the package: pip install 'factformer[wandb]'") from None
        folder.mkdir(parents=True, exist_ok=True)
        self.run: Any = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "factformer"),
            name=folder.name,
            id=os.environ.get("WANDB_RUN_ID"),
            resume="allow",
            dir=str(folder),
        )

    def log(self, values: dict[str, float], update: int) -> None:
        self.run.log(values, step=update)

    def close(self) -> None:
        self.run.finish()


def open_reporter(folder: Path, *, quiet: bool = False, tensorboard: bool = False, wandb: bool = False) -> Reporter:
    """The reporter of the command line; processes other than the first say nothing."""
    if is_launched_process():
        return Reporter()
    trackers: list[Tracker] = []
    if tensorboard:
        trackers.append(TensorBoard(folder))
    if wandb:
        trackers.append(WeightsAndBiases(folder))
    return LiveReporter(trackers, silent=quiet)
