"""Steady problems: static fields to one frame of the state, as for Darcy flow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from factformer.batch import Window
from factformer.protocols._base import BaseProtocol, Frames, Plan, ProtocolConfig

if TYPE_CHECKING:
    from factformer.surrogate import Surrogate


class Config(ProtocolConfig):
    name: Literal["steady"] = "steady"


class Protocol(BaseProtocol):
    """The model is called once; there is no time to roll out in."""

    @property
    def steps_per_call(self) -> int:
        return 1

    @property
    def num_target_frames(self) -> int:
        return 1

    def plan(self, update: int, progress: float) -> Plan:
        return {}

    def predict(self, surrogate: Surrogate, window: Window, plan: Plan) -> tuple[Frames, Frames]:
        return surrogate(window.batch(0), 1), window.frames
