"""What the page asks for: a new flow, and what was done to it since the last picture."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Annotated

from pydantic import Field as Value
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from factformer._support.text import first_line
from factformer.batch import Batch
from factformer.config import Config
from factformer.errors import UserError
from factformer.serve.arrays import write_json, write_npz
from factformer.serve.asked import read_asked, read_body
from factformer.serve.flow import Flow
from factformer.serve.limits import Refusal
from factformer.serve.predictor import Predictor, typical_parameters
from factformer.serve.reference import find_reference
from factformer.serve.sessions import Session, Sessions
from factformer.serve.stirring import Stroke
from factformer.serve.view import choices, description, message

MOST_STROKES = 32
MOST_STEPS = 4
LONGEST = 2**16
"""Bytes of a request that says what to do."""
Share = Annotated[float, Value(ge=0, le=1)]
Slope = Annotated[float, Value(ge=-1e6, le=1e6)]


class Stir(Config):
    """A stroke as the page sends it."""

    at: Annotated[tuple[Share, ...], Value(min_length=1, max_length=2)]
    along: Annotated[tuple[Slope, ...], Value(max_length=2)] = ()
    radius: float = Value(default=0.06, ge=0.005, le=0.3)
    strength: float = Value(default=1.0, ge=-10, le=10)

    def stroke(self) -> Stroke:
        return Stroke(self.at, self.along, self.radius, self.strength)


class Doings(Config):
    """What happened since the last picture, in this order, and which picture is wanted."""

    component: int = Value(default=0, ge=0)
    plane: int = Value(default=0, ge=0)
    restart: bool = False
    parameters: dict[str, float] = Value(default_factory=dict)
    stirs: Annotated[tuple[Stir, ...], Value(max_length=MOST_STROKES)] = ()
    compare: bool | None = None
    steps: int = Value(default=0, ge=0, le=MOST_STEPS)


class Play:
    """The flows of a server's pages."""

    def __init__(self, predictor: Predictor) -> None:
        self.predictor, self.sessions = predictor, Sessions(predictor.limits)
        self.reference = find_reference(predictor.surrogate)

    def routes(self) -> list[Route]:
        return [
            Route("/play", self.predictor.placed(self.new), methods=["POST"]),
            Route("/play/{key}", self.predictor.placed(self.go_on), methods=["POST"]),
            Route("/play/{key}", self.close, methods=["DELETE"]),
            Route("/play/{key}/state.npz", self.state, methods=["GET"]),
        ]

    async def new(self, request: Request) -> Response:
        """A flow from the arrays in the body or, where there is none, a random one from ``?seed=``."""
        limits, surrogate = self.predictor.limits, self.predictor.surrogate
        async with self.predictor.in_time("a first state", "give one, as an npz archive"):
            body = await read_body(request, limits.body_bytes, limits.body_seconds)
            if body:
                asked = await asyncio.to_thread(read_asked, body, surrogate.problem, limits)
                start = asked.batch.rows(slice(1))
            else:
                start = await self._random_start(_seed(request.query_params.get("seed", "0")))
            reference = None if isinstance(self.reference, str) else self.reference
            flow = await self.predictor.compute(lambda: Flow(surrogate, start, reference))
            values = await self.predictor.compute(lambda: description(flow))
        key = self.sessions.open(flow)
        return Response(write_json({"key": key, **values}), media_type="application/json")

    async def _random_start(self, seed: int) -> Batch:
        """A flow of the equation's own, frame by frame, so that others have their turn in between."""
        if isinstance(self.reference, str):
            raise Refusal(422, f"{self.reference}: give the arrays to start from, as an npz archive")
        making = self.reference.start(seed, typical_parameters(self.predictor.surrogate))
        while (start := await self.predictor.compute(lambda: next(making))) is None:
            pass
        return start

    async def go_on(self, request: Request) -> Response:
        session = self.sessions.find(request.path_params["key"])
        body = await read_body(request, LONGEST, self.predictor.limits.body_seconds)
        doings = _doings(body)
        async with self.predictor.in_time("a step", "try a smaller bundle"), session.lock:
            picture = await self._perform(session, doings)
        return Response(picture, media_type="application/octet-stream")

    async def _perform(self, session: Session, doings: Doings) -> bytes:
        flow = session.flow
        shown = choices(flow)
        if doings.component >= len(shown) or doings.plane >= len(flow.planes):
            raise UserError(f"there are {len(shown)} components and {len(flow.planes)} planes")
        axes = len(flow.planes[doings.plane].axes)
        for stir in doings.stirs:
            if len(stir.at) != axes or len(stir.along) not in (0, axes):
                raise UserError(
                    f"a stroke on this picture has {axes} numbers in at, and as many or none in along; "
                    f"got {len(stir.at)} and {len(stir.along)}"
                )
        component, plane = shown[doings.component].component, flow.planes[doings.plane]

        def perform() -> bytes:
            if doings.restart:
                flow.restart()
            if doings.parameters:
                flow.set_parameters(doings.parameters)
            for stir in doings.stirs:
                flow.stir(component, plane, stir.stroke())
            if doings.compare is not None:
                flow.compare(doings.compare)
            began = time.perf_counter()
            for _ in range(doings.steps):
                flow.step()
            seconds = (time.perf_counter() - began) / max(1, doings.steps)
            return message(flow, doings.component, doings.plane, seconds)

        return await self.predictor.compute(perform)

    async def state(self, request: Request) -> Response:
        """What the surrogate sees now, as an archive that ``/predict`` and a new flow take."""
        session = self.sessions.find(request.path_params["key"])
        async with session.lock:
            batch = session.flow.batch
        arrays = {name: part.numpy() for name, part in zip(batch.names, batch.tensors, strict=True)}
        headers = {"Content-Disposition": 'attachment; filename="state.npz"'}
        return Response(await asyncio.to_thread(write_npz, arrays), headers=headers, media_type="application/x-npz")

    async def close(self, request: Request) -> Response:
        self.sessions.close(request.path_params["key"])
        return Response(status_code=204)


def _seed(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise Refusal(422, "seed must be a whole number of at most nine digits")
    return int(text)


def _doings(body: bytes) -> Doings:
    try:
        values = json.loads(body or b"{}")
    except (ValueError, RecursionError) as error:
        raise Refusal(400, f"the body is not valid JSON: {first_line(error)}") from None
    if not isinstance(values, dict):
        raise Refusal(400, "the body is not a JSON object")
    return Doings.parse(values)
