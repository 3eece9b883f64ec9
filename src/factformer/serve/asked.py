"""What a request holds: its body, and the batch and number of frames that it asks for, within the limits."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from factformer._support.files import size_text
from factformer._support.text import cut
from factformer.arrays import joined
from factformer.batch import Batch
from factformer.config import unknown_name
from factformer.errors import UserError
from factformer.problem import Problem
from factformer.serve.arrays import Named, read_arrays
from factformer.serve.limits import Limits, Refusal

if TYPE_CHECKING:
    from starlette.requests import Request

NUM_FRAMES = "num_frames"
NAMES = (*Batch._fields, NUM_FRAMES)
PATIENCE = 2.0
"""Seconds that a body that is too long is read on and thrown away, so that the client sees why."""


@dataclass(frozen=True)
class Asked:
    """A batch to predict from and how many frames."""

    batch: Batch
    num_frames: int = 1


async def read_body(request: Request, most_bytes: int, seconds: float) -> bytes:
    """The body, as long as it is not too long and does not take too long."""
    declared = request.headers.get("content-length", "0")
    body: list[bytes] = []
    size, too_long = 0, not declared.isdigit() or int(declared) > most_bytes
    if too_long and "expect" in request.headers:
        raise _too_long(most_bytes)  # the client waits for our word before it sends anything
    try:
        async with asyncio.timeout(PATIENCE if too_long else seconds):
            async for chunk in request.stream():
                size += len(chunk)
                if size > 2 * most_bytes:
                    break
                too_long = too_long or size > most_bytes
                if too_long:
                    body.clear()
                else:
                    body.append(chunk)
    except TimeoutError:
        if not too_long:
            raise Refusal(408, f"the body did not arrive within {seconds:g} s") from None
    if too_long:
        raise _too_long(most_bytes)
    return b"".join(body)


def _too_long(most_bytes: int) -> Refusal:
    return Refusal(413, f"the body is longer than {size_text(most_bytes)}; send fewer samples at once")


def read_asked(body: bytes, problem: Problem, limits: Limits) -> Asked:
    """What the body of a request asks for: a batch shaped for the problem; the surrogate checks its numbers."""
    named = read_arrays(body, limits)
    for name in named:
        if name not in NAMES:
            raise unknown_name("array", name, NAMES)
    num_frames = _whole_number(named.pop(NUM_FRAMES, np.asarray(1)))
    if not 1 <= num_frames <= limits.frames:
        raise Refusal(422, f"num_frames must be 1 to {limits.frames}, got {num_frames}")
    asked = Asked(batch_of(problem, named), num_frames)
    asked.batch.require(problem, num_frames)
    if not asked.batch.size:
        raise UserError(f"{asked.batch.names[0]} holds no samples; send at least one")
    _require_size(asked, problem, limits)
    return asked


def batch_of(problem: Problem, named: Named) -> Batch:
    """The batch that arrays by name are the parts of."""
    for name, part in named.items():
        if isinstance(part, dict) and not part and name not in ("context", *problem.parts):
            raise UserError(f"{problem.name!r} has no {name}; leave it out")
    given: dict[str, Any] = dict(named)
    context = given.pop("context", None)
    if isinstance(context, dict):
        context = joined(context, problem.state, problem.grid.num_axes + 2, "context")
    if not problem.num_context_frames and context is not None:
        raise UserError(f"{problem.name!r} has no context; leave it out")
    if isinstance(given.get("mask"), dict):
        raise UserError("mask is one array, not several by name")
    return Batch.of(problem, context, **given)


def _whole_number(value: Any) -> int:
    if not isinstance(value, np.ndarray) or value.size != 1 or value.dtype.kind not in "iu":
        raise Refusal(422, f"{NUM_FRAMES} must be one whole number, got {cut(value)}")
    return int(value.reshape(()))


def _require_size(asked: Asked, problem: Problem, limits: Limits) -> None:
    """Raise where the answer would be too long or the grid too fine."""
    points = math.prod(asked.batch.seen.shape[2:-1])
    if points > max(limits.points, problem.grid.num_points):
        raise Refusal(413, f"the grid has {points} points; send at most {max(limits.points, problem.grid.num_points)}")
    num_bytes = 4 * asked.batch.size * asked.num_frames * points * problem.num_state_channels
    if num_bytes > limits.answer_bytes:
        most = size_text(limits.answer_bytes)
        raise Refusal(
            413, f"the answer would take {size_text(num_bytes)}, more than {most}; ask for fewer frames or samples"
        )
