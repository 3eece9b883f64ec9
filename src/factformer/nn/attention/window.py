"""Attention inside windows of the grid (Swin v2: Liu et al. 2022, arXiv:2111.09883).

    z_i = Σ_j softmax_j( τ q_i·k_j / |q_i||k_j| + 16 sigmoid B(i - j) ) v_j       j in the window of i

``B`` is a small network of the distance in points, on a logarithmic scale. Every second layer shifts the windows by
half their width. Along periodic axes windows wrap around, so each of them is full; at walls they are cut off.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn
from torch.nn import functional

from factformer.grid import Grid
from factformer.nn.grid_tables import TableCache
from factformer.nn.masks import Mask, inside

BIAS_WIDTH = 512
"""Width of the network of the distances, as published."""
HIDDEN = -1e4
"""Added to the logits of points that are not there."""
SHARPEST = math.log(100.0)
"""Bound of log τ, as published."""


class AxisWindows(NamedTuple):
    """``num_windows`` windows of ``width`` points along an axis; the first begins ``shift`` points before its start."""

    size: int
    width: int
    num_windows: int
    shift: int
    wraps: bool

    @classmethod
    def along(cls, grid: Grid, m: int, window: int, shifted: bool) -> AxisWindows:
        """An axis that is not longer than a window is one window, and is not shifted."""
        size, wraps = grid.shape[m], grid.periodic[m]
        width = min(window, size)
        shift = width // 2 if shifted and size > width else 0
        return cls(size, width, math.ceil((size if wraps else size + shift) / width), shift, wraps)

    @property
    def full(self) -> bool:
        """Whether every place of the windows is a point of the grid."""
        return self.wraps or self.num_windows * self.width == self.size

    def laid_out(self, u: Tensor, axis: int) -> Tensor:
        """The points in the order of the places of the windows: a periodic axis goes on, others end in zeros."""
        missing = self.num_windows * self.width - self.size
        if self.wraps:
            u = u.roll(self.shift, axis) if self.shift else u
            return torch.cat([u, u.narrow(axis, 0, missing)], dim=axis) if missing else u
        if not missing:
            return u
        zeros = u.new_zeros([*u.shape[:axis], missing, *u.shape[axis + 1 :]])
        return torch.cat(
            [zeros.narrow(axis, 0, self.shift), u, zeros.narrow(axis, self.shift, missing - self.shift)], axis
        )

    def put_back(self, u: Tensor, axis: int) -> Tensor:
        """The inverse of `laid_out`."""
        u = u.narrow(axis, 0 if self.wraps else self.shift, self.size)
        return u.roll(-self.shift, axis) if self.wraps and self.shift else u


def to_windows(
    u: Shaped[Tensor, "batch *grid channel"], axes: Sequence[AxisWindows]
) -> Shaped[Tensor, "batch window token channel"]:
    """The points of each window."""
    num_axes = len(axes)
    for m, axis in enumerate(axes):
        u = axis.laid_out(u, m + 1)
    for m in reversed(range(num_axes)):
        u = u.unflatten(m + 1, (axes[m].num_windows, axes[m].width))
    outer, inner = range(1, 2 * num_axes, 2), range(2, 2 * num_axes + 1, 2)
    u = u.permute(0, *outer, *inner, 2 * num_axes + 1)
    return u.flatten(num_axes + 1, 2 * num_axes).flatten(1, num_axes)


def from_windows(
    windows: Shaped[Tensor, "batch window token channel"], axes: Sequence[AxisWindows]
) -> Shaped[Tensor, "batch *grid channel"]:
    """The inverse of `to_windows`."""
    num_axes = len(axes)
    u: Tensor = windows.unflatten(2, [axis.width for axis in axes]).unflatten(1, [axis.num_windows for axis in axes])
    order = [place for m in range(num_axes) for place in (m + 1, num_axes + m + 1)]
    u = u.permute(0, *order, 2 * num_axes + 1)
    for m, axis in enumerate(axes):
        u = axis.put_back(u.flatten(m + 1, m + 2), m + 1)
    return u


class WindowAttention(nn.Module):
    """Multi-head attention between the points of a window, any number of axes; the caller adds the residual."""

    def __init__(self, num_axes: int, dim: int, heads: int, head_dim: int, window: int, shifted: bool) -> None:
        super().__init__()
        self.heads, self.window, self.shifted = heads, window, shifted
        self.to_factors = nn.Linear(dim, 3 * heads * head_dim, bias=False)
        self.query_bias = nn.Parameter(torch.zeros(heads * head_dim))
        self.value_bias = nn.Parameter(torch.zeros(heads * head_dim))
        self.sharpness = nn.Parameter(torch.full((heads, 1, 1), math.log(10.0)))
        self.distance_bias = nn.Sequential(
            nn.Linear(num_axes, BIAS_WIDTH), nn.ReLU(), nn.Linear(BIAS_WIDTH, heads, bias=False)
        )
        self.to_output = nn.Linear(heads * head_dim, dim)
        self.tables = TableCache()

    def axes(self, grid: Grid) -> list[AxisWindows]:
        return [AxisWindows.along(grid, m, self.window, self.shifted) for m in range(grid.num_axes)]

    def forward(
        self, u: Float[Tensor, "batch *grid dim"], grid: Grid, mask: Mask | None = None
    ) -> Float[Tensor, "batch *grid dim"]:
        axes = self.axes(grid)
        queries, keys, values = self.to_factors(to_windows(inside(u, mask), axes)).chunk(3, dim=-1)
        queries, keys, values = (
            x.unflatten(-1, (self.heads, -1)).transpose(-2, -3)
            for x in (queries + self.query_bias, keys, values + self.value_bias)
        )
        sharpness = self.sharpness.clamp(max=SHARPEST).exp()
        queries = (functional.normalize(queries, dim=-1) * sharpness).to(values.dtype)
        keys = functional.normalize(keys, dim=-1).to(values.dtype)
        added = self.distances(grid, u)
        hidden = self.hidden(grid, mask, u)
        if hidden is not None:
            added = added + hidden
        attended = functional.scaled_dot_product_attention(
            queries, keys, values, attn_mask=added.to(values.dtype), scale=1.0
        )
        merged: Tensor = self.to_output(attended.transpose(-2, -3).flatten(-2))
        return from_windows(merged, axes)

    def distances(self, grid: Grid, like: Tensor) -> Float[Tensor, "1 1 head token token"]:
        """The bias of the distance between the points of a window."""
        widths = [axis.width for axis in self.axes(grid)]
        (offsets,) = self.tables.get("offsets", grid, 0, like, lambda: (log_offsets(widths),))
        (index,) = self.tables.get("index", grid, 0, like, lambda: (offset_index(widths),), torch.int64)
        table = 16 * self.distance_bias(offsets).sigmoid()
        bias: Tensor = table[index.flatten()].unflatten(0, index.shape).movedim(-1, 0)
        return bias[None, None]

    def hidden(self, grid: Grid, mask: Mask | None, like: Tensor) -> Float[Tensor, "batch window 1 1 token"] | None:
        """What hides the places of windows that lie behind a wall or outside the domain; ``None``: there are none."""
        axes = self.axes(grid)
        if mask is not None:
            return HIDDEN * (~to_windows(mask.unsqueeze(-1), axes))[:, :, None, None, :, 0].to(like.dtype)
        if all(axis.full for axis in axes):
            return None

        def make() -> tuple[Tensor, ...]:
            return (HIDDEN * (1 - to_windows(torch.ones(1, *grid.shape, 1), axes))[:, :, None, None, :, 0],)

        return self.tables.get("hidden", grid, 0, like, make)[0]


def log_offsets(widths: Sequence[int]) -> Float[Tensor, "offset axis"]:
    """Distances between points of a window, ``sign(x) log₂(1 + 8|x|) / 3`` of their share ``x`` of the width."""
    lines = [torch.arange(1 - width, width, dtype=torch.float64) / max(1, width - 1) for width in widths]
    shares = torch.stack(torch.meshgrid(*lines, indexing="ij"), dim=-1).flatten(0, -2)
    return shares.sign() * (1 + 8 * shares.abs()).log2() / 3


def offset_index(widths: Sequence[int]) -> Int[Tensor, "token token"]:
    """Where the distance between each two points of a window stands in `log_offsets`."""
    lines = [torch.arange(width) for width in widths]
    points = torch.stack(torch.meshgrid(*lines, indexing="ij"), dim=-1).flatten(0, -2)
    index = torch.zeros(len(points), len(points), dtype=torch.int64)
    for m, width in enumerate(widths):
        offsets = points[:, None, m] - points[None, :, m] + width - 1
        index = index * (2 * width - 1) + offsets
    return index
