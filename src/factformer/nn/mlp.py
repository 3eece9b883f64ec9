"""Pointwise feed-forward networks."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional


class MLP(nn.Sequential):
    """Linear – GELU – Linear on the last axis."""

    def __init__(self, dim_in: int, dim_hidden: int, dim_out: int, bias: bool = True) -> None:
        super().__init__(nn.Linear(dim_in, dim_hidden, bias=bias), nn.GELU(), nn.Linear(dim_hidden, dim_out, bias=bias))


class GatedMLP(nn.Module):
    """Linear to twice the width, one half gated by the GELU of the other, Linear (Shazeer 2020, GEGLU)."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.expand = nn.Linear(dim, 2 * dim)
        self.contract = nn.Linear(dim, dim)

    def forward(self, x: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch dim"]:
        values, gates = self.expand(x).chunk(2, dim=-1)
        result: Tensor = self.contract(values * functional.gelu(gates))
        return result
