"""One update: forward, backward and the optimiser on one batch. Nothing here waits for the device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from lightning_fabric import Fabric
from torch import Tensor, nn

from factformer.batch import Window
from factformer.protocols import Plan


@dataclass(frozen=True)
class StepParts:
    """What a step works on: the objective and optimiser as Fabric wraps them, and how they are used."""

    fabric: Fabric
    objective: Any
    optimizer: Any
    parameters: list[nn.Parameter]
    clip: float | None
    accumulate: int


Step = Callable[[StepParts, Window, Plan, float], Mapping[str, Tensor]]
"""One update: parts, batch, plan and learning rate in; loss, its terms and the gradient's norm out."""


def train_step(parts: StepParts, window: Window, plan: Plan, learning_rate: float) -> Mapping[str, Tensor]:
    """Move the weights once; the loss, its terms and the norm of the gradient, all still on the device."""
    set_learning_rate(parts, learning_rate)
    totals: dict[str, Tensor] = {}
    size = len(window.frames) // parts.accumulate
    for index in range(parts.accumulate):
        rows = slice(index * size, (index + 1) * size)
        with parts.fabric.no_backward_sync(parts.objective, enabled=index < parts.accumulate - 1):
            loss, terms = parts.objective(window.rows(rows) if parts.accumulate > 1 else window, plan)
            parts.fabric.backward(loss / parts.accumulate)
        for name, value in {"loss": loss.detach(), **terms}.items():
            share = value / parts.accumulate
            totals[name] = totals[name] + share if name in totals else share
    totals["gradient_norm"] = move_weights(parts)
    return totals


def set_learning_rate(parts: StepParts, learning_rate: float) -> None:
    for group in parts.optimizer.param_groups:
        if isinstance(group["lr"], Tensor):  # a recorded step reads it from there
            group["lr"].fill_(learning_rate)
        else:
            group["lr"] = learning_rate


def move_weights(parts: StepParts) -> Tensor:
    """Clip the gradients, take the optimiser's step, forget them; returns their norm before the clipping."""
    limit = float("inf") if parts.clip is None else parts.clip
    norm: Any = nn.utils.clip_grad_norm_(parts.parameters, limit)
    parts.optimizer.step()
    parts.optimizer.zero_grad()
    whole: Tensor = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
    return whole
