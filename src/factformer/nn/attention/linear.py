"""Softmax-free attention between all points of the grid (OFormer: Li, Meidani & Barati Farimani 2023).

    z_i = Σ_j w_j (q̃_i · k̃_j) v_j          w = quadrature weights, 1/N on a uniform grid

With a mask the weights are ``w χ / Σ w χ`` of each sample, and the result is zero outside.

Summed as ``Q̃(K̃ᵀ w V)`` the cost is linear in the number of points; the kernel ``w Q̃K̃ᵀ`` itself is there for
analysis.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from factformer.errors import UserError
from factformer.grid import Grid
from factformer.nn.attention.rotary import Rotary, rotary_table, turn
from factformer.nn.grid_tables import TableCache
from factformer.nn.masks import Mask, inside
from factformer.nn.mlp import MLP
from factformer.nn.norms import cached_domain_weights

Weights = Float[Tensor, " points"] | Float[Tensor, "batch points"]
"""Those of a grid, or with masks of each sample."""


def flat_domain_weights(tables: TableCache, grid: Grid, like: Tensor, mask: Mask | None) -> Weights | None:
    """`cached_domain_weights` with all axes as one."""
    weights = cached_domain_weights(tables, grid, like, mask)
    return None if weights is None else weights.flatten(-grid.num_axes)


def kernel_integral(
    queries: Float[Tensor, "batch *head points kernel"],
    keys: Float[Tensor, "batch *head points kernel"],
    values: Float[Tensor, "batch *head points channel"],
    weights: Weights | None,
) -> Float[Tensor, "batch *head points channel"]:
    """``Q(Kᵀ w V)`` in the precision of ``values``; ``weights=None`` is the plain mean.

    Autocast has no say: it would round float32 factors of a sum over all points. Products of half-precision
    factors are summed in float32 by the library.
    """
    with torch.autocast(values.device.type, enabled=False):
        queries, keys = (x.to(values.dtype, memory_format=torch.contiguous_format) for x in (queries, keys))
        if weights is None:
            moments = keys.transpose(-1, -2) @ (values / values.shape[-2])
        else:
            moments = keys.transpose(-1, -2) @ (values * _per_sample(weights)[..., None]).to(values.dtype)
        return queries @ moments


def _per_sample(weights: Weights) -> Tensor:
    """Weights that broadcast over the heads of a sample."""
    return weights if weights.ndim == 1 else weights[:, None]


class Centred(NamedTuple):
    """A field without its mean over the domain, and the covariance of its channels.

    Mean and variance of every channel of a projection follow from these, so that a projection much wider than the
    field is normalised by its matrix and written only once.
    """

    field: Float[Tensor, "batch points dim"]
    covariance: Float[Tensor, "batch dim dim"]

    @classmethod
    def of(cls, x: Float[Tensor, "batch points dim"], weights: Weights | None) -> Centred:
        with torch.autocast(x.device.type, enabled=False):
            x = x if x.dtype == torch.float64 else x.float()
            measure = 1 / x.shape[1] if weights is None else weights[..., None]
            field = x - (x * measure).sum(1, keepdim=True)
            return cls(field, field.transpose(1, 2) @ (field * measure))

    def normalized(self, linear: nn.Linear, eps: float = 1e-5) -> Float[Tensor, "batch points channel"]:
        """The projection by a matrix, with zero mean and unit variance of each of its channels."""
        matrix = linear.weight
        with torch.autocast(matrix.device.type, enabled=False):
            variance = ((matrix @ self.covariance) * matrix).sum(-1, keepdim=True)
            scaled = matrix * (variance + eps).rsqrt()
        return self.field @ scaled.transpose(1, 2)


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
            raise UserError(f"kernel_dim must be even and at least 2 per axis, got {kernel_dim} for {num_axes} axes")
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

    def forward(
        self, u: Float[Tensor, "batch *grid dim"], grid: Grid, mask: Mask | None = None
    ) -> Float[Tensor, "batch *grid dim"]:
        x = inside(self.norm(u), mask).flatten(1, -2)
        centred = Centred.of(x, self._weights(grid, x, mask))
        queries, keys = self._factors(x, centred, grid)
        values = self._per_head(centred.normalized(self.to_values)).transpose(1, 2)
        if self.explicit:
            attended = self.matrix(queries, keys, grid, mask) @ values.to(queries.dtype)
        else:
            attended = kernel_integral(queries, keys, values, self._weights(grid, queries, mask))
        merged = attended.transpose(1, 2).flatten(-2).unflatten(1, grid.shape)
        result: Tensor = self.to_output(merged.to(x.dtype))
        return result

    def kernel(
        self, u: Float[Tensor, "batch *grid dim"], grid: Grid, mask: Mask | None = None
    ) -> Float[Tensor, "batch head points points"]:
        """``Q̃K̃ᵀ w`` between all points, quadrature weights included."""
        return self.matrix(*self.factors(inside(self.norm(u), mask), grid, mask), grid, mask)

    def factors(
        self, x: Float[Tensor, "batch *grid dim"], grid: Grid, mask: Mask | None = None
    ) -> tuple[Float[Tensor, "batch head points kernel"], Float[Tensor, "batch head points kernel"]]:
        """Encoded queries and keys of every head, in float32 or better."""
        x = x.flatten(1, -2)
        return self._factors(x, Centred.of(x, self._weights(grid, x, mask)), grid)

    def matrix(
        self, queries: Tensor, keys: Tensor, grid: Grid, mask: Mask | None = None
    ) -> Float[Tensor, "batch head points points"]:
        weights = self._weights(grid, queries, mask)
        with torch.autocast(queries.device.type, enabled=False):
            products = queries @ keys.transpose(-1, -2)
            return products / keys.shape[-2] if weights is None else products * _per_sample(weights)[..., None, :]

    def _factors(
        self, x: Float[Tensor, "batch points dim"], centred: Centred, grid: Grid
    ) -> tuple[Float[Tensor, "batch head points kernel"], Float[Tensor, "batch head points kernel"]]:
        queries, keys = self.to_queries(x), centred.normalized(self.to_keys)
        if queries.dtype != torch.float64:
            queries, keys = queries.float(), keys.float()
        queries, keys = (self._encoded(self._per_head(part), grid) for part in (queries, keys))
        return queries.transpose(1, 2), keys.transpose(1, 2)

    def _per_head(self, x: Float[Tensor, "batch points width"]) -> Float[Tensor, "batch points head channel"]:
        split: Tensor = x.unflatten(-1, (self.heads, -1))
        return split

    def _weights(self, grid: Grid, like: Tensor, mask: Mask | None) -> Weights | None:
        return flat_domain_weights(self.tables, grid, like, mask)

    def _encoded(
        self, x: Float[Tensor, "batch points head channel"], grid: Grid
    ) -> Float[Tensor, "batch points head channel"]:
        if self.rotary == "off":
            return x
        dtype = torch.complex128 if x.dtype == torch.float64 else torch.complex64
        (turns,) = self.tables.get("turns", grid, 0, x, lambda: (self._turns(grid),), dtype)
        return turn(x, turns[:, None])

    def _turns(self, grid: Grid) -> Tensor:
        """``exp(i f_l x)`` of every point ``(point, pair)``, the pairs of each axis with its own coordinate."""
        turns = []
        for m, channels in enumerate(self.axis_channels):
            cosine, sine = rotary_table(grid, m, channels, self.rotary, self.rotary_scale)
            along = torch.complex(cosine, sine)
            shape = [1] * grid.num_axes + [channels // 2]
            shape[m] = grid.shape[m]
            turns.append(along.view(shape).expand(*grid.shape, -1).flatten(0, -2))
        return torch.cat(turns, dim=-1)
