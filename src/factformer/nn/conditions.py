"""What layers know beside the field: the parameters of each sample, and which points lie inside the domain."""

from __future__ import annotations

from typing import NamedTuple

from jaxtyping import Bool, Float
from torch import Tensor


class Conditions(NamedTuple):
    """One for each call; a problem without parameters and masks has neither part."""

    parameters: Float[Tensor, "batch embedding"] | None = None
    """The embedded parameters of each sample, which modulate every block."""
    mask: Bool[Tensor, "batch *grid"] | None = None
    """True inside the domain: points outside have no weight in any integral."""


UNCONDITIONED = Conditions()
