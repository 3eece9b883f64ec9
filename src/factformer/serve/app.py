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
from factformer.serve.asked import read_asked, read_body
from factformer.serve.gate import App, Gate, refusal_response
from factformer.serve.limits import MEGABYTE, Refusal
from factformer.serve.pages import docs_page, play_page, script, styles
from factformer.serve.play import Play
from factformer.serve.predictor import Predictor

NPZ, JSON = "application/x-npz", "application/json"


def build_app(predictor: Predictor, *, token: str | None = None, local: bool = True) -> App:
    """The server of one surrogate; ``local`` says that it listens on a loopback address."""
    problem, limits, play = predictor.surrogate.problem, predictor.limits, Play(predictor)

    async def health(request: Request) -> Response:
        return _json({"status": "ok", "version": __version__})

    async def docs(request: Request) -> Response:
        return Response(docs_page(predictor.surrogate, limits, str(request.base_url)), media_type="text/html")

    async def page(request: Request) -> Response:
        return Response(play_page(predictor.surrogate, play.reference), media_type="text/html")

    async def style_sheet(request: Request) -> Response:
        return Response(styles(), media_type="text/css")

    async def page_script(request: Request) -> Response:
        return Response(script(), media_type="text/javascript")

    async def predict(request: Request) -> Response:
        body = await read_body(request, limits.body_bytes, limits.body_seconds)
        asked = await asyncio.to_thread(read_asked, body, problem, limits)
        frames = (await predictor.predict(asked)).numpy()
        answer = {
            "frames": frames,
            "frame_dt": asked.batch.frame_dt(problem),
            "fields": [f.name for f in problem.state],
        }
        if asked.batch.parameters is not None:  # after the prediction, which has checked them
            outside = predictor.surrogate.normalizer.outside_range(asked.batch.parameters, problem)
            answer |= {"warning": f"{outside}, the range of the training data"} if outside else {}
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
            Route("/", page),
            Route("/assets/page.css", style_sheet),
            Route("/assets/page.js", page_script),
            Route("/predict", predictor.placed(predict), methods=["POST"]),
            *play.routes(),
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
