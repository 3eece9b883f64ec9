"""Layers whose execution is chosen from outside.

A layer is written in plain PyTorch. Someone who knows the device and the number format, such as `factformer.engine`,
may give it another way to compute the same: ``layer.implementation = function``. The function takes the layer and the
arguments of its stage and returns what `plain` returns. It is no part of the state of the layer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn


class Stage(nn.Module):
    """A layer with an exchangeable implementation; ``plain`` is the reference implementation."""

    implementation: Callable[..., Any] | None = None
    plain: Callable[..., Any]

    def execute(self, *arguments: Any) -> Any:
        """``plain(*arguments)``, as the implementation computes it where one was given."""
        if self.implementation is None:
            return self.plain(*arguments)
        return self.implementation(self, *arguments)


class Network(Stage):
    """A whole network of stages; its implementation surrounds the call, for example with a recorded graph."""
