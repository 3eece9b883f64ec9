"""Surrogate and protocol as one module from a batch to its loss: what Fabric wraps and the step runs."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from factformer.protocols import BaseProtocol, Plan, Window
from factformer.rollout import rollout
from factformer.surrogate import Surrogate


class Objective(nn.Module):
    """One forward pass per update however often the model is called: gradients are exchanged once."""

    def __init__(self, surrogate: Surrogate, protocol: BaseProtocol) -> None:
        super().__init__()
        self.surrogate = surrogate
        self.protocol = protocol

    def forward(
        self, frames: Tensor, inputs: Tensor | None, plan: Plan
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        return self.protocol.loss(self.surrogate, Window(frames, inputs), plan)

    @torch.no_grad()
    def roll_out(self, context: Tensor, num_frames: int) -> Tensor:
        """The frames after the context as they are predicted outside of training."""
        self.surrogate.eval()
        try:
            return torch.stack(list(rollout(self.surrogate, context, num_frames)), dim=1)
        finally:
            self.surrogate.train()
