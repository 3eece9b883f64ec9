"""What the server takes and how long it waits, and how it says no."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from factformer._support.text import printable, shortened

MEGABYTE = 10**6
LONGEST_LINE = 500


@dataclass(frozen=True)
class Limits:
    """Bounds on what one client, and all of them together, can ask for."""

    body_bytes: int = 64 * MEGABYTE
    answer_bytes: int = 128 * MEGABYTE
    json_bytes: int = 16 * MEGABYTE
    """Of numbers as text, which take a lot more memory when they are read or written."""
    frames: int = 1000
    points: int = 2**18
    """Of a sample's grid, where it is not that of the bundle."""
    seconds: float = 60.0
    """From the arrival of a request to its answer."""
    running: int = 4
    """Predictions in progress: their frames take turns."""
    waiting: int = 12
    """Requests beyond these that wait for their turn; more are told to come again."""
    head_seconds: float = 10.0
    """For the head of a request to arrive, and for a kept connection to ask again."""
    body_seconds: float = 20.0
    send_seconds: float = 20.0
    """Within which a client must take at least some of its answer."""
    connections: int = 128
    sessions: int = 16
    """Flows that are kept for pages."""
    session_seconds: float = 900.0
    """That a flow is kept after its page asked for the last time."""


@dataclass
class Refusal(Exception):  # noqa: N818 - says what happened
    """A request that is not served: a status of HTTP, and one line that says what to do."""

    status: int
    line: str
    headers: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.line


def busy(line: str) -> Refusal:
    """No room now; the client may come again."""
    return Refusal(503, line, {"Retry-After": "1"})


def one_line(text: str) -> str:
    """``text`` as an answer may hold it: one line, not a long one, without control characters."""
    return shortened(printable(" ".join(text.split())), LONGEST_LINE)
