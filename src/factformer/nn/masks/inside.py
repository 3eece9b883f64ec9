"""The values inside a domain, and means over them."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

Mask = Bool[Tensor, "batch *grid"]


def inside(x: Float[Tensor, "batch *grid dim"], mask: Mask | None) -> Float[Tensor, "batch *grid dim"]:
    """``χ x``: zero outside the domain, whatever ``x`` holds there, NaN included."""
    return x if mask is None else x.masked_fill(~mask.unsqueeze(-1), 0.0)


def ratio(
    total: Float[Tensor, "batch *grid dim"], share: Float[Tensor, "batch *grid 1"]
) -> Float[Tensor, "batch *grid dim"]:
    """``total / share``: a mean over what lies inside, of a mean over everything; zero where nothing does."""
    return total * torch.where(share > 0, 1 / share, 0.0).to(total.dtype)
