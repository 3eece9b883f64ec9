"""What U-shaped models share: the grids of their levels, and the way from one level to the next.

A level has every second point of the one above it, from the first on. Any sizes work: of an odd axis the last
point is continued as the boundary says, and an axis of two points stays as it is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor, nn

from factformer.grid import Grid
from factformer.nn.conditions import UNCONDITIONED, Conditions
from factformer.nn.convolution import pad_axis
from factformer.nn.local_branch import LocalBranch
from factformer.problem import Boundary

SMALLEST_AXIS = 2


def halved(grid: Grid) -> Grid:
    """Every second point of each axis, with the coordinates that these points have; of a part, the same part."""
    if grid.cut_axes:
        return grid.coarsened(halved(grid.whole), [1 if size == SMALLEST_AXIS else 2 for size in grid.whole.shape])
    shape, extent, coordinates = list(grid.shape), list(grid.extent), list(grid.coordinates)
    for m, size in enumerate(grid.shape):
        if size == SMALLEST_AXIS:
            continue
        shape[m] = math.ceil(size / 2)
        wraps, cells = grid.periodic[m], grid.points[m] == "cells"
        if grid.is_uniform(m) and (size % 2 == 0 if wraps else cells or size % 2 == 1):
            continue  # evenly spaced in the same box; cells join in pairs
        with torch.device("cpu"):  # a network that is built without memory needs numbers here
            kept = grid.axis(m)[::2].tolist()
        coordinates[m] = tuple(kept)
        extent[m] = grid.extent[m] if wraps else kept[-1] - kept[0]
    return Grid(shape, extent, grid.periodic, grid.points, coordinates=coordinates)


class Levels:
    """The grids of a number of levels, remembered for each grid that is asked for."""

    def __init__(self, num_levels: int) -> None:
        self.num_levels = num_levels
        self.known: dict[str, tuple[Grid, ...]] = {}

    def of(self, grid: Grid) -> tuple[Grid, ...]:
        """``grid`` itself and those below it."""
        if grid.key not in self.known:
            grids = [grid]
            for _ in range(self.num_levels - 1):
                grids.append(halved(grids[-1]))
            self.known[grid.key] = tuple(grids)
        return self.known[grid.key]

    def conditions(self, conditions: Conditions, grid: Grid | None = None) -> tuple[Conditions, ...]:
        """The conditions on each level: a point is inside the domain where one of those it stands for is."""
        each = [conditions]
        grids = [None] * self.num_levels if grid is None else self.of(grid)
        for level in range(self.num_levels - 1):
            mask = each[-1].mask
            each.append(conditions if mask is None else conditions._replace(mask=halved_mask(mask, grids[level])))
        return tuple(each)


def halved_mask(mask: Bool[Tensor, "batch *grid"], grid: Grid | None = None) -> Bool[Tensor, "batch *coarse"]:
    merged = merge(mask.unsqueeze(-1), ["zero"] * (mask.ndim - 1), grid)
    return merged.any(-1)


def double_short_axes(
    u: Shaped[Tensor, "batch *grid dim"], grid: Grid | None = None
) -> Shaped[Tensor, "batch *doubled dim"]:
    """Axes of two points, each point twice: halving them gives the same two points.

    A part of a ``grid`` may have two points along an axis that has more.
    """
    shape = u.shape[1:-1] if grid is None else grid.whole.shape
    for axis, size in enumerate(shape, start=1):
        if size == SMALLEST_AXIS:
            u = u.repeat_interleave(2, axis)
    return u


def merge(
    u: Shaped[Tensor, "batch *grid dim"], padding: Sequence[Boundary], grid: Grid | None = None
) -> Shaped[Tensor, "batch *coarse merged"]:
    """The channels of ``2ⁿ`` neighbouring points side by side, on the grid of every second point."""
    u = double_short_axes(u, grid)
    num_axes = u.ndim - 2
    for axis, kind in enumerate(padding, start=1):
        size = u.shape[axis]
        if size % 2:
            u = pad_axis(u, axis, 1, kind).narrow(axis, 1, size + 1)
    for axis in range(num_axes, 0, -1):
        u = u.unflatten(axis, (-1, 2))
    pairs, inside = range(1, 2 * num_axes, 2), range(2, 2 * num_axes + 1, 2)
    return u.permute(0, *pairs, *inside, 2 * num_axes + 1).flatten(num_axes + 1)


def spread(u: Float[Tensor, "batch *coarse merged"], shape: Sequence[int]) -> Float[Tensor, "batch *grid dim"]:
    """The inverse of `merge`: each point becomes ``2ⁿ`` of a grid of ``shape``, with a share of its channels."""
    num_axes = u.ndim - 2
    u = u.unflatten(-1, (*[2] * num_axes, -1))
    order = [place for m in range(num_axes) for place in (m + 1, num_axes + m + 1)]
    u = u.permute(0, *order, 2 * num_axes + 1)
    for axis in range(1, num_axes + 1):
        u = u.flatten(axis, axis + 1)
    for axis, size in enumerate(shape, start=1):
        if size == SMALLEST_AXIS and u.shape[axis] > size:
            u = u.unflatten(axis, (size, 2)).mean(axis + 1)
        u = u.narrow(axis, 0, size)
    return u


class ConvNeXtBlock(nn.Module):
    """``z ← z + γ W₂ σ( W₁ LayerNorm( D ⋆ z ) )`` (Liu et al. 2022, arXiv:2201.03545): D depthwise, γ per channel."""

    def __init__(
        self, dim: int, kernel_size: int, feed_forward: int, padding: tuple[Boundary, ...], layer_scale: float
    ) -> None:
        super().__init__()
        self.branch = LocalBranch(dim, kernel_size, feed_forward, padding)
        self.scale = nn.Parameter(torch.full((dim,), layer_scale))

    def forward(
        self, z: Float[Tensor, "batch *grid dim"], grid: Grid, conditions: Conditions = UNCONDITIONED
    ) -> Float[Tensor, "batch *grid dim"]:
        result: Tensor = z + self.scale * self.branch(z, None, conditions.mask)
        return result
