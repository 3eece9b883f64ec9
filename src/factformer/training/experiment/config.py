"""The ``data`` and ``training`` sections of an experiment."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from factformer.config import Config
from factformer.training.loop.optimizer.schedule import ScheduleName


class DataConfig(Config):
    """Which frames to train on and where they are kept meanwhile."""

    path: str = ""
    """Folder with ``train.hdf5`` (and ``valid.hdf5``); filled in from ``--data``."""
    preset: str = "small"
    """The preset of ``factformer generate`` that makes this data."""
    resolution: int | None = Field(default=None, ge=2, le=2**24)
    """Points per axis that the data must have; by default as many as they have."""
    num_context_frames: int | None = Field(default=None, ge=1, le=4096)
    """Frames the model sees; by default as many as the problem says."""
    stride: int = Field(default=1, ge=1, le=10**6)
    """Distance in frames between the starts of neighbouring training windows."""
    residence: Literal["auto", "device", "stream"] = "auto"
    """Keep all frames on the device, or read windows from the file in the background; ``auto``: what fits."""
    storage: Literal["float32", "bfloat16"] = "float32"
    """Number format of frames that are kept on the device."""


class TrainingConfig(Config):
    """Length, optimiser, schedule and bookkeeping of a training run."""

    updates: int = Field(default=1000, ge=1, le=10**9)
    """Updates of the weights; not read when ``budget_minutes`` is set."""
    budget_minutes: float | None = Field(default=None, gt=0, le=10**7)
    """Train for this long instead: schedule, curriculum and pushforward stretch over the time. Only training
    steps count, not start-up, the first update of a process (compilation), validation and checkpoints."""
    init: str | None = Field(default=None, min_length=1)
    """A bundle, a run folder or a name of the zoo whose weights training begins with, as far as they fit."""
    batch_size: int = Field(default=8, ge=1, le=2**20)
    """Windows per update on all devices together: the number of devices does not change the result."""
    accumulate: int = Field(default=1, ge=1, le=2**20)
    """Parts the batch of a device is cut into, one after the other, to save memory."""

    optimizer: Literal["adamw", "adam", "muon"] = "adamw"
    """``muon`` moves the matrices between layers along orthogonal directions and everything else by AdamW."""
    learning_rate: float = Field(default=3e-4, gt=0)
    """The highest learning rate of the schedule."""
    weight_decay: float = Field(default=1e-4, ge=0)
    schedule: ScheduleName = "one_cycle"
    warmup: float = Field(default=0.2, ge=0, lt=1)
    """Part of training over which the learning rate rises."""
    initial_fraction: float = Field(default=0.04, ge=0, le=1)
    """Learning rate at the start, as a fraction of the highest."""
    final_fraction: float = Field(default=4e-6, ge=0, le=1)
    """Learning rate at the end, as a fraction of the highest."""
    clip: float | None = Field(default=1.0, gt=0)
    """Largest norm of the gradient; longer ones are scaled down."""
    ema_decay: float | None = Field(default=None, gt=0, lt=1)
    """Decay of the moving average of the weights that is validated and shipped; none by default."""
    augment: bool = False
    """Apply a random symmetry of the PDE to every training window."""
    noise: float = Field(default=0.0, ge=0)
    """Noise added to the frames of the context and to their means along axes, in standard deviations of each field."""
    gradient_loss: float = Field(default=0.0, ge=0)
    """Weight of the relative error of the differences between neighbouring points (an H1 seminorm) in the loss."""

    seed: int = Field(default=0, ge=0, lt=2**63)
    precision: Literal["32-true", "bf16-mixed"] = "32-true"
    log_every: int = Field(default=10, ge=1, le=10**9)
    """Updates between lines of ``metrics.jsonl``."""
    validate_every: int = Field(default=100, ge=1, le=10**9)
    """Updates between roll-outs of held-out windows."""
    validation_windows: int = Field(default=8, ge=1, le=10**6)
    """Held-out windows that are rolled out."""
    checkpoint_every: int = Field(default=100, ge=1, le=10**9)
    """Updates between checkpoints."""
    keep_last: int = Field(default=2, ge=1, le=10**6)
    """Checkpoints kept besides the best one."""
    ship: Literal["last", "best"] = "last"
    """Weights of the bundle: the last ones, or those with the lowest error on held-out windows."""
    on_divergence: Literal["stop", "halve"] = "stop"
    """When the loss is not finite or explodes: stop, or go back a checkpoint and on with half the learning rate, to
    which it rises anew."""
    explosion: float = Field(default=1e3, gt=1)
    """The loss counts as exploded at this multiple of the lowest one logged so far."""
