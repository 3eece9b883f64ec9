"""A part of a grid: what one process holds. Sums over the domain go over all parts; beyond its ends lie neighbours.

Layers ask their grid for sums (`Grid.total`), maxima (`Grid.largest`) and the field beyond the ends of an axis
(`Grid.with_neighbours`). A whole grid answers alone; a part asks the other processes. So one code serves both.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from factformer.batch import Batch, Window
from factformer.errors import UserError
from factformer.grid import Grid
from factformer.nn.convolution import pad_axis
from factformer.numerics.pencils import Piece
from factformer.parallel import collectives, traffic
from factformer.parallel.groups import Group, Places


def cut_points(size: int, parts: int, multiple: int = 1) -> tuple[int, ...]:
    """Where an axis of ``size`` points is cut into ``parts``: as even as whole multiples allow, ends included."""
    units = -(-size // multiple)
    if units < parts:
        raise UserError(
            f"an axis of {size} points cannot be cut into {parts} parts of at least {multiple} points; "
            "use fewer processes or another axis"
        )
    return tuple(min(size, multiple * (units * index // parts)) for index in range(parts + 1))


class GridPart(Piece):
    """The points of ``whole`` that the one with this place in a mesh of processes holds.

    The mesh has a dimension for each axis of the grid, of size 1 where the axis is not cut. Weights and coordinates are
    those of the whole grid, so that sums over all parts are the quadrature.
    """

    def __init__(self, whole: Grid, places: Places, cuts: Sequence[tuple[int, ...]]) -> None:
        kept = [slice(points[at], points[at + 1]) for points, at in zip(cuts, places.place, strict=True)]
        super().__init__(whole, kept, cuts=tuple(cuts), places=places)

    @classmethod
    def of(cls, whole: Grid, mesh: DeviceMesh | Places, multiples: Sequence[int]) -> GridPart:
        """The part of this place where cuts lie at multiples of so many points of each axis."""
        places = mesh if isinstance(mesh, Places) else Places.of(mesh)
        if len(places.shape) != whole.num_axes:
            raise UserError(f"a grid of {whole.num_axes} axes is cut by as many numbers, got {places.shape}")
        axes = zip(whole.shape, places.shape, multiples, strict=True)
        return cls(whole, places, [cut_points(size, parts, multiple) for size, parts, multiple in axes])

    def coarsened(self, whole: Grid, steps: Sequence[int]) -> GridPart:
        """The same part of a grid ``whole`` whose points stand for ``steps`` points along each axis of this one."""
        cuts = [tuple(-(-at // step) for at in points) for points, step in zip(self.cuts, steps, strict=True)]
        return GridPart(whole, self.places, cuts)

    cuts: tuple[tuple[int, ...], ...]
    places: Places

    @property
    def cut_axes(self) -> tuple[int, ...]:
        return tuple(m for m, parts in enumerate(self.places.shape) if parts > 1)

    @cached_property
    def key(self) -> str:
        return repr((self.whole.key, self.slices, self.places.name))

    def weights(
        self, m: int, *, dtype: torch.dtype = torch.float64, device: torch.device | str | None = None
    ) -> Float[Tensor, "points"]:
        return self.whole.weights(m, dtype=dtype, device=device)[self.slices[m]]

    def equal_weights(self, m: int) -> bool:
        return m not in self.cut_axes and self.whole.equal_weights(m)

    def is_even(self, m: int) -> bool:
        return self.whole.is_even(m)

    def spacing(self, m: int) -> float:
        return self.whole.spacing(m)

    def cut(self, x: Tensor, first_dim: int) -> Tensor:
        for m, points in enumerate(self.slices):
            x = x.narrow(first_dim + m, points.start, points.stop - points.start)
        return x

    def put_together(self, x: Tensor, first_dim: int) -> Tensor:
        for m in self.cut_axes:
            sizes = tuple(b - a for a, b in zip(self.cuts[m][:-1], self.cuts[m][1:], strict=True))
            x = collectives.gather(x, first_dim + m, sizes, self.group(m))
        return x

    def group(self, m: int) -> Group:
        """The holders of the parts that differ along axis ``m`` alone."""
        group = self.places.groups[m]
        assert group is not None
        return group

    def total(self, sums: Tensor, axes: Sequence[int]) -> Tensor:
        for m in self.cut_axes:
            if m in axes:
                sums = collectives.all_sum(sums, self.group(m))
        return sums

    def largest(self, values: Tensor, axes: Sequence[int]) -> Tensor:
        for m in self.cut_axes:
            if m in axes:
                values = collectives.all_largest(values, self.group(m))
        return values

    def dense_moves_less(self, m: int, heads: int, head_dim: int, kernel_dim: int) -> bool:
        rest = self.num_points // self.shape[m]
        return traffic.dense_moves_less(self.whole.shape[m], self.places.shape[m], rest, heads, head_dim, kernel_dim)

    def contracted(self, values: Tensor, queries: Tensor, keys: Tensor, m: int) -> Tensor:
        group, sizes = self.group(m), self._sizes_like(values.shape[m + 2], m)
        both = collectives.gather(torch.cat([queries, keys], dim=-1), 2, sizes, group)
        rows, columns = both.split(queries.shape[-1], dim=-1)
        axis = m + 2
        inner = values.flatten(axis + 1)
        stacked = inner.flatten(2, axis - 1) if axis > 2 else inner.unsqueeze(2)
        result = collectives.ring_contraction(stacked, rows.contiguous(), columns.contiguous(), sizes, group)
        return result.reshape(values.shape)

    def with_neighbours(self, u: Tensor, m: int, width: int, kind: str) -> Tensor:
        axis = m + 1
        group, place = self.group(m), self.places.place[m]
        sizes = self._sizes_like(u.shape[axis], m)
        if width > min(sizes) - (kind == "reflect"):  # beyond the next process: look at the whole axis
            around = pad_axis(collectives.gather(u, axis, sizes, group), axis, width, kind)
            return around.narrow(axis, sum(sizes[:place]), sizes[place] + 2 * width)
        first, last = u.narrow(axis, 0, width), u.narrow(axis, u.shape[axis] - width, width)
        left, right = collectives.exchange(first, last, group, wraps=kind == "periodic")
        if kind == "reflect":
            if place == 0:
                left = u.narrow(axis, 1, width).flip(axis)
            if place == len(sizes) - 1:
                right = u.narrow(axis, u.shape[axis] - 1 - width, width).flip(axis)
        return torch.cat([left, u, right], dim=axis)

    def _sizes_like(self, size: int, m: int) -> tuple[int, ...]:
        """Points of each process along axis ``m`` of a field that has ``size`` of them here: all, or every second."""
        mine = self.shape[m]
        step = next((step for step in range(1, mine + 1) if -(-mine // step) == size), 1)
        return tuple(-(-(b - a) // step) for a, b in zip(self.cuts[m][:-1], self.cuts[m][1:], strict=True))


def cut_batch(batch: Batch, part: GridPart) -> Batch:
    """This part of a batch of the whole grid."""
    first = {"context": 2, "forcing": 2, "static": 1, "mask": 1}
    found = {name: part.cut(getattr(batch, name), dim) for name, dim in first.items() if name in batch.names}
    return batch._replace(**found)


def cut_window(window: Window, part: GridPart) -> Window:
    """This part of a window of the whole grid."""
    return Window(part.cut(window.frames, 2), cut_batch(window.known, part))
