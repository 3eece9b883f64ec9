"""Softmax-free attention between all points of the grid (OFormer: Li, Meidani & Barati Farimani 2023).

    z_i = Σ_j w_j (q̃_i · k̃_j) v_j          w = quadrature weights, 1/N on a uniform grid

Summed as ``Q̃(K̃ᵀ w V)`` the cost is linear in the number of points; the kernel ``w Q̃K̃ᵀ`` itself is there for
analysis.
"""

from __future__ import annotations

from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor, nn

from factformer.errors import UserError
from factformer.grid import Grid
from factformer.nn.mlp import MLP
from factformer.nn.norms import cached_domain_weights, domain_normalize
from factformer.nn.rotary import Rotary, rotary_table, rotate
from factformer.nn.tables import TableCache


def kernel_integral(
    queries: Float[Tensor, "*batch points kernel"],
    keys: Float[Tensor, "*batch points kernel"],
    values: Float[Tensor, "*batch points channel"],
    weights: Float[Tensor, " points"] | None,
) -> Float[Tensor, "*batch points channel"]:
    """``Q(Kᵀ w V)`` in the precision of ``values``; ``weights=None`` is the plain mean.

    Autocast has no say: it would round float32 factors of a sum over all points. Products of half-precision
    factors are summed in float32 by the library.
    """
    with torch.autocast(values.device.type, enabled=False):
        queries, keys = queries.to(values.dtype), keys.to(values.dtype)
        if weights is None:
            moments = keys.transpose(-1, -2) @ (values / values.shape[-2])
        else:
            moments = keys.transpose(-1, -2) @ (values * weights[:, None]).to(values.dtype)
        return queries @ moments


class LinearAttention(nn.Module):
    """``f( Q̃(K̃ᵀ w V) )`` of the layer-normalised input; the residual add is the caller's.

    Each channel of keys and values is normalised over the domain (the Galerkin-style scheme of Cao 2021),
    then queries and keys are rotated: the channels of a head are divided among the axes and each part is
    encoded with the coordinate of its axis. With ``explicit=True`` the full kernel is formed, at quadratic
    cost.
    """

    def __init__(
        self,
        num_axes: int,
        dim: int,
        heads: int,
        head_dim: int = 64,
        kernel_dim: int = 128,
        rotary: Rotary = "paper",
        rotary_scale: float = 64.0,
        explicit: bool = False,
    ) -> None:
        super().__init__()
        if kernel_dim % 2 or kernel_dim < 2 * num_axes:
            raise UserError(
                f"kernel_dim must be even and at least 2 per axis, got {kernel_dim} for {num_axes} axes"
            )
        self.heads = heads
        self.rotary: Rotary = rotary
        self.rotary_scale = rotary_scale
        self.explicit = explicit
        share, rest = divmod(kernel_dim // 2, num_axes)
        self.axis_channels = [2 * (share + (m < rest)) for m in range(num_axes)]
        self.norm = nn.LayerNorm(dim)
        self.to_queries = nn.Linear(dim, heads * kernel_dim, bias=False)
        self.to_keys = nn.Linear(dim, heads * kernel_dim, bias=False)
        self.to_values = nn.Linear(dim, heads * head_dim, bias=False)
        self.to_output = MLP(heads * head_dim, dim, dim, bias=False)
        self.tables = TableCache()

    def forward(self, u: Float[Tensor, "batch *grid dim"], grid: Grid) -> Float[Tensor, "batch *grid dim"]:
        x = self.norm(u)
        queries, keys = self.factors(x, grid)
        values = self._per_head(self._normalized(self.to_values(x), grid)).flatten(2, -2)
        if self.explicit:
            attended = self.matrix(queries, keys, grid) @ values.to(queries.dtype)
        else:
            attended = kernel_integral(queries, keys, values, self._weights(grid, queries))
        merged = attended.transpose(1, 2).flatten(-2).unflatten(1, grid.shape)
        result: Tensor = self.to_output(merged.to(x.dtype))
        return result

    def kernel(
        self, u: Float[Tensor, "batch *grid dim"], grid: Grid
    ) -> Float[Tensor, "batch head points points"]:
        """``Q̃K̃ᵀ w`` between all points, quadrature weights included."""
        return self.matrix(*self.factors(self.norm(u), grid), grid)

    def factors(
        self, x: Float[Tensor, "batch *grid dim"], grid: Grid
    ) -> tuple[Float[Tensor, "batch head points kernel"], Float[Tensor, "batch head points kernel"]]:
        """Encoded queries and keys of every head, in float32 or better."""
        queries = self._per_head(self.to_queries(x))
        keys = self._per_head(self._normalized(self.to_keys(x), grid))
        if queries.dtype != torch.float64:
            queries, keys = queries.float(), keys.float()
        return self._encoded(queries, grid).flatten(2, -2), self._encoded(keys, grid).flatten(2, -2)

    def matrix(self, queries: Tensor, keys: Tensor, grid: Grid) -> Float[Tensor, "batch head points points"]:
        weights = self._weights(grid, queries)
        with torch.autocast(queries.device.type, enabled=False):
            products = queries @ keys.transpose(-1, -2)
            return products / keys.shape[-2] if weights is None else products * weights

    def _per_head(self, x: Tensor) -> Float[Tensor, "batch head *grid channel"]:
        split: Tensor = x.unflatten(-1, (self.heads, -1)).movedim(-2, 1)
        return split

    def _weights(self, grid: Grid, like: Tensor) -> Float[Tensor, " points"] | None:
        weights = cached_domain_weights(self.tables, grid, like)
        return None if weights is None else weights.flatten()

    def _normalized(
        self, x: Float[Tensor, "batch *grid channel"], grid: Grid
    ) -> Float[Tensor, "batch *grid channel"]:
        weights = cached_domain_weights(self.tables, grid, x)
        return domain_normalize(x.movedim(-1, 1).unsqueeze(-1), weights, 1e-5).squeeze(-1).movedim(1, -1)

    def _encoded(
        self, x: Float[Tensor, "batch head *grid channel"], grid: Grid
    ) -> Float[Tensor, "batch head *grid channel"]:
        if self.rotary == "off":
            return x
        parts = []
        for m, part in enumerate(x.split(self.axis_channels, dim=-1)):
            num_channels = self.axis_channels[m]
            make = partial(rotary_table, grid, m, num_channels, self.rotary, self.rotary_scale)
            cosine, sine = self.tables.get("rotary", grid, m, x, make)
            parts.append(rotate(part.movedim(m + 2, -2), cosine, sine).movedim(-2, m + 2))
        return torch.cat(parts, dim=-1)
