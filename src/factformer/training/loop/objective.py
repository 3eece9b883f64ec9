"""Surrogate and protocol as one module from a batch to its loss: what Fabric wraps and the step runs."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from factformer import metrics
from factformer.batch import Batch, Window
from factformer.protocols import BaseProtocol, Plan
from factformer.rollout import rollout
from factformer.surrogate import Surrogate
from factformer.training.loop.own import NOTHING, Own

GRADIENT = "gradient_loss"


class Objective(nn.Module):
    """One forward pass per update however often the model is called: gradients are exchanged once."""

    deviation: Tensor
    offset: Tensor | None

    def __init__(
        self, surrogate: Surrogate, protocol: BaseProtocol, gradient_loss: float = 0.0, own: Own = NOTHING
    ) -> None:
        super().__init__()
        self.own = own
        self.surrogate = surrogate
        self.protocol = protocol
        self.slices = protocol.problem.state_slices
        self.weights = {GRADIENT: gradient_loss} if gradient_loss else {}
        """Terms besides the errors of the fields, by name, and what they are multiplied by."""
        deviation, offset = surrogate.normalizer.loss_scale()
        self.register_buffer("deviation", deviation.clone(), persistent=False)
        self.register_buffer("offset", offset, persistent=False)

    @property
    def terms(self) -> list[str]:
        """The names of what the loss is made of, in the order of the log."""
        return [*self.slices, *self.weights, *self.own.loss_terms]

    def forward(self, window: Window, plan: Plan) -> tuple[Tensor, Mapping[str, Tensor]]:
        """The loss of a batch, and its terms before they are weighted, detached."""
        every = window.every(plan.get("coarse", 1))
        prediction, target = self.protocol.predict(self.surrogate, every, plan)
        return self.loss(prediction, target, every.known.mask)

    def loss(
        self, prediction: Tensor, target: Tensor, mask: Tensor | None = None
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Sum over field groups of the relative L2 error on the joint window, and the weighted further terms.

        The deviation of the channels keeps windows in check whose truth is zero (`metrics.LEAST`); an offset of theirs
        is not part of what errors are relative to. With a mask the points inside alone count.
        """
        part = self.surrogate.part
        terms = metrics.grouped_relative_l2(prediction, target, self.slices, self.deviation, self.offset, mask, part)
        total = torch.stack(list(terms.values())).sum()
        if GRADIENT in self.weights:
            terms[GRADIENT] = self.gradient_loss(prediction, target, mask)
        for name, weight in self.weights.items():
            total = total + weight * terms[name]
        for name, term in self.own.terms(prediction, target).items():
            terms[name] = term
            total = total + term
        return total, {name: term.detach() for name, term in terms.items()}

    def gradient_loss(self, prediction: Tensor, target: Tensor, mask: Tensor | None = None) -> Tensor:
        """Sum over field groups of the relative error of the differences between neighbouring points."""
        errors = [
            metrics.relative_h1(prediction[..., s], target[..., s], self.deviation[s], mask).mean()
            for s in self.slices.values()
        ]
        return torch.stack(errors).sum()

    @torch.no_grad()
    def roll_out(self, batch: Batch, num_frames: int) -> Tensor:
        """The frames after the context as they are predicted outside of training."""
        self.surrogate.eval()
        try:
            return torch.stack(list(rollout(self.surrogate, batch, num_frames, warn=False)), dim=1)
        finally:
            self.surrogate.train()
