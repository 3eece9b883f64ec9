"""Space to depth and depth to space, on the grid of a surrogate's training and on others of the same box.

    (batch, frame, *grid, channel)  ⇄  (batch, frame, *grid of patches, position in the patch · channel)

On a grid of another spacing there are as many points in a patch, but a patch keeps its extent in space: its values are
taken where they lay at home, by cubic interpolation between the points, and what was made at these places is
interpolated back to the points. So the same weights see differences over the same distances, and answers converge as
the grid is refined.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from factformer.errors import UserError
from factformer.grid import Grid
from factformer.nn.convolution import pad_axis
from factformer.nn.grid_tables import TableCache
from factformer.nn.patches.patched_grid import PatchedGrid

MOST_GRIDS = 16
"""Grids that are remembered."""
STENCIL = 4
"""Points that an interpolation is made of: it is exact for cubic polynomials."""


class Patches(nn.Module):
    """Patches of ``patch[m]`` points along each axis of ``home``; holds no parameters."""

    def __init__(self, patch: tuple[int, ...], home: Grid) -> None:
        super().__init__()
        self.patch, self.home = patch, PatchedGrid(home, patch)
        self.tables = TableCache()
        self.grids = {home.key: self.home}

    @property
    def size(self) -> int:
        """Points of a patch."""
        return math.prod(self.patch)

    def grid(self, grid: Grid) -> Grid:
        """The grid of patches of ``grid``; raises where there is none."""
        return grid.coarsened(self.whole_grid(grid.whole), self.patch)

    def missing(self, grid: Grid) -> list[int]:
        """Points of the last patch of each axis that lie beyond its end."""
        return [-size % p for size, p in zip(grid.shape, self.patch, strict=True)]

    def rearranges(self, grid: Grid) -> bool:
        """Whether cutting frames on ``grid`` changes nothing but the order of their numbers."""
        there = not grid.cut_axes and not any(self.missing(grid))
        return there and all(self._is_home(grid, m) for m in range(grid.num_axes))

    def whole_grid(self, grid: Grid) -> PatchedGrid:
        """The grid of patches of a grid that is not cut."""
        if grid.key not in self.grids:
            if len(self.grids) >= MOST_GRIDS:
                self.grids = {self.home.fine.key: self.home}
            self.grids[grid.key] = PatchedGrid(grid, self.patch)
        return self.grids[grid.key]

    def split(
        self, frames: Float[Tensor, "batch frame *grid channel"], grid: Grid
    ) -> Float[Tensor, "batch frame *coarse channels"]:
        """Frames on ``grid`` as channels of its patches, channel by channel for each position in the patch."""
        coarse = self.grid(grid)
        for m, missing in enumerate(self.missing(grid)):
            if self._is_home(grid, m):
                frames = mirrored(frames, m + 2, missing)
            else:
                frames = multiplied(self._matrix("split", grid, m, frames), frames, m + 2)
        axes = grid.num_axes
        apart = frames.unflatten(2, (coarse.shape[0], self.patch[0]))
        for m in range(1, axes):
            apart = apart.unflatten(2 + 2 * m, (coarse.shape[m], self.patch[m]))
        order = [2 + 2 * m for m in range(axes)] + [3 + 2 * m for m in range(axes)]
        cut: Tensor = apart.permute(0, 1, *order, -1).flatten(axes + 2)
        return cut

    def join(
        self, values: Float[Tensor, "batch frame *coarse channels"], grid: Grid
    ) -> Float[Tensor, "batch frame *grid channel"]:
        """Channels of the patches as fields on ``grid``: the reverse of `split`."""
        axes = grid.num_axes
        order = [place for m in range(axes) for place in (2 + m, 2 + axes + m)]
        fields: Tensor = values.unflatten(-1, (*self.patch, -1)).permute(0, 1, *order, -1)
        for m in range(axes):
            fields = fields.flatten(2 + m, 3 + m)
            if not self._is_home(grid, m):
                fields = multiplied(self._matrix("join", grid, m, values), fields, m + 2)
            elif self.missing(grid)[m]:
                fields = fields.narrow(2 + m, 0, grid.shape[m])
        return fields

    def inside(self, mask: Bool[Tensor, "batch *grid"], grid: Grid) -> Bool[Tensor, "batch *coarse"]:
        """Which patches have a point inside the domain."""
        coarse = self.grid(grid)
        beyond = [width for missing in reversed(self.missing(grid)) for width in (0, missing)]
        mask = torch.nn.functional.pad(mask, beyond)
        for m, size in enumerate(coarse.shape):
            mask = mask.unflatten(m + 1, (size, self.patch[m])).any(m + 2)
        return mask

    def _is_home(self, grid: Grid, m: int) -> bool:
        """Whether the points of axis ``m`` are as far apart as at home; uneven ones keep their numbers."""
        home = self.home.fine
        patched = self.patch[m] > 1 and home.is_even(m) and grid.is_even(m)
        return not patched or math.isclose(grid.spacing(m), home.spacing(m), rel_tol=1e-6)

    def _matrix(self, way: Literal["split", "join"], grid: Grid, m: int, like: Tensor) -> Tensor:
        """To the places of the patches along axis ``m`` or back from them, made once for each grid."""
        make = self._to_places if way == "split" else self._from_places
        if m in grid.cut_axes:
            raise UserError("a grid that is cut over processes must have the spacing of the surrogate's own grid")
        return self.tables.get(way, grid, m, like, lambda: (make(self.whole_grid(grid.whole), m),))[0]

    def _places(self, coarse: PatchedGrid, m: int) -> Float[Tensor, "patch position"]:
        """Where the values of each patch lie: about its centre as at home."""
        p, centres = self.patch[m], coarse.axis(m)
        return centres[:, None] + (torch.arange(p, dtype=torch.float64) - (p - 1) / 2) * self.home.fine.spacing(m)

    def _to_places(self, coarse: PatchedGrid, m: int) -> Float[Tensor, "place point"]:
        """Values at the places of all patches from those at the points of the axis; an end value is kept beyond it."""
        x, wanted = coarse.fine.axis(m), self._places(coarse, m).flatten()
        period = coarse.extent[m] if coarse.periodic[m] else None
        return lagrange(x, wanted if period else wanted.clamp(x[0], x[-1]), period)

    def _from_places(self, coarse: PatchedGrid, m: int) -> Float[Tensor, "point place"]:
        """Values at the points of the axis from those at the places of all patches.

        Values of one position in all patches are a field of their own, which is interpolated between the patches. The
        fields of the positions next to a point count by its distance from them; none is continued beyond a wall.
        """
        x, places = coarse.fine.axis(m), self._places(coarse, m)
        p, period = self.patch[m], coarse.extent[m] if coarse.periodic[m] else None
        offsets = places[0] - coarse.axis(m)[0]
        own = x - coarse.axis(m).repeat_interleave(p)[: len(x)]
        share = hats(offsets, own)
        if period is None:
            reached = (x[:, None] >= places[0]) & (x[:, None] <= places[-1])
            share = torch.where(reached.any(1, keepdim=True), share.clamp_min(1e-6) * reached, share)
            share = share / share.sum(1, keepdim=True)
        fields = torch.stack([lagrange(places[:, k].contiguous(), x, period) for k in range(p)], dim=-1)
        return (fields * share[:, None, :]).flatten(1)


def lagrange(
    points: Float[Tensor, "point"], wanted: Float[Tensor, "wanted"], period: float | None = None
) -> Float[Tensor, "wanted point"]:
    """The matrix that interpolates from increasing ``points`` with the polynomial through the nearest `STENCIL`."""
    if period is not None:
        around = torch.cat([points - period, points, points + period])
        matrix: Tensor = lagrange(around, (wanted - points[0]) % period + points[0]).unflatten(1, (3, -1)).sum(1)
        return matrix
    count = min(STENCIL, len(points))
    left = torch.searchsorted(points, wanted, right=True) - 1
    columns = (left - (count // 2 - 1)).clamp(0, len(points) - count)[:, None] + torch.arange(count)
    nodes = points[columns]
    shares = torch.zeros(len(wanted), len(points), dtype=torch.float64)
    for k in range(count):
        others = [j for j in range(count) if j != k]
        share = (wanted[:, None] - nodes[:, others]) / (nodes[:, k : k + 1] - nodes[:, others])
        shares.scatter_(1, columns[:, k : k + 1], share.prod(1, keepdim=True))
    return shares


def hats(points: Float[Tensor, "point"], wanted: Float[Tensor, "wanted"]) -> Float[Tensor, "wanted point"]:
    """The shares of linear interpolation between ``points``; beyond the first and last, that one alone."""
    inner = wanted.clamp(points[0], points[-1])[:, None]
    return (1 - (inner - points).abs() / (points[1] - points[0])).clamp_min(0)


def mirrored(u: Tensor, axis: int, width: int) -> Tensor:
    """``u`` continued at the end of ``axis`` by its mirror image: values of the same size, whatever the units."""
    if width == 0:
        return u
    return pad_axis(u, axis, width, "reflect").narrow(axis, width, u.shape[axis] + width)


def multiplied(matrix: Tensor, u: Tensor, axis: int) -> Tensor:
    """The matrix times ``u`` along ``axis``, not rounded where matrix products are."""
    with torch.autocast(u.device.type, enabled=False):
        return (matrix.to(u.dtype) @ u.movedim(axis, -2)).movedim(-2, axis)
