"""Latent marching: k frames per call, a curriculum 1 → k, and pushforward (§3.2 of the paper).

With n marching steps and p gradient-free calls, the model is called p times on its own output and once more;
the loss is on the n frames of that last call, and gradients flow through that call only. With ``calls`` above one,
that many calls follow the gradient-free ones, and gradients flow through all of them.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from factformer.batch import Window
from factformer.protocols._base import BaseProtocol, Frames, Plan
from factformer.rollout import following, rollout

if TYPE_CHECKING:
    from factformer.surrogate import Surrogate


def marching_steps(progress: float, final: int, curriculum: float) -> int:
    """``min(k, 1 + ⌊(k - 1) · progress / curriculum⌋)``: k when the curriculum ends."""
    if curriculum <= 0 or progress >= curriculum:
        return final
    return min(final, 1 + math.floor((final - 1) * progress / curriculum))


def pushforward_calls(update: int, progress: float, count: int, begin: float, every: int) -> int:
    """``count`` gradient-free calls at every ``every``-th update from ``begin`` on, none otherwise."""
    return count if progress >= begin and update % every == 0 else 0


class Protocol(BaseProtocol):
    """k frames per call, loss on the last of p + 1 calls."""

    @property
    def steps_per_call(self) -> int:
        return self.config.marching_steps

    @property
    def num_target_frames(self) -> int:
        return self.config.marching_steps * (self.config.pushforward + self.config.calls)

    def plan(self, update: int, progress: float) -> Plan:
        config = self.config
        late = {"calls": config.calls if progress >= config.calls_from else 1} if config.calls > 1 else {}
        return {
            **late,
            "marching_steps": marching_steps(progress, config.marching_steps, config.curriculum),
            "pushforward": pushforward_calls(
                update, progress, config.pushforward, config.pushforward_from, config.pushforward_every
            ),
        }

    def predict(self, surrogate: Surrogate, window: Window, plan: Plan) -> tuple[Frames, Frames]:
        num_context, num_steps = self.problem.num_context_frames, plan["marching_steps"]
        num_pushed = plan["pushforward"] * num_steps
        batch = window.batch(num_context)
        if num_pushed:
            with torch.no_grad():
                pushed = list(rollout(surrogate, batch, num_pushed, steps_per_call=num_steps))
            batch = following(batch, torch.stack(pushed, dim=1))
        num_frames = num_steps * plan.get("calls", 1)
        frames = list(rollout(surrogate, batch, num_frames, steps_per_call=num_steps))
        start = num_context + num_pushed
        return torch.stack(frames, dim=1), window.frames[:, start : start + num_frames]
