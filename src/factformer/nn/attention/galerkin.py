"""Galerkin attention (Cao 2021, arXiv:2105.14995): softmax-free attention as a Petrov-Galerkin projection.

    z_j(x) = Σ_l q_l(x) ∫ k_l(ξ) v_j(ξ) dξ

The columns of keys and values are functions on the grid and the integral is the grid's quadrature. Keys and
values of each head are layer-normalised and the coordinates are appended to queries, keys and values. With a mask
the integral is the mean over the points inside.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from factformer.grid import Grid
from factformer.nn.attention.linear import flat_domain_weights, kernel_integral
from factformer.nn.grid_tables import TableCache
from factformer.nn.masks import Mask, inside


class GalerkinAttention(nn.Module):
    """Multi-head Galerkin attention; the residual add is the caller's."""

    def __init__(self, num_axes: int, dim: int, heads: int, head_dim: int) -> None:
        super().__init__()
        self.heads = heads
        self.to_queries = nn.Linear(dim, heads * head_dim)
        self.to_keys = nn.Linear(dim, heads * head_dim)
        self.to_values = nn.Linear(dim, heads * head_dim)
        self.key_norm = nn.LayerNorm(head_dim)
        self.value_norm = nn.LayerNorm(head_dim)
        self.to_output = nn.Linear(heads * (head_dim + num_axes), dim)
        self.tables = TableCache()

    def forward(
        self, u: Float[Tensor, "batch *grid dim"], grid: Grid, mask: Mask | None = None
    ) -> Float[Tensor, "batch *grid dim"]:
        weights = flat_domain_weights(self.tables, grid, u, mask)
        attended = kernel_integral(*self.factors(inside(u, mask), grid), weights)
        merged = attended.transpose(1, 2).flatten(-2).unflatten(1, grid.shape)
        result: Tensor = self.to_output(merged.to(u.dtype))
        return result

    def factors(self, u: Float[Tensor, "batch *grid dim"], grid: Grid) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, each ``(batch, head, points, channel + axis)``."""
        (positions,) = self.tables.get("positions", grid, 0, u, lambda: (_unit_positions(grid),))
        split = (self.heads, -1)
        queries = _head_first(self.to_queries(u).unflatten(-1, split))
        keys = _head_first(self.key_norm(self.to_keys(u).unflatten(-1, split)))
        values = _head_first(self.value_norm(self.to_values(u).unflatten(-1, split)))
        located = positions.expand(*queries.shape[:2], -1, -1)
        queries, keys, values = (torch.cat([located.to(x.dtype), x], dim=-1) for x in (queries, keys, values))
        return queries, keys, values


def _head_first(x: Float[Tensor, "batch *grid head channel"]) -> Float[Tensor, "batch head points channel"]:
    return x.movedim(-2, 1).flatten(2, -2)


def _unit_positions(grid: Grid) -> Float[Tensor, "points axis"]:
    """Coordinates as fractions of the extent of each axis."""
    return (grid.mesh() / torch.tensor(grid.extent, dtype=torch.float64)).flatten(0, -2)
