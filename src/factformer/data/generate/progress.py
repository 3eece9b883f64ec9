"""Progress with the time left: a bar on a terminal, plain lines elsewhere, silence when not asked for."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

SECONDS_BETWEEN_LINES = 5.0


class ProgressBar:
    """Counts work done out of ``total``; ``initial`` units were done before and say nothing about speed."""

    def __init__(self, title: str, total: int, *, initial: int = 0, enabled: bool = True, unit: str = "frames") -> None:
        self._title, self._total, self._unit = title, total, unit
        self._initial = self._done = initial
        self._start = self._last = time.monotonic()
        self._bar: Progress | None = None
        self._lines = enabled and not sys.stderr.isatty()
        if enabled and not self._lines:
            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.percentage:>3.0f}%"),
                TimeElapsedColumn(),
                TextColumn("left"),
                TimeRemainingColumn(),
            )
            self._bar = Progress(*columns, console=Console(stderr=True))
            self._task = self._bar.add_task(title, total=total, completed=initial)

    def advance(self, amount: int = 1) -> None:
        self._done += amount
        if self._bar is not None:
            self._bar.advance(self._task, amount)
        elif self._lines and time.monotonic() - self._last > SECONDS_BETWEEN_LINES:
            self._last = time.monotonic()
            self._print(f"{duration(self.seconds_left())} left")

    def seconds_left(self) -> float:
        fresh = self._done - self._initial
        elapsed = time.monotonic() - self._start
        return elapsed / fresh * (self._total - self._done) if fresh else float("inf")

    def _print(self, tail: str) -> None:
        done = f"{self._done}/{self._total} {self._unit} ({100 * self._done // max(self._total, 1)} %)"
        print(f"{self._title}: {done}, {tail}", file=sys.stderr, flush=True)

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
        elif self._lines and kind is None:
            self._print(f"done in {duration(time.monotonic() - self._start)}")


def duration(seconds: float) -> str:
    """Seconds as people say them: ``12 s``, ``3 min 5 s``, ``2 h 10 min``."""
    if not seconds < 1e8:
        return "unknown time"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
