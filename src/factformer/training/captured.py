"""The training step as CUDA graphs: forward and backward pass recorded once per plan, then replayed.

A plan says how far to march and how often to push forward, so there are as many records as kinds of updates. Clipping
and the optimiser stay outside: they are a few fused launches, and the learning rate changes with every update.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from factformer.nn.graphs import StepGraphs
from factformer.protocols import Plan, Window
from factformer.training.objective import Objective
from factformer.training.step import StepParts, move_weights, set_learning_rate


class CapturedStep:
    """Does what `train_step` does, for one process on one GPU without accumulation."""

    def __init__(self, objective: Objective, parts: StepParts) -> None:
        self.objective, self.fabric = objective, parts.fabric
        self.graphs = StepGraphs(self.compute, parts.parameters)

    @staticmethod
    def suits(parts: StepParts) -> bool:
        """Whether there is something to gain and nothing between backward pass and optimiser to lose."""
        fabric = parts.fabric
        return fabric.device.type == "cuda" and fabric.world_size == 1 and parts.accumulate == 1

    def __call__(
        self, parts: StepParts, window: Window, plan: Plan, learning_rate: float
    ) -> Mapping[str, Tensor]:
        set_learning_rate(parts, learning_rate)
        tensors = [window.frames] if window.inputs is None else [window.frames, window.inputs]
        num_points = window.frames[:, 0, ..., 0].numel()
        key = tuple(sorted(plan.items()))
        loss, terms = self.graphs(key, *tensors, num_points=num_points, plan=plan)
        return {"loss": loss, **terms, "gradient_norm": move_weights(parts)}

    def compute(self, frames: Tensor, inputs: Tensor | None = None, *, plan: Plan) -> tuple[Tensor, dict[str, Tensor]]:
        objective: nn.Module = self.objective
        with self.fabric.autocast():
            result: Any = objective(frames, inputs, plan)
        loss, terms = result
        return loss, dict(terms)
