"""Softmax attention along one axis, all other axes in the batch (Ho et al. 2020, arXiv:1912.12180).

    z_i = Σ_j softmax_j( q̃_i · k̃_j / √d + log w_j ) v_j       on every line of the grid along the axis

The quadrature weights ``w`` make the sum a mean over the axis rather than over its points; where they are
equal they drop out. With a mask the sum is over the points of the line that lie inside.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from factformer.grid import Grid
from factformer.nn.attention.rotary import Rotary, require_pairs, rotary_table, rotate
from factformer.nn.grid_tables import TableCache, axis_weights
from factformer.nn.masks import Mask, inside


class AxialAttention(nn.Module):
    """Multi-head attention along axis ``m`` of the layer-normalised input; the caller adds the residual."""

    def __init__(
        self,
        m: int,
        dim: int,
        heads: int,
        head_dim: int,
        rotary: Rotary = "paper",
        rotary_scale: float = 64.0,
    ) -> None:
        super().__init__()
        require_pairs("head_dim", head_dim)
        self.m = m
        self.heads = heads
        self.head_dim = head_dim
        self.rotary: Rotary = rotary
        self.rotary_scale = rotary_scale
        self.norm = nn.LayerNorm(dim)
        self.to_factors = nn.Linear(dim, 3 * heads * head_dim, bias=False)
        self.to_output = nn.Linear(heads * head_dim, dim)
        self.tables = TableCache()

    def forward(
        self, u: Float[Tensor, "batch *grid dim"], grid: Grid, mask: Mask | None = None
    ) -> Float[Tensor, "batch *grid dim"]:
        lines = inside(self.norm(u), mask).movedim(self.m + 1, -2)  # batch, other axes, points, dim
        factors = self.to_factors(lines).unflatten(-1, (3, self.heads, -1)).movedim((-3, -2), (0, -3))
        queries, keys, values = factors.unbind(0)
        if self.rotary != "off":
            cosine, sine = self.tables.get("rotary", grid, self.m, u, lambda: self._rotations(grid))
            queries = rotate(queries, cosine, sine).to(values.dtype)
            keys = rotate(keys, cosine, sine).to(values.dtype)
        bias = None
        if not grid.equal_weights(self.m):
            bias = axis_weights(self.tables, grid, self.m, u).log().to(values.dtype)[None]
        if mask is not None:
            within = mask.movedim(self.m + 1, -1).flatten(0, -2)
            within = within | ~within.any(-1, keepdim=True)  # a line without any point inside is not read
            weighted = values.new_zeros(within.shape) if bias is None else bias.expand_as(within)
            bias = weighted.masked_fill(~within, -torch.inf)[:, None, None]
        leading = values.shape[:-3]
        attended = functional.scaled_dot_product_attention(
            queries.flatten(0, -4), keys.flatten(0, -4), values.flatten(0, -4), attn_mask=bias
        )
        merged = attended.transpose(1, 2).flatten(-2).unflatten(0, leading)
        result: Tensor = self.to_output(merged.movedim(-2, self.m + 1))
        return result

    def _rotations(self, grid: Grid) -> tuple[Tensor, ...]:
        return rotary_table(grid, self.m, self.head_dim, self.rotary, self.rotary_scale)
