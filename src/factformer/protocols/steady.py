"""Steady problems: static fields to one frame of the state, as for Darcy flow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from factformer.batch import Window
from factformer.errors import UserError
from factformer.problem import Problem
from factformer.protocols._base import BaseProtocol, Frames, Plan, ProtocolConfig

if TYPE_CHECKING:
    from factformer.surrogate import Surrogate


class Protocol(BaseProtocol):
    """The model is called once; there is no time to roll out in."""

    def __init__(self, config: ProtocolConfig, problem: Problem) -> None:
        super().__init__(config, problem)
        if not problem.steady:
            raise UserError(
                f"protocol.name=steady needs a steady problem and {problem.name!r} evolves in time; "
                "use latent_marching or autoregressive"
            )

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
