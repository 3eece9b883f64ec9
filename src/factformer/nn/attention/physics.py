"""Physics attention (Wu et al. 2024, Transolver, arXiv:2402.02366): points are gathered in slices, slices attend.

    p_ig = softmax_g( P x_i / τ ),   s_g = Σ_i w_i p_ig v_i / Σ_i w_i p_ig,   s' = softmax( Q Kᵀ / √d ) V s,
    z_i = Σ_g p_ig s'_g

``x`` and ``v`` are convolutions of the field, on a grid as published, and ``w`` the quadrature weights: a slice is a
mean over its part of the domain, whatever the resolution. The published sums count points.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from factformer.grid import Grid
from factformer.nn.convolution import Convolution
from factformer.nn.grid_tables import TableCache
from factformer.nn.masks import Mask
from factformer.nn.norms import cached_domain_weights
from factformer.problem import Boundary

TEMPERATURES = (0.1, 5.0)
"""Where the learned temperature is kept, as published."""
NOTHING = 1e-9
"""A slice of a smaller part of the domain counts as empty."""


class PhysicsAttention(nn.Module):
    """Attention among ``num_slices`` learned slices per head; the residual add is the caller's."""

    def __init__(
        self,
        padding: tuple[Boundary, ...],
        dim: int,
        heads: int,
        head_dim: int,
        num_slices: int,
        kernel_size: int = 3,
        home: Grid | None = None,
    ) -> None:
        super().__init__()
        self.heads = heads
        self.to_points = Convolution(padding, dim, heads * head_dim, kernel_size, home=home)
        self.to_values = Convolution(padding, dim, heads * head_dim, kernel_size, home=home)
        self.to_slices = nn.Linear(head_dim, num_slices)
        nn.init.orthogonal_(self.to_slices.weight)
        self.temperature = nn.Parameter(torch.full((heads, 1, 1), 0.5))
        self.to_factors = nn.Linear(head_dim, 3 * head_dim, bias=False)
        self.to_output = nn.Linear(heads * head_dim, dim)
        self.tables = TableCache()

    def forward(
        self, u: Float[Tensor, "batch *grid dim"], grid: Grid, mask: Mask | None = None
    ) -> Float[Tensor, "batch *grid dim"]:
        values = self._per_head(self.to_values(u, grid, mask))
        slices = self.slices(u, grid, mask)
        tokens = self.tokens(values, slices, grid, mask)
        queries, keys, mixed = self.to_factors(tokens).chunk(3, dim=-1)
        answers = functional.scaled_dot_product_attention(queries, keys, mixed)
        attended = slices.to(answers.dtype) @ answers
        result: Tensor = self.to_output(attended.transpose(1, 2).flatten(-2).unflatten(1, grid.shape))
        return result

    def slices(
        self, u: Float[Tensor, "batch *grid dim"], grid: Grid, mask: Mask | None = None
    ) -> Float[Tensor, "batch head points slice"]:
        """``p``: what part of each point belongs to each slice."""
        logits = self.to_slices(self._per_head(self.to_points(u, grid, mask)))
        shares: Tensor = (logits / self.temperature.clamp(*TEMPERATURES)).softmax(-1)
        return shares

    def tokens(
        self,
        values: Float[Tensor, "batch head points channel"],
        slices: Float[Tensor, "batch head points slice"],
        grid: Grid,
        mask: Mask | None = None,
    ) -> Float[Tensor, "batch head slice channel"]:
        """``s``: the mean of the values over each slice, in float32 or better."""
        weights = cached_domain_weights(self.tables, grid, values)
        with torch.autocast(values.device.type, enabled=False):
            dtype = torch.float64 if values.dtype == torch.float64 else torch.float32
            measure = slices.to(dtype) / slices.shape[-2] if weights is None else slices * weights.flatten()[:, None]
            if mask is not None:
                measure = measure * mask.flatten(1)[:, None, :, None]
            share = measure.sum(-2).unsqueeze(-1)
            return (measure.transpose(-1, -2) @ values.to(dtype)) / (share + NOTHING)

    def _per_head(self, u: Float[Tensor, "batch *grid width"]) -> Float[Tensor, "batch head points channel"]:
        split: Tensor = u.flatten(1, -2).unflatten(-1, (self.heads, -1))
        return split.transpose(1, 2)
