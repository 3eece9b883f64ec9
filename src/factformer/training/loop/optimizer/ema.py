"""Exponential moving average of the weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor


class WeightAverage:
    """``a ← d a + (1 - d) w`` after every update, with ``d = min(decay, (1 + u) / (10 + u))``.

    The growing decay lets the average forget the random start quickly. Sharded parameters are averaged shard
    by shard: each process holds the average of what it holds of the weights.
    """

    def __init__(self, parameters: Mapping[str, Tensor], decay: float) -> None:
        self.decay = decay
        self.parameters = dict(parameters)
        self.average = {name: parameter.detach().clone() for name, parameter in self.parameters.items()}

    @torch.no_grad()
    def update(self, update: int) -> None:
        """Take in the weights after ``update`` updates."""
        decay = min(self.decay, (1 + update) / (10 + update))
        torch._foreach_lerp_(_local(self.average), _local(self.parameters), 1.0 - decay)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The average in place of the weights, for validation and for the bundle; puts the weights back."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        for weight, average in zip(_local(self.parameters), _local(self.average), strict=True):
            kept = weight.clone()
            weight.copy_(average)
            average.copy_(kept)


def _local(tensors: Mapping[str, Tensor]) -> list[Tensor]:
    return [t.to_local() if hasattr(t, "to_local") else t.detach() for t in tensors.values()]
