"""Connections that do not wait for ever: a client that says nothing, or takes nothing, is hung up on."""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from factformer.serve.limits import Limits


def impatient(limits: Limits) -> type[H11Protocol]:
    """uvicorn's protocol with deadlines for the head of a request and for a client that does not read.

    uvicorn itself only limits how long a connection is kept after an answer.
    """

    class Impatient(H11Protocol):
        head_timer: asyncio.TimerHandle | None = None
        send_timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._watch_head()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._watch_head()

        def _watch_head(self) -> None:
            """Start the clock where the head of a request is due, stop it where it has come."""
            due = self.conn.their_state is h11.IDLE and not self.transport.is_closing()
            if due and self.head_timer is None:
                self.head_timer = self.loop.call_later(limits.head_seconds, self.transport.abort)
            elif not due:
                self.head_timer = _cancelled(self.head_timer)

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self.head_timer = _cancelled(self.head_timer)  # uvicorn's own clock runs from here to the next byte

        def pause_writing(self) -> None:
            super().pause_writing()
            self._watch_reader(self.transport.get_write_buffer_size())

        def resume_writing(self) -> None:
            super().resume_writing()
            self.send_timer = _cancelled(self.send_timer)

        def _watch_reader(self, left: int) -> None:
            self.send_timer = self.loop.call_later(limits.send_seconds, self._check_reader, left)

        def _check_reader(self, left_before: int) -> None:
            left = self.transport.get_write_buffer_size()
            if left >= left_before:
                self.transport.abort()
            else:
                self._watch_reader(left)

        def timeout_keep_alive_handler(self) -> None:
            if self.transport.get_write_buffer_size():
                self.transport.abort()  # closing would wait for a client that does not read
            else:
                super().timeout_keep_alive_handler()

        def connection_lost(self, exc: Exception | None) -> None:
            self.head_timer, self.send_timer = _cancelled(self.head_timer), _cancelled(self.send_timer)
            super().connection_lost(exc)

    return Impatient


def _cancelled(timer: asyncio.TimerHandle | None) -> Any:
    if timer is not None:
        timer.cancel()
    return None
