"""The application: its addresses, how bodies are read, and how what goes wrong becomes one line."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from factformer import __version__
from factformer.errors import UserError
from factformer.serve.arrays import write_json, write_npz
from factformer.serve.asked import read_asked
from factformer.serve.gate import App, Gate, refusal_response
from factformer.serve.limits import MEGABYTE, Limits, Refusal
from factformer.serve.pages import docs_page, styles
from factformer.serve.predictor import Predictor

NPZ, JSON = "application/x-npz", "application/json"
PATIENCE = 2.0
"""Seconds that a body that is too long is read on and thrown away, so that the client sees why."""


def build_app(predictor: Predictor, *, token: str | None = None, local: bool = True) -> App:
    """The server of one surrogate; ``local`` says that it listens on a loopback address."""
    problem, limits = predictor.surrogate.problem, predictor.limits

    async def health(request: Request) -> Response:
        return _json({"status": "ok", "version": __version__})

    async def docs(request: Request) -> Response:
        return Response(docs_page(predictor.surrogate, limits, str(request.base_url)), media_type="text/html")

    async def assets(request: Request) -> Response:
        return Response(styles(), media_type="text/css")

    async def predict(request: Request) -> Response:
        async with predictor.place():
            body = await read_body(request, limits)
            asked = await asyncio.to_thread(read_asked, body, problem, limits)
            frames = (await predictor.predict(asked)).numpy()
            answer = {"frames": frames, "frame_dt": problem.frame_dt, "fields": [f.name for f in problem.state]}
            if JSON not in request.headers.get("accept", ""):
                return Response(await asyncio.to_thread(write_npz, answer), media_type=NPZ)
            if frames.nbytes > limits.json_bytes:
                raise Refusal(413, f"answers in JSON hold at most {limits.json_bytes // MEGABYTE} MB; accept {NPZ}")
            return Response(await asyncio.to_thread(write_json, answer), media_type=JSON)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        predictor.close()

    app = Starlette(
        routes=[
            Route("/health", health),
            Route("/docs", docs),
            Route("/assets/page.css", assets),
            Route("/predict", predict, methods=["POST"]),
        ],
        exception_handlers={
            Refusal: _refuse,
            UserError: _refuse,
            HTTPException: _refuse,
            ClientDisconnect: _hang_up,
            Exception: _fail,
        },
        lifespan=lifespan,
    )
    return Gate(app, token, local)


async def read_body(request: Request, limits: Limits) -> bytes:
    """The body, as long as it is not too long and does not take too long."""
    declared = request.headers.get("content-length", "0")
    body: list[bytes] = []
    size = 0
    too_long = not declared.isdigit() or int(declared) > limits.body_bytes
    if too_long and "expect" in request.headers:
        raise _too_long(limits)  # the client waits for our word before it sends anything
    try:
        async with asyncio.timeout(PATIENCE if too_long else limits.body_seconds):
            async for chunk in request.stream():
                size += len(chunk)
                if size > 2 * limits.body_bytes:
                    break
                too_long = too_long or size > limits.body_bytes
                if too_long:
                    body.clear()
                else:
                    body.append(chunk)
    except TimeoutError:
        if not too_long:
            raise Refusal(408, f"the body did not arrive within {limits.body_seconds:g} s") from None
    if too_long:
        raise _too_long(limits)
    return b"".join(body)


def _too_long(limits: Limits) -> Refusal:
    return Refusal(413, f"the body is longer than {limits.body_bytes // MEGABYTE} MB; send fewer samples at once")


def _json(values: dict[str, object]) -> Response:
    return Response(write_json(values), media_type=JSON)


async def _refuse(request: Request, error: Exception) -> Response:
    if isinstance(error, Refusal):
        return refusal_response(error)
    if isinstance(error, HTTPException):
        line = f"{request.method} {request.url.path}: {error.detail}; see /docs"
        return refusal_response(Refusal(error.status_code, line, error.headers or {}))
    return refusal_response(Refusal(422, str(error)))


async def _hang_up(request: Request, error: Exception) -> Response:
    return Response(status_code=400)  # nobody is there to read it


async def _fail(request: Request, error: Exception) -> Response:
    # uvicorn logs the traceback
    return refusal_response(Refusal(500, "the server failed at this request; its log says why"))
