"""Predictions for many clients: one thread computes, a frame of each roll-out in turn."""

from __future__ import annotations

import asyncio
import math
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import TypeVar

import torch
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from torch import Tensor

from factformer.batch import Batch
from factformer.evaluation.memory import memory_explained
from factformer.problem import STEP
from factformer.rollout import rollout
from factformer.serve.asked import Asked
from factformer.serve.limits import Limits, Refusal, busy
from factformer.serve.reference import whole_parameters
from factformer.surrogate import Surrogate

T = TypeVar("T")
Handler = Callable[[Request], Awaitable[Response]]
POINTS_AT_ONCE = 2**16
"""Points of the samples that one call of the surrogate predicts: more at once take memory and save no time."""
QUICK = 20.0
"""Seconds of a first frame below which it is worth trying with one thread."""


class Endpoint:
    """A handler that answers one request at each of a predictor's places."""

    def __init__(self, predictor: Predictor, handler: Handler) -> None:
        self.predictor, self.handler = predictor, handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self.predictor.place():
            response = await self.handler(Request(scope, receive, send))
            await response(scope, receive, send)


class Predictor:
    """A surrogate, the thread that it computes in, and places for requests that are served or wait.

    Frames of several roll-outs take turns, so that a long one does not keep others waiting.
    """

    def __init__(self, surrogate: Surrogate, device: torch.device, limits: Limits) -> None:
        self.surrogate, self.device, self.limits = surrogate.to(device), device, limits
        self.taken = 0
        self._turns = asyncio.Semaphore(limits.running)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="factformer-predictor")

    def placed(self, handler: Handler) -> Endpoint:
        """An endpoint whose requests hold a place until their answer has been taken: answers need memory too."""
        return Endpoint(self, handler)

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """A place from the arrival of a request to its answer; refused where all are taken."""
        if self.taken >= self.limits.running + self.limits.waiting:
            raise busy(f"{self.taken} requests are waiting already; try again in a moment")
        self.taken += 1
        try:
            yield
        finally:
            self.taken -= 1

    async def compute(self, function: Callable[[], T]) -> T:
        """``function()`` in the computing thread, without gradients."""

        def call() -> T:
            with torch.no_grad(), memory_explained("send fewer samples, or a coarser grid"):
                return function()

        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    async def predict(self, asked: Asked) -> Tensor:
        """The frames ``(batch, frame, *grid, channel)`` that were asked for; refused where they take too long."""
        async with self.in_time("the prediction", "ask for fewer frames or samples"), self._turns:
            samples = [await self._roll_out(part, asked.num_frames) for part in self._parts(asked.batch)]
            return samples[0] if len(samples) == 1 else torch.cat(samples)

    @asynccontextmanager
    async def in_time(self, what: str, advice: str) -> AsyncIterator[None]:
        """Give up what is done in here when it has taken as long as a request may."""
        try:
            async with asyncio.timeout(self.limits.seconds):
                yield
        except TimeoutError:
            raise Refusal(504, f"{what} takes longer than {self.limits.seconds:g} s; {advice}") from None

    def _parts(self, batch: Batch) -> Iterator[Batch]:
        points = self.surrogate.problem.grid.num_points
        return batch.split(max(1, POINTS_AT_ONCE // points)) if batch.names else iter([batch])

    async def _roll_out(self, batch: Batch, num_frames: int) -> Tensor:
        steps = rollout(self.surrogate, batch.to(self.device), num_frames)
        frames = []
        while (frame := await self.compute(lambda: next(steps, None))) is not None:
            frames.append(frame.float().cpu())
        return torch.stack(frames, dim=1)

    def close(self) -> None:
        """Let the frame that is computed now finish."""
        self._thread.shutdown(cancel_futures=True)


@torch.no_grad()
def warm_up(surrogate: Surrogate, device: torch.device) -> float:
    """Seconds of one frame, measured after a first call.

    On a CPU the number of threads is the quicker one of one and all: small grids gain nothing from several, and on a
    busy machine they wait for each other.
    """
    batch = blank_batch(surrogate).to(device)

    def call() -> float:
        began = time.perf_counter()
        next(iter(rollout(surrogate, batch, 1))).cpu()
        return time.perf_counter() - began

    def median() -> float:
        return statistics.median(call() for _ in range(3 if first < QUICK / 10 else 1))

    first = call()
    everything = torch.get_num_threads()
    if device.type != "cpu" or everything == 1 or first > QUICK:
        return median()
    with_all = median()
    torch.set_num_threads(1)
    alone = median()
    if with_all < alone:
        torch.set_num_threads(everything)
    return min(with_all, alone)


def blank_batch(surrogate: Surrogate) -> Batch:
    """One sample of average values on the bundle's grid."""
    problem, normalizer = surrogate.problem, surrogate.normalizer
    shape, frames = problem.grid.shape, problem.num_context_frames

    def filled(kind: str, *leading: int) -> Tensor:
        mean: Tensor = getattr(normalizer, f"{kind}_mean").cpu()
        return mean.expand(1, *leading, *shape, len(mean)).clone()

    return Batch(
        context=filled("context", frames) if frames else None,
        static=filled("static") if problem.static else None,
        forcing=filled("forcing", frames + 1) if problem.forcing else None,
        parameters=torch.tensor([list(typical_parameters(surrogate).values())]) if problem.parameters else None,
        mask=torch.ones(1, *shape, dtype=torch.bool) if problem.masked else None,
    )


def typical_parameters(surrogate: Surrogate) -> dict[str, float]:
    """The mean of each parameter over the training data: of its logarithm where it is on a log scale.

    The closest whole number stands for the mean of whole numbers.
    """
    problem, normalizer = surrogate.problem, surrogate.normalizer
    if normalizer.parameters_mean is None or normalizer.parameters_log is None:
        return {}
    means, logs = normalizer.parameters_mean.tolist(), normalizer.parameters_log.tolist()
    values = [math.exp(mean) if log else mean for mean, log in zip(means, logs, strict=True)]
    typical = dict(zip(problem.parameters, values, strict=True))
    typical |= {name: float(round(typical[name])) for name in whole_parameters(surrogate)}
    return typical | ({STEP: problem.frame_dt} if STEP in typical else {})
