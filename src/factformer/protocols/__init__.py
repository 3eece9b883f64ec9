"""How a surrogate is trained on windows of frames, independent of the model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from factformer import catalog
from factformer.errors import UserError
from factformer.problem import Problem
from factformer.protocols._base import BaseProtocol, Plan, ProtocolConfig

__all__ = ["BaseProtocol", "Plan", "ProtocolConfig", "build_protocol", "config_class", "parse_protocol"]

DEFAULT = "latent_marching"
FIRST_KEYS = {
    "name",
    *("marching_steps", "curriculum", "pushforward", "pushforward_from", "pushforward_every", "calls", "calls_from"),
    *("coarse", "coarse_until", "unroll"),
}
"""The keys of the one configuration that all protocols shared in the first edition, which saved every one of them."""


def config_class(name: str) -> type[ProtocolConfig]:
    """The configuration of the protocol of that name; unknown names list the choices."""
    found: type[ProtocolConfig] = catalog.find("protocols", name).Config
    return found


def parse_protocol(values: Mapping[str, Any]) -> ProtocolConfig:
    """The protocol section as the configuration class of the protocol it names."""
    name = str(values.get("name", DEFAULT))
    try:
        return config_class(name).parse(values, where="protocol")
    except UserError as error:
        raise UserError(f"{error} (protocol.name={name})") from None


def migrated_protocol(values: Mapping[str, Any]) -> dict[str, Any]:
    """A protocol section as it was saved: one of the first edition loses the keys that its protocol never read."""
    if not values.keys() >= FIRST_KEYS:
        return dict(values)
    read = config_class(str(values["name"])).model_fields
    return {key: value for key, value in values.items() if key in read or key not in FIRST_KEYS}


def build_protocol(config: ProtocolConfig, problem: Problem) -> BaseProtocol:
    """The protocol of that name for a problem; unknown names list the choices."""
    module = catalog.find("protocols", config.name)
    steady = problem.steady
    if steady and config.name != "steady":
        raise UserError(f"problem {problem.name!r} is steady; set protocol.name=steady, not {config.name}")
    if config.name == "steady" and not steady:
        raise UserError(
            f"protocol.name=steady needs a steady problem and {problem.name!r} evolves in time; "
            "use latent_marching or autoregressive"
        )
    if steady and config.strides != (1,):
        raise UserError(f"protocol.stride={config.stride}: {problem.name!r} is steady and has one frame; leave it out")
    protocol: BaseProtocol = module.Protocol(config, problem)
    return protocol
