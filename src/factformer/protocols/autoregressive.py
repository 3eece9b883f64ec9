"""Autoregressive training: n calls of one frame each, with gradients through all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from factformer.batch import Window
from factformer.protocols._base import BaseProtocol, Frames, Plan
from factformer.rollout import rollout

if TYPE_CHECKING:
    from factformer.surrogate import Surrogate


class Protocol(BaseProtocol):
    """One frame per call, loss on all ``unroll`` frames of the roll-out."""

    @property
    def steps_per_call(self) -> int:
        return 1

    @property
    def num_target_frames(self) -> int:
        return self.config.unroll

    def plan(self, update: int, progress: float) -> Plan:
        return {"unroll": self.config.unroll}

    def predict(self, surrogate: Surrogate, window: Window, plan: Plan) -> tuple[Frames, Frames]:
        num_context = self.problem.num_context_frames
        frames = list(rollout(surrogate, window.batch(num_context), plan["unroll"], steps_per_call=1))
        return torch.stack(frames, dim=1), window.frames[:, num_context : num_context + plan["unroll"]]
