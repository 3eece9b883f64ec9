"""A user's own parts of a training: terms of the loss, metrics of the validation, and what is called after updates."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from factformer.errors import UserError
from factformer.problem import Problem
from factformer.surrogate import Surrogate

LossTerm = Callable[[Tensor, Tensor], Tensor]
"""``f(prediction, target)``: one number to make small, from frames ``(batch, frame, *grid, channel)`` in physical
units."""
Metric = Callable[[Tensor, Tensor, Problem], Tensor]
"""``f(prediction, target, problem)``: one number per sample, as `factformer.evaluate` takes them."""
Callback = Callable[[int, Surrogate], bool | None]
"""``f(update, surrogate)`` after each update; ``True`` ends the training."""


@dataclass(frozen=True)
class Own:
    """Plain functions that a run takes along; they are no part of its configuration."""

    loss_terms: Mapping[str, LossTerm] = field(default_factory=dict)
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    callbacks: tuple[Callback, ...] = ()

    def check(self, problem: Problem, *, validated: bool) -> None:
        """Raise where a part is no function, or would take a name of ours."""
        taken = {"loss", "update", "gradient_loss", "validation", *problem.state_slices}
        for what, functions in (("loss_terms", self.loss_terms), ("metrics", self.metrics)):
            for name, function in functions.items():
                if not isinstance(name, str) or not name or not callable(function):
                    raise UserError(
                        f'{what}= takes functions by name, such as {{"mass": f}}; got {name!r}: {function!r}'
                    )
                if name in taken:
                    raise UserError(f"{what}: {name!r} is a name of ours; give yours another one")
        for callback in self.callbacks:
            if not callable(callback):
                raise UserError(f"callbacks= takes functions f(update, surrogate), got {callback!r}")
        if self.metrics and not validated:
            raise UserError("metrics= are computed where the run is validated: give valid=, the trajectories for that")

    def terms(self, prediction: Tensor, target: Tensor) -> dict[str, Tensor]:
        """The value of each term of the loss."""
        found = {}
        for name, function in self.loss_terms.items():
            value = function(prediction, target)
            if not isinstance(value, Tensor) or value.ndim:
                got = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
                raise UserError(f"loss term {name!r} must give one number as a tensor without axes; got {got}")
            found[name] = value
        return found

    def measured(self, prediction: Tensor, target: Tensor, problem: Problem) -> dict[str, float]:
        """The mean of each metric over the samples."""
        found = {}
        for name, function in self.metrics.items():
            value = function(prediction, target, problem)
            if not isinstance(value, Tensor) or value.shape != target.shape[:1]:
                got = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
                raise UserError(f"metric {name!r} must give one number per sample, shape ({len(target)},); got {got}")
            found[name] = float(value.double().mean())
        return found

    def wants_end(self, update: int, surrogate: Surrogate) -> bool:
        """Call what is to be called after an update; whether one of them ends the training."""
        with torch.no_grad():
            answers = [callback(update, surrogate) for callback in self.callbacks]  # each of them is called
        return True in answers


NOTHING = Own()
