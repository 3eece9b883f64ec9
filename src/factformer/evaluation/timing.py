"""Roll-outs under a precision, and the time and memory they take."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from factformer.batch import Batch
from factformer.errors import NonFinite, UserError
from factformer.evaluation.memory import peak_memory
from factformer.pdes import require_device
from factformer.rollout import rollout
from factformer.surrogate import Surrogate

PRECISIONS = ("32-true", "bf16-mixed")


@dataclass(frozen=True)
class Cost:
    """Median seconds and peak memory of one call."""

    seconds: float
    peak_memory_mb: float


def resolve_device(device: torch.device | str | None) -> torch.device:
    """The named device, or a GPU where there is one; a GPU that is not there is a user's mistake."""
    target = device or ("cuda" if torch.cuda.is_available() else "cpu")
    require_device(target)
    return torch.device(target)


def autocast(device: torch.device, precision: str) -> contextlib.AbstractContextManager[object]:
    """The autocast region of a precision name."""
    if "16" in precision and "bf16" not in precision:
        raise UserError(f"{precision!r} is float16, whose range attention leaves; use bf16-mixed or 32-true")
    if precision not in PRECISIONS:
        raise UserError(f"unknown precision {precision!r}: choose one of {', '.join(PRECISIONS)}")
    if precision == "32-true":
        return contextlib.nullcontext()
    return torch.autocast(device.type, torch.bfloat16)


def roll_out(
    surrogate: Surrogate, batch: Batch, num_frames: int, *, precision: str
) -> Float[Tensor, "batch frame *grid channel"]:
    """All frames of `factformer.rollout` in one tensor, without gradients; NaN where a sample diverged."""
    frames: list[Tensor] = []
    try:
        with torch.no_grad(), autocast(batch.device, precision):
            for frame in rollout(surrogate, batch, num_frames, warn=False):
                frames.append(frame.float())
    except NonFinite as error:
        if error.frame == 0:  # the context itself
            raise
        if batch.size > 1:
            samples = batch.split(1)
            return torch.cat([roll_out(surrogate, one, num_frames, precision=precision) for one in samples])
        frames += [torch.full_like(frames[0], float("nan"))] * (num_frames - len(frames))
    return torch.stack(frames, dim=1)


def inference_cost(surrogate: Surrogate, batch: Batch, num_frames: int, *, precision: str) -> Cost:
    """Time and peak memory of rolling out a batch."""

    def call() -> None:
        with torch.no_grad(), autocast(batch.device, precision):
            for _ in rollout(surrogate, batch, num_frames, warn=False):
                pass

    with torch.no_grad(), autocast(batch.device, precision):
        next(
            iter(rollout(surrogate, batch.rows(slice(1)), 1, warn=False))
        )  # what the first call of all keeps is not this batch's
    with peak_memory(batch.device) as peak:
        call()
    call()  # on a GPU repeated calls are recorded the second time and replayed from then on
    return Cost(median_seconds(call, batch.device), peak.megabytes)


def median_seconds(
    call: Callable[[], object], device: torch.device, *, repeats: int = 5, budget_seconds: float = 5.0
) -> float:
    """Median time of ``call``, of up to ``repeats`` runs or as many as begin within the budget; at least one.

    The caller has run it before: the first call compiles, allocates and fills caches.
    """
    seconds: list[float] = []
    began = time.perf_counter()
    while not seconds or (len(seconds) < repeats and time.perf_counter() - began < budget_seconds):
        synchronize(device)
        start = time.perf_counter()
        call()
        synchronize(device)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
