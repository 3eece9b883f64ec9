"""The flows of all pages: each browser has its own, a bounded number of them, for a bounded time."""

from __future__ import annotations

import asyncio
import secrets
import time
from dataclasses import dataclass, field

from factformer.serve.flow import Flow
from factformer.serve.limits import Limits, Refusal, busy

LEFT = 60.0
"""Seconds without a request after which a flow makes room for another one where there is none left."""
MEMORY = 2**30
"""Bytes that the frames of all flows may take."""
COPIES = 4
"""Of a context that a flow holds at most: the start, as it is now, and on its way."""


@dataclass
class Session:
    """A flow, when it was last asked for, and a lock: its requests are served one after the other."""

    flow: Flow
    used: float
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class Sessions:
    """Flows by a key that only their page knows."""

    def __init__(self, limits: Limits) -> None:
        self.limits, self._all = limits, dict[str, Session]()

    def __len__(self) -> int:
        return len(self._all)

    def open(self, flow: Flow) -> str:
        """Keep a new flow; its key. Refused where every place is taken by one that is in use."""
        self._expire(self.limits.session_seconds)
        size = sum(part.numel() * part.element_size() for part in flow.start.tensors)
        most = max(1, min(self.limits.sessions, MEMORY // (COPIES * size)))
        if len(self._all) >= most:
            self._expire(min(LEFT, self.limits.session_seconds), most=1)
        if len(self._all) >= most:
            raise busy(f"{len(self._all)} pages are open already; close one or try again later")
        key = secrets.token_urlsafe(16)
        self._all[key] = Session(flow, time.monotonic())
        return key

    def find(self, key: str) -> Session:
        self._expire(self.limits.session_seconds)
        session = self._all.get(key)
        if session is None:
            raise Refusal(404, "this flow is no longer kept; load the page again")
        session.used = time.monotonic()
        return session

    def close(self, key: str) -> None:
        self._all.pop(key, None)

    def _expire(self, seconds: float, most: int | None = None) -> None:
        """Drop flows that nobody asked for in so many seconds, the oldest first, ``most`` of them."""
        now = time.monotonic()
        old = sorted((item.used, key) for key, item in self._all.items() if now - item.used > seconds)
        for _, key in old[:most]:
            del self._all[key]
