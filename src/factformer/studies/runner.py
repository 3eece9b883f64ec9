"""Running one training after another within a time limit: the device, the clock, and how each piece of work ended.

`reproduce` and the campaigns of this repository share it. It trains and resumes; which data a run sees, how it is
judged and where its result is kept is for the caller to say.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from factformer._support.run_names import CONFIG
from factformer._support.text import first_line
from factformer.data.dataset import Dataset
from factformer.errors import InUse, UserError
from factformer.evaluation.provenance import hardware
from factformer.evaluation.timing import resolve_device
from factformer.surrogate import Surrogate
from factformer.training import Machine
from factformer.training.experiment.definition import Experiment
from factformer.training.loop.signals import by_signal
from factformer.training.loop.train import train
from factformer.training.runfolder.reporting import Reporter

Say = Callable[[str], None]
Word = Literal["done", "found", "stopped", "no time", "failed"]
FAILURES = (UserError, RuntimeError, OSError)
"""What may go wrong in one piece of work without ending the others."""


@dataclass(frozen=True)
class Ended:
    """How a piece of work ended: its result if there is one, and what it took."""

    word: Word
    detail: str = ""
    """At which scale it was done, or why it was not."""
    result: dict[str, Any] | None = None
    hardware: str = ""
    seconds: float | None = None
    folder: str = ""
    label: str = ""

    @property
    def status(self) -> str:
        """For the cell of a table."""
        if self.word == "failed":
            return f"failed ({self.detail})"
        return "not run" if self.word in ("stopped", "no time") else self.detail


class Stopped(Exception):  # noqa: N818 - says what happened
    """A run was stopped before its end and can be resumed."""

    word: Word = "stopped"


class OutOfTime(Stopped):
    """Nothing new may be begun."""

    word: Word = "no time"


class Runner:
    """Trains runs until the time is over or a signal arrives; ``stopped`` then says why nothing more is begun."""

    def __init__(
        self,
        *,
        seconds: float | None = None,
        device: str | None = None,
        say: Say = lambda message: None,
        failures: tuple[type[Exception], ...] = FAILURES,
    ) -> None:
        self.began = time.monotonic()
        self.deadline = None if seconds is None else self.began + seconds
        self.device = resolve_device(device)
        self.say = say
        self.failures = failures
        self.stopped = ""

    @property
    def machine(self) -> Machine:
        return Machine("cuda" if self.device.type == "cuda" else "cpu")

    def left(self) -> float:
        """Seconds until the time is over."""
        return float("inf") if self.deadline is None else self.deadline - time.monotonic()

    def check_time(self, needed: float = 0.0) -> None:
        """Raise `OutOfTime` where nothing that takes ``needed`` seconds may be begun."""
        if self.stopped:
            raise OutOfTime(self.stopped)
        if self.left() <= needed:
            raise OutOfTime(f"{needed:.0f} s needed, {max(self.left(), 0.0):.0f} s left")

    def attempt(self, work: Callable[[], Ended], label: str = "") -> Ended:
        """What ``work`` returns. A failure, a signal and a lack of time are endings too and not errors."""
        try:
            return work()
        except Stopped as stop:
            return Ended(stop.word, str(stop), label=label)
        except KeyboardInterrupt:
            self.stopped = "interrupted"
            self.say("interrupted; start again to resume")
            return Ended("stopped", self.stopped, label=label)
        except InUse as busy:  # its other process finishes it, or leaves a checkpoint
            reason = first_line(busy, 1000)
            self.say(f"left alone: {reason}")
            return Ended("stopped", reason, label=label)
        except self.failures as error:
            if not isinstance(error, FAILURES):
                self.say(traceback.format_exc())
            reason = first_line(error, 1000)
            self.say(f"failed: {reason}")
            return Ended("failed", reason, hardware=hardware(self.device), label=label)

    def train(
        self,
        experiment: Experiment,
        dataset: Dataset,
        held_out: Dataset | None,
        folder: Path,
        *,
        command: str,
        reporter: Reporter,
        reserve: float = 0.0,
    ) -> Surrogate:
        """Train in ``folder``, or resume there; raises `Stopped` where the run does not come to its end.

        It is stopped ``reserve`` seconds before the time is over.
        """
        self.machine.check()
        outcome = train(
            experiment,
            dataset,
            held_out,
            folder=folder,
            machine=self.machine,
            resume=(folder / CONFIG).is_file(),
            max_minutes=None if self.deadline is None else max(self.left() - reserve, 0.0) / 60,
            command=command,
            reporter=reporter,
        )
        if outcome.surrogate is None:
            if by_signal(outcome.reason):
                self.stopped = outcome.reason
            self.say(f"stopped after update {outcome.update}: {outcome.reason}; start again to resume")
            raise Stopped(f"after update {outcome.update} ({outcome.reason})")
        return outcome.surrogate
