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


class Objective(nn.Module):
    """One forward pass per update however often the model is called: gradients are exchanged once."""

    deviation: Tensor
    offset: Tensor | None

    def __init__(self, surrogate: Surrogate, protocol: BaseProtocol, gradient_weight: float = 0.0) -> None:
        super().__init__()
        self.surrogate = surrogate
        self.protocol = protocol
        self.gradient_weight = gradient_weight
        deviation, offset = surrogate.normalizer.yardstick()
        self.register_buffer("deviation", deviation.clone(), persistent=False)
        self.register_buffer("offset", offset, persistent=False)

    def forward(self, window: Window, plan: Plan) -> tuple[Tensor, Mapping[str, Tensor]]:
        window, deviation = window.every(plan.get("coarse", 1)), self.deviation
        if not self.gradient_weight:
            return self.protocol.loss(self.surrogate, window, plan, deviation, self.offset)
        prediction, target = self.protocol.predict(self.surrogate, window, plan)
        slices = self.protocol.problem.state_slices
        terms = metrics.grouped_relative_l2(prediction, target, slices, deviation, self.offset)
        rough = [metrics.relative_h1(prediction[..., s], target[..., s], deviation[s]).mean() for s in slices.values()]
        total = torch.stack(list(terms.values())).sum() + self.gradient_weight * torch.stack(rough).sum()
        return total, {name: term.detach() for name, term in terms.items()}

    @torch.no_grad()
    def roll_out(self, batch: Batch, num_frames: int) -> Tensor:
        """The frames after the context as they are predicted outside of training."""
        self.surrogate.eval()
        try:
            return torch.stack(list(rollout(self.surrogate, batch, num_frames)), dim=1)
        finally:
            self.surrogate.train()
