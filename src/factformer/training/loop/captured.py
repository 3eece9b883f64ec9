"""The training step as CUDA graphs: recorded once per plan from the batch to the moved weights, then replayed.

A plan says how far to march and how often to push forward, so there are as many records as kinds of updates. The
learning rate, which changes with every update, is a number on the device.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from factformer.batch import Window
from factformer.kernels.graphs import StepGraphs
from factformer.protocols import Plan
from factformer.training.loop.objective import Objective
from factformer.training.loop.step import StepParts, move_weights, set_learning_rate


class CapturedStep:
    """Does what `train_step` does, for one process on one GPU without accumulation."""

    def __init__(self, objective: Objective, parts: StepParts) -> None:
        self.objective, self.parts = objective, parts
        # Some optimisers can be recorded; another kind may ask the device, and moves the weights afterwards.
        self.whole = all("capturable" in group for group in parts.optimizer.param_groups)
        self.graphs = StepGraphs(self.compute, parts.parameters, self.finish if self.whole else None)
        self.rates: list[Tensor] = []

    @staticmethod
    def suits(parts: StepParts) -> bool:
        """Whether there is something to gain and nothing between backward pass and optimiser to lose."""
        fabric = parts.fabric
        return fabric.device.type == "cuda" and fabric.world_size == 1 and parts.accumulate == 1

    def __call__(self, parts: StepParts, window: Window, plan: Plan, learning_rate: float) -> Mapping[str, Tensor]:
        if self.whole:
            self.prepare()
        set_learning_rate(parts, learning_rate)
        num_points = window.frames[:, 0, ..., 0].numel()
        key = tuple(sorted(plan.items()))
        tensors = (window.frames, *window.known.tensors)
        loss, terms = self.graphs((key, window.known.names), *tensors, num_points=num_points, plan=plan, like=window)
        return {"loss": loss, **terms, **({} if self.whole else self.finish())}

    def prepare(self) -> None:
        """Make the optimiser one that can be recorded, and forget the records of one that was restored."""
        groups = self.parts.optimizer.param_groups
        if len(groups) == len(self.rates) and all(g["lr"] is r for g, r in zip(groups, self.rates, strict=True)):
            return
        for group in groups:
            rate = group["lr"]
            if not isinstance(rate, Tensor):
                group["lr"] = torch.tensor(rate, dtype=torch.float32, device=self.parts.fabric.device)
            group["capturable"] = True
        optimizer = self.parts.optimizer.optimizer
        optimizer._warned_capturable_if_run_uncaptured = True  # the first step of a plan is meant to run as it is
        self.rates = [group["lr"] for group in groups]
        self.graphs.clear()

    def compute(self, frames: Tensor, *known: Tensor, plan: Plan, like: Window) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss on the window that has the parts of ``like`` and these tensors: a record has places of its own."""
        objective: nn.Module = self.objective
        with self.parts.fabric.autocast():
            result: Any = objective(Window(frames, like.known.filled(known)), plan)
        loss, terms = result
        return loss, dict(terms)

    def finish(self) -> dict[str, Tensor]:
        return {"gradient_norm": move_weights(self.parts)}
