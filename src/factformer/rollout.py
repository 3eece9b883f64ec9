"""The roll-out: the only one, used by training, evaluation and the command line alike."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from numbers import Integral
from typing import Any

import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from factformer.arrays import Array, Fields, Numbers
from factformer.batch import Batch
from factformer.errors import NonFinite, UserError
from factformer.problem import STEP
from factformer.surrogate import Surrogate


def rollout(
    surrogate: Surrogate,
    context: Batch | Float[Tensor, "batch context *grid channel"] | NDArray[Any] | None,
    num_frames: int,
    steps_per_call: int | None = None,
    *,
    static: Fields | None = None,
    forcing: Fields | None = None,
    parameters: Numbers | None = None,
    mask: Array | None = None,
    frame_dt: Array | float | int | None = None,
    warn: bool = True,
) -> Iterator[Float[Tensor, "batch *grid channel"]]:
    """The ``num_frames`` frames that follow ``context``, one at a time.

    ``context`` is a `Batch` or the context frames alone; for a steady problem its static fields. What else is known
    may be given beside it, fields and parameters also by name. ``forcing`` covers the context frames and all
    ``num_frames`` that follow. A surrogate with the parameter ``frame_dt`` predicts frames that are so far apart, as
    those of the context are. ``warn`` says in one line which parameters lie outside the range of the training data.

    Each call of the surrogate predicts ``steps_per_call`` frames (by default as many as it was built for),
    which then become part of the context of the next call. A steady problem yields its one frame.

    Gradients flow through all calls where the surrogate is in training mode or a tensor that is given requires them.
    Elsewhere none are kept: a surrogate of `load` or `fit` predicts any number of frames in the same memory. Frames
    that are not finite are followed by the error `NonFinite`.
    """
    problem = surrogate.problem
    if frame_dt is not None and isinstance(parameters, Mapping) and STEP in parameters:
        raise UserError("frame_dt= is given beside parameters that have it; leave one of them out")
    batch = Batch.of(problem, context, static=static, forcing=forcing, parameters=parameters, mask=mask)
    if frame_dt is not None:
        batch = at_step(batch, surrogate, frame_dt)
    weight = next(surrogate.parameters(), None)
    if weight is not None:
        batch = batch.to(weight.dtype)
    if not isinstance(num_frames, Integral):
        raise UserError(f"num_frames must be a whole number of frames, got {num_frames!r}")
    if num_frames < 1:
        raise UserError(f"num_frames must be at least 1, got {num_frames}")
    problem.require_frames(int(num_frames), "num_frames is")
    frames, num_context, of_frames = batch.context, problem.num_context_frames, problem.grid.num_axes + 3
    if frames is not None and frames.ndim == of_frames and frames.shape[1] > num_context:
        batch = batch.from_frame(frames.shape[1] - num_context, frames[:, -num_context:])
    forcing = batch.forcing
    if forcing is not None and forcing.ndim == of_frames and forcing.shape[1] < num_context + num_frames:
        raise UserError(
            f"forcing must cover {num_context} context and {num_frames} predicted frames; got {forcing.shape[1]} frames"
        )
    if warn and not surrogate.training:
        batch.require(problem, 1)
        surrogate.warn_outside_range(batch)
    steps = surrogate.marching_steps if steps_per_call is None else steps_per_call
    with_gradients = surrogate.training or any(part.requires_grad for part in batch.tensors)
    done = 0
    while done < num_frames:
        try:
            with torch.set_grad_enabled(with_gradients and torch.is_grad_enabled()):
                predicted = surrogate(batch, min(steps, num_frames - done))
        except NonFinite as error:  # after the first call the context is of its own making
            raise NonFinite(done, error.samples, error.part) from None
        yield from predicted.unbind(1)
        done += predicted.shape[1]
        if done < num_frames:
            batch = following(batch, predicted)
        elif not surrogate.training and surrogate.looks_at(predicted) and not bool(torch.isfinite(predicted).all()):
            raise NonFinite(done, (~torch.isfinite(predicted)).flatten(1).any(1).nonzero().flatten().tolist())


def at_step(batch: Batch, surrogate: Surrogate, frame_dt: Array | float | int) -> Batch:
    """The batch with ``frame_dt`` as the time between its frames, for a surrogate that was trained for several."""
    problem = surrogate.problem
    if STEP not in problem.parameters:
        raise UserError(
            f"the surrogate of {problem.name!r} was trained for frames {problem.frame_dt:g} apart alone: leave out "
            "frame_dt=, or train one for several steps with protocol.stride=[1, 2, 4]"
        )
    return batch.with_parameter(problem, STEP, frame_dt)


def following(batch: Batch, predicted: Float[Tensor, "batch frame *grid channel"]) -> Batch:
    """The batch that follows ``batch``: the predicted frames have become part of its context."""
    assert batch.context is not None
    context = torch.cat([batch.context, predicted], dim=1)[:, -batch.context.shape[1] :]
    return batch.from_frame(predicted.shape[1], context)
