"""One axis of factorized attention: projection of the field onto the axis, and the kernel on it (eqs. 6, 8).

    φ(x_i) = h( LayerNorm( γ ⟨u⟩(x_i) ) ),   ⟨u⟩ = quadrature mean over all other axes
    A_ij   = (q̃_i · k̃_j) w_j,               q̃, k̃ = rotary-encoded φ W_q, φ W_k

The paper applies the linear γ at every point and then takes the mean; both are linear, so the mean is taken
first and γ acts on S rows instead of N points.

With a mask the mean is over the points inside alone, ``⟨u⟩(x_i) = Σ_j w_j χ_ij u_ij / Σ_j w_j χ_ij``. A line without
any has no part in the domain: its queries and keys are zero and, under a softmax, it gets no share.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from factformer.errors import UserError
from factformer.grid import Grid
from factformer.nn.attention.rotary import Rotary, require_pairs, rotary_table, rotate
from factformer.nn.grid_tables import TableCache, axis_weights
from factformer.nn.masks import Mask, ratio
from factformer.nn.mlp import GatedMLP

QUERY_KEY_GAIN = 0.02


@dataclass(frozen=True)
class KernelOptions:
    """How the kernel of an axis is formed from queries and keys."""

    rotary: Rotary = "paper"
    rotary_scale: float = 64.0
    """λ of the rotary frequencies."""
    scaling: bool = False
    """Divide the dot products by √d_k."""
    softmax: bool = False
    """Normalise each row: ``A_ij ∝ w_j exp(q̃_i · k̃_j)``."""


def axial_mean(
    x: Float[Tensor, "batch *grid dim"], weights: Sequence[Tensor | None], m: int
) -> Float[Tensor, "batch points dim"]:
    """Quadrature mean over all axes but ``m``, accumulated in float32 (float64 stays float64).

    ``weights`` holds those of each axis, ``None`` for a plain mean.
    """
    dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
    others = [axis for axis in range(len(weights)) if axis != m]
    plain = [axis + 1 for axis in others if weights[axis] is None]
    if plain:
        x = x.mean(plain, keepdim=True, dtype=dtype)
    x = x.to(dtype)
    for axis in others:
        axis_weights = weights[axis]
        if axis_weights is not None:
            shape = [1] * x.ndim
            shape[axis + 1] = -1
            x = (x * axis_weights.view(shape)).sum(axis + 1, keepdim=True)
    return x.flatten(1, -2)


def near_one(
    x: Float[Tensor, "batch head points kernel"], grid: Grid, m: int
) -> Float[Tensor, "batch head points kernel"]:
    """``x`` times a power of two for each sample and head that brings its largest entry close to one.

    The head normalisation removes any factor common to a head, and nothing else holds the size of queries and keys:
    the product of the kernels of three axes starts near 1e-17 and grew by twenty orders of magnitude in 676 updates
    of a network for boxes. For the same reason the factor has no gradient, and a power of two changes no digit.
    """
    largest = grid.largest(x.detach().abs().amax((-2, -1), keepdim=True), (m,))
    return x * torch.exp2(-largest.log2().floor().clamp(-100.0, 100.0))


def contract(
    kernel: Float[Tensor, "batch head out points"], values: Float[Tensor, "batch head *grid channel"], axis: int
) -> Float[Tensor, "batch head *new_grid channel"]:
    """``Σ_j kernel_ij values_…j…`` along dimension ``axis`` of ``values`` (the mode product of eq. 5)."""
    shape = values.shape
    stacked = values.flatten(axis + 1).flatten(2, axis - 1) if axis > 2 else values.flatten(axis + 1).unsqueeze(2)
    result = torch.einsum("bhij,bhrjt->bhrit", kernel, stacked)
    return result.reshape(*shape[:axis], kernel.shape[2], *shape[axis + 1 :])


class AxialKernel(nn.Module):
    """Projection onto axis ``m`` and the kernel of each head along it."""

    def __init__(self, m: int, dim: int, heads: int, kernel_dim: int, options: KernelOptions) -> None:
        super().__init__()
        require_pairs("kernel_dim", kernel_dim)
        self.m = m
        self.heads = heads
        self.kernel_dim = kernel_dim
        self.options = options
        self.gamma = nn.Linear(dim, dim, bias=False)
        self.norm = nn.LayerNorm(dim)
        self.mlp = GatedMLP(dim)
        self.to_queries = nn.Linear(dim, heads * kernel_dim, bias=False)
        self.to_keys = nn.Linear(dim, heads * kernel_dim, bias=False)
        for linear in (self.to_queries, self.to_keys):
            nn.init.xavier_uniform_(linear.weight, gain=QUERY_KEY_GAIN)
        self.tables = TableCache()

    def factors(
        self, x: Float[Tensor, "batch *grid dim"], grid: Grid, mask: Mask | None = None
    ) -> tuple[Float[Tensor, "batch head points kernel"], Float[Tensor, "batch head points kernel"]]:
        """Encoded queries and keys ``q̃, k̃`` of every head, in float32; scaling is in the queries.

        With a ``mask``, ``x`` is zero outside of it.
        """
        weights = [
            None if grid.equal_weights(axis) else axis_weights(self.tables, grid, axis, x)
            for axis in range(grid.num_axes)
        ]
        others = [axis for axis in range(grid.num_axes) if axis != self.m]
        mean = grid.total(axial_mean(x, weights, self.m), others)
        share = None
        if mask is not None:
            share = grid.total(axial_mean(mask.unsqueeze(-1).to(mean.dtype), weights, self.m), others)
        return self.encode_inside(mean, share, grid)

    def encode_inside(
        self, mean: Float[Tensor, "batch points dim"], share: Float[Tensor, "batch points 1"] | None, grid: Grid
    ) -> tuple[Float[Tensor, "batch head points kernel"], Float[Tensor, "batch head points kernel"]]:
        """`factors` from the mean of a field that is zero outside; ``share`` of each line lies inside."""
        if share is None:
            return self.encode(mean, grid)
        queries, keys = self.encode(ratio(mean, share), grid)
        empty = (share == 0).unsqueeze(1)
        return queries.masked_fill(empty, 0.0), keys.masked_fill(empty, 0.0)

    def encode(
        self, mean: Float[Tensor, "batch points dim"], grid: Grid
    ) -> tuple[Float[Tensor, "batch head points kernel"], Float[Tensor, "batch head points kernel"]]:
        """`factors` from the mean of the field over all other axes."""
        return self.encode_projection(self.gamma(mean), grid)

    def encode_projection(
        self, projection: Float[Tensor, "batch points dim"], grid: Grid
    ) -> tuple[Float[Tensor, "batch head points kernel"], Float[Tensor, "batch head points kernel"]]:
        """`factors` from the projection ``γ ⟨u⟩`` of the field onto the axis."""
        phi = self.mlp(self.norm(projection))
        split = (self.heads, self.kernel_dim)
        queries = self.to_queries(phi).unflatten(-1, split).transpose(1, 2)
        keys = self.to_keys(phi).unflatten(-1, split).transpose(1, 2)
        if queries.dtype != torch.float64:
            queries, keys = queries.float(), keys.float()
        if self.options.scaling:
            queries = queries / math.sqrt(self.kernel_dim)
        if self.options.rotary != "off":
            cosine, sine = self.tables.get(
                "rotary",
                grid,
                self.m,
                queries,
                lambda: rotary_table(grid, self.m, self.kernel_dim, self.options.rotary, self.options.rotary_scale),
            )
            queries, keys = rotate(queries, cosine, sine), rotate(keys, cosine, sine)
        return queries, keys

    def matrix(
        self, queries: Tensor, keys: Tensor, grid: Grid, mask: Mask | None = None
    ) -> Float[Tensor, "batch head points points"]:
        """``A``, weights included; formed in float32 whatever autocast says."""
        if self.m in grid.cut_axes:
            raise UserError(f"axis {self.m} is cut into parts: its kernel cannot be formed in one process")
        weights = axis_weights(self.tables, grid, self.m, queries)
        with torch.autocast(queries.device.type, enabled=False):
            products = queries @ keys.transpose(-1, -2)
            if self.options.softmax:
                logarithms = weights.log()
                if mask is not None:
                    met = mask.movedim(self.m + 1, 1).flatten(2).any(-1)
                    logarithms = logarithms.where(met, -torch.inf)[:, None, None]
                return (products + logarithms).softmax(-1)
            return products * weights

    def dense_is_cheaper(self, grid: Grid) -> bool:
        """``(q̃k̃ᵀ)V`` costs S per value, ``q̃(k̃ᵀV)`` costs 2 d_k; a softmax needs the matrix itself."""
        return self.options.softmax or (grid.shape[self.m] <= 2 * self.kernel_dim and self.m not in grid.cut_axes)

    def apply_to(
        self,
        values: Float[Tensor, "batch head *grid channel"],
        x: Float[Tensor, "batch *grid dim"],
        grid: Grid,
        *,
        rescaled: bool = True,
        mask: Mask | None = None,
    ) -> Float[Tensor, "batch head *grid channel"]:
        """``values ×_m A``, in the cheaper order; ``rescaled`` up to a factor that a normalisation removes."""
        queries, keys = self.factors(x, grid, mask)
        if self.m in grid.cut_axes and grid.dense_moves_less(self.m, self.heads, values.shape[-1], self.kernel_dim):
            if rescaled:
                queries, keys = (near_one(factor, grid, self.m) for factor in (queries, keys))
            keys = keys * axis_weights(self.tables, grid, self.m, keys)[:, None]
            return grid.contracted(values, queries.to(values.dtype), keys.to(values.dtype), self.m)
        matrices = self.operators(queries, keys, grid, rescaled=rescaled, mask=mask)
        for index, matrix in enumerate(matrices, start=1):
            values = contract(matrix.to(values.dtype), values, self.m + 2)
            if index < len(matrices):  # coefficients of the keys: a sum over the whole axis
                values = grid.total(values, (self.m,))
        return values

    def operators(
        self, queries: Tensor, keys: Tensor, grid: Grid, *, rescaled: bool = True, mask: Mask | None = None
    ) -> list[Float[Tensor, "batch head out points"]]:
        """What to contract with, one after the other: the kernel, or in the low-rank order keys and queries."""
        if rescaled and not self.options.softmax:
            queries, keys = (near_one(factor, grid, self.m) for factor in (queries, keys))
        if self.dense_is_cheaper(grid):
            return [self.matrix(queries, keys, grid, mask)]
        weighted = keys * axis_weights(self.tables, grid, self.m, keys)[:, None]
        return [weighted.transpose(-1, -2), queries]
