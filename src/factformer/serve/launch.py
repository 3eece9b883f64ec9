"""Start the server: load the bundle, take the port, serve until a signal says stop."""

from __future__ import annotations

import ipaddress
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType

from factformer._support.extras import import_extra
from factformer.bundle import load
from factformer.errors import UserError
from factformer.evaluation.timing import resolve_device
from factformer.serve.limits import Limits
from factformer.training.cut_predictions import Sharing

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Started:
    """Where a server listens, and how long one frame takes."""

    url: str
    port: int
    seconds_per_frame: float


def serve(
    bundle: str,
    *,
    host: str = LOOPBACK,
    port: int = 8000,
    token: str | None = None,
    limits: Limits | None = None,
    device: str | None = None,
    sharing: Sharing = Sharing(),  # noqa: B008 - immutable
    started: Callable[[Started], None] = lambda _: None,
) -> None:
    """Serve a bundle until SIGTERM or SIGINT; what is being predicted then is finished first.

    With ``sharing`` the processes of a cut grid answer every request together. An address that others can reach needs
    a ``token``. Port 0 takes any that is free; ``started`` is told which.
    """
    import_extra("starlette", "serve")
    uvicorn = import_extra("uvicorn", "serve")
    from factformer.serve.app import build_app
    from factformer.serve.connection import impatient
    from factformer.serve.gate import is_loopback
    from factformer.serve.predictor import Predictor, warm_up

    limits, local = limits or Limits(), is_loopback(host)
    require_token(token, host, needed=not local)
    target = resolve_device(device)
    surrogate = load(bundle).to(target)
    sharing.join(surrogate)
    listener = open_port(host, port)
    with listener, sharing.applied(surrogate):
        seconds = warm_up(surrogate, target)
        predictor = Predictor(surrogate, target, limits)
        config = uvicorn.Config(
            build_app(predictor, token=token, local=local),
            http=impatient(limits),
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            limit_concurrency=limits.connections,
            timeout_keep_alive=round(limits.head_seconds),
            timeout_graceful_shutdown=round(limits.seconds + limits.send_seconds),
        )
        logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(levelname)s: %(message)s")
        number = listener.getsockname()[1]
        name = f"[{host}]" if ":" in host else host
        started(Started(f"http://{name}:{number}/", number, seconds))
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, _already_stopped)
        uvicorn.Server(config).run(sockets=[listener])


def _already_stopped(number: int, frame: FrameType | None) -> None:
    """uvicorn raises the signal that ended it once more when all is done; that is no failure."""


def require_token(token: str | None, host: str, *, needed: bool) -> None:
    """Raise where a token is missing, or is none that a header can hold."""
    if token is None:
        if needed:
            raise UserError(f"others can reach {host}: give a token, with --token or in FACTFORMER_TOKEN")
        return
    if len(token) < 8 or not all("!" <= letter <= "~" and letter not in '";,\\' for letter in token):
        raise UserError("a token has at least 8 letters, digits or signs, without spaces, quotes, commas or semicolons")


def open_port(host: str, port: int) -> socket.socket:
    """A socket that listens; one line where the address or the port is not to be had."""
    try:
        is_new = ipaddress.ip_address(host).version == 6
    except ValueError:
        is_new = False
    # The protocol is named, as asyncio sends small packets at once only then: otherwise every answer waits 40 ms.
    listener = socket.socket(socket.AF_INET6 if is_new else socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        if os.name == "posix":  # elsewhere it would let two servers share a port
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(256)
        return listener
    except (OSError, OverflowError) as error:
        listener.close()
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"cannot listen on {host}, port {port}: {reason}; choose another with --port") from None
