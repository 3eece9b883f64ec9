"""Softmax attention along one axis, all other axes in the batch (Ho et al. 2020, arXiv:1912.12180).

    z_i = Σ_j softmax_j( q̃_i · k̃_j / √d + log w_j ) v_j       on every line of the grid along the axis

The quadrature weights ``w`` make the sum a mean over the axis rather than over its points; where they are
equal they drop out.
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from factformer.errors import UserError
from factformer.grid import Grid
from factformer.nn.attention.rotary import Rotary, rotary_table, rotate
from factformer.nn.grid_tables import TableCache, axis_weights


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
        if head_dim % 2:
            raise UserError(f"the rotary encoding rotates pairs of channels: head_dim must be even, got {head_dim}")
        self.m = m
        self.heads = heads
        self.head_dim = head_dim
        self.rotary: Rotary = rotary
        self.rotary_scale = rotary_scale
        self.norm = nn.LayerNorm(dim)
        self.to_factors = nn.Linear(dim, 3 * heads * head_dim, bias=False)
        self.to_output = nn.Linear(heads * head_dim, dim)
        self.tables = TableCache()

    def forward(self, u: Float[Tensor, "batch *grid dim"], grid: Grid) -> Float[Tensor, "batch *grid dim"]:
        lines = self.norm(u).movedim(self.m + 1, -2)  # batch, other axes, points, dim
        factors = self.to_factors(lines).unflatten(-1, (3, self.heads, -1)).movedim((-3, -2), (0, -3))
        queries, keys, values = factors.unbind(0)
        if self.rotary != "off":
            cosine, sine = self.tables.get("rotary", grid, self.m, u, lambda: self._rotations(grid))
            queries = rotate(queries, cosine, sine).to(values.dtype)
            keys = rotate(keys, cosine, sine).to(values.dtype)
        bias = None
        if not grid.equal_weights(self.m):
            bias = axis_weights(self.tables, grid, self.m, u).log().to(values.dtype)[None]
        leading = values.shape[:-3]
        attended = functional.scaled_dot_product_attention(
            queries.flatten(0, -4), keys.flatten(0, -4), values.flatten(0, -4), attn_mask=bias
        )
        merged = attended.transpose(1, 2).flatten(-2).unflatten(0, leading)
        result: Tensor = self.to_output(merged.movedim(-2, self.m + 1))
        return result

    def _rotations(self, grid: Grid) -> tuple[Tensor, ...]:
        return rotary_table(grid, self.m, self.head_dim, self.rotary, self.rotary_scale)
