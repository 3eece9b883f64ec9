"""The roll-out: the only one, used by training, evaluation and the command line alike."""

from __future__ import annotations

from collections.abc import Iterator
from numbers import Integral
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from factformer.errors import NonFinite, UserError
from factformer.surrogate import Surrogate


def rollout(
    surrogate: Surrogate,
    context: Float[Tensor, "batch context *grid channel"] | NDArray[Any],
    num_frames: int,
    steps_per_call: int | None = None,
) -> Iterator[Float[Tensor, "batch *grid channel"]]:
    """The ``num_frames`` frames that follow ``context``, one at a time.

    Each call of the surrogate predicts ``steps_per_call`` frames (by default as many as it was built for),
    which then become part of the context of the next call. Gradients flow through all calls; wrap the loop in
    ``torch.no_grad()`` where they are not wanted. A steady problem yields its one frame.
    """
    problem = surrogate.problem
    if not isinstance(context, Tensor):
        context = torch.as_tensor(np.ascontiguousarray(context))
    if context.is_complex():
        raise UserError("the context holds complex numbers; give their parts as two channels")
    weight = next(surrogate.parameters(), None)
    if weight is not None and context.dtype != weight.dtype:
        context = context.to(weight.dtype)
    if not isinstance(num_frames, Integral):
        raise UserError(f"num_frames must be a whole number of frames, got {num_frames!r}")
    if num_frames < 1 or (problem.steady and num_frames != 1):
        raise UserError(f"num_frames must be at least 1, and 1 for a steady problem; got {num_frames}")
    if context.ndim >= 2 and context.shape[1] > problem.num_context_frames:
        context = context[:, -problem.num_context_frames :]
    steps = surrogate.marching_steps if steps_per_call is None else steps_per_call
    done = 0
    while done < num_frames:
        try:
            predicted = surrogate(context, min(steps, num_frames - done))
        except NonFinite as error:  # after the first call the context is of its own making
            raise NonFinite(done, error.samples) from None
        yield from predicted.unbind(1)
        done += predicted.shape[1]
        if done < num_frames:
            context = torch.cat([context, predicted], dim=1)[:, -problem.num_context_frames :]
