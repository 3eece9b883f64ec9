"""How a surrogate is trained on windows of frames, independent of the model."""

from __future__ import annotations

from factformer import catalog
from factformer.errors import UserError
from factformer.problem import Problem
from factformer.protocols._base import BaseProtocol, Plan, ProtocolConfig

__all__ = ["BaseProtocol", "Plan", "ProtocolConfig", "build_protocol"]


def build_protocol(config: ProtocolConfig, problem: Problem) -> BaseProtocol:
    """The protocol of that name for a problem; unknown names list the choices."""
    module = catalog.find("protocols", config.name)
    if problem.steady and config.name != "steady":
        raise UserError(f"problem {problem.name!r} is steady; set protocol.name=steady, not {config.name}")
    protocol: BaseProtocol = module.Protocol(config, problem)
    return protocol
