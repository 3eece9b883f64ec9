"""What a run tells while it goes on: a bar on a terminal, plain lines elsewhere, and optional trackers."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any, Protocol

import torch

from factformer.training.experiment.config import TrainingConfig
from factformer.training.loop.clock import Clock

SECONDS_BETWEEN_LINES = 2.0


class Tracker(Protocol):
    """A place that log lines are sent to besides ``metrics.jsonl``."""

    def log(self, values: dict[str, float], update: int) -> None: ...

    def close(self) -> None: ...


class Reporter:
    """Says nothing; the base of those that do."""

    def begin(self, clock: Clock, config: TrainingConfig, update: int, folder: Path) -> None:
        """The loop starts after ``update`` updates."""

    def line(self, values: dict[str, Any], seconds_waiting: float) -> None:
        """A line of the log was written."""

    def message(self, text: str) -> None:
        """Something worth a line of its own happened."""

    def end(self) -> None:
        """The loop is over."""


class LiveReporter(Reporter):
    """Loss, held-out error, samples per second, GPU memory and time left."""

    def __init__(self, trackers: list[Tracker] | None = None, *, silent: bool = False, stream: Any = None) -> None:
        self.trackers = trackers or []
        self.silent = silent
        self.stream = stream or sys.stderr
        self._bar: Any = None
        self._task: Any = None
        self._validation: float | None = None
        self._printed = 0.0

    def begin(self, clock: Clock, config: TrainingConfig, update: int, folder: Path) -> None:
        self.clock, self.config = clock, config
        self._before = (update + 1, clock.seconds)  # the clock does not count the first update
        self._first = self._before
        if self.silent:
            return
        if self.stream.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn

            self._bar = Progress(
                TextColumn("training"),
                BarColumn(),
                TextColumn("{task.description}"),
                console=Console(file=self.stream),
            )
            self._task = self._bar.add_task("starting", total=1.0)
            self._bar.start()
        else:
            self.message(f"training in {folder}")

    def line(self, values: dict[str, Any], seconds_waiting: float) -> None:
        update, seconds = values["update"], self.clock.seconds
        updates_since, seconds_since = update - self._before[0], seconds - self._before[1]
        known = updates_since > 0 and seconds_since > 0
        self._before = (update, seconds)
        if values.get("validation") is not None:
            self._validation = values["validation"]
        speed = updates_since * self.config.batch_size / seconds_since if known else 0.0
        left = self.clock.seconds_left(update, (seconds - self._first[1]) / max(update - self._first[0], 1))
        memory = torch.cuda.max_memory_allocated() / 2**30 if torch.cuda.is_available() else 0.0
        total = f"/{self.config.updates}" if self.clock.budget is None else ""
        text = f"update {update}{total}  loss {values['loss']:.4f}"
        text += "" if self._validation is None else f"  held-out error {self._validation:.4f}"
        text += (f"  {speed:.1f} samples/s" if known else "") + (f"  {memory:.1f} GiB" if memory else "")
        text += f"  {duration(left)} left" if known else ""
        for tracker in self.trackers:
            numbers = {k: float(v) for k, v in values.items() if isinstance(v, (int, float)) and k != "update"}
            tracker.log(
                {
                    **numbers,
                    **({"samples_per_second": speed} if known else {}),
                    "gpu_memory_gib": memory,
                    "seconds_waiting_for_data": seconds_waiting,
                },
                update,
            )
        if self._bar is not None:
            self._bar.update(self._task, completed=self.clock.progress(update + 1, seconds), description=text)
        elif not self.silent and ((known and left <= 0) or time.monotonic() - self._printed >= SECONDS_BETWEEN_LINES):
            self._printed = time.monotonic()
            print(text, file=self.stream, flush=True)

    def message(self, text: str) -> None:
        if self.silent:
            return
        if self._bar is not None:
            self._bar.console.print(text, highlight=False, soft_wrap=True, markup=False)
        else:
            print(text, file=self.stream, flush=True)

    def end(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
        for tracker in self.trackers:
            tracker.close()


def duration(seconds: float) -> str:
    """``1:02:03``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def longer_run(more: str, rate: float, last: float | None) -> str:
    """That a resumed run was made longer (``more``), and what becomes of the learning rate, which was ``last``."""
    was = "" if last is None else f", where the last line of the log has {last:.3g}"
    return (
        f"{more}: schedule, curriculum and pushforward stretch over the whole, and the learning rate "
        f"goes on at {rate:.3g}{was}"
    )


def other_threads(before: int, now: int) -> str:
    """That a run is resumed with another number of threads."""
    return (
        f"warning: the run had {before} threads and has {now} now, so its last bits may differ; "
        f"OMP_NUM_THREADS={before} keeps them"
    )
