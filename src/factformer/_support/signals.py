"""Signals of the operating system, handled otherwise for a while."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

STOPPING = (signal.SIGINT, signal.SIGTERM)
"""What ends a process: Ctrl-C, and the wish of a cluster or a container."""
Handler = Callable[[int, FrameType | None], None] | signal.Handlers


@contextmanager
def handling(handler: Handler, numbers: tuple[signal.Signals, ...] = STOPPING) -> Iterator[None]:
    """These signals go to ``handler`` inside. The main thread alone can do so; in another one nothing changes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)
