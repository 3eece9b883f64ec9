"""Surrogate and protocol as one module from a batch to its loss: what Fabric wraps and the step runs."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from factformer.protocols import BaseProtocol, Plan, Window
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
