"""Asking a run to stop: SIGINT, SIGTERM and a time limit set a flag that is read between two updates."""

from __future__ import annotations

import signal
import time
from contextlib import AbstractContextManager
from types import FrameType

from factformer._support.signals import handling

_RECEIVED = "received "


def by_signal(reason: str) -> bool:
    """Whether a run that stopped for ``reason`` was asked to by a signal, and not by its time limit."""
    return reason.startswith(_RECEIVED)


class StopRequest:
    """``reason`` says why to stop, empty while there is none."""

    def __init__(self, max_minutes: float | None = None) -> None:
        self._reason = ""
        self._deadline = None if max_minutes is None else time.monotonic() + 60 * max_minutes
        self._max_minutes = max_minutes

    @property
    def reason(self) -> str:
        if not self._reason and self._deadline is not None and time.monotonic() >= self._deadline:
            self._reason = f"{self._max_minutes:g} minutes are over"
        return self._reason

    def receive(self, number: int, _frame: FrameType | None) -> None:
        """The signal handler; a second signal of the same kind ends the process at once."""
        self._reason = f"{_RECEIVED}{signal.Signals(number).name}"
        signal.signal(number, signal.SIG_DFL)


def listening(request: StopRequest) -> AbstractContextManager[None]:
    """SIGINT and SIGTERM reach ``request`` instead of ending the process; the main thread alone can do so."""
    return handling(request.receive)
