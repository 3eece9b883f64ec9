"""Periodic fields cut over processes: which points and modes each one holds, and how the one is turned into the other.

A process holds whole lines of points along the last axis. The others may be cut: all but one whole is a *slab*, more
than one cut a *pencil*. A transform goes axis by axis, from the last to the first; before axis ``m`` is transformed,
the processes among which it is cut exchange parts, so that ``m`` becomes whole and axis ``m + 1``, which holds modes by
then, is cut in its place:

    points   S_1/P_1 x S_2/P_2 x S_3      →  rfft along 3, exchange 2 ↔ 3
             S_1/P_1 x S_2 x M_3/P_2      →  fft along 2, exchange 1 ↔ 2
             S_1 x M_2/P_1 x M_3/P_2      →  fft along 1
    modes    M_1 x M_2/P_1 x M_3/P_2

Modes that are not kept are dropped before each exchange, and never sent. A process that holds the index ``k`` of a cut
axis holds ``-k`` too, so that a mode and its mirror image are in one place. Parts may be uneven, those of modes empty.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from factformer.errors import UserError
from factformer.grid import Grid
from factformer.numerics.mirror import Ranges, whole_ranges

LEAST_POINTS = 4
"""Points along the next axis for each part of an axis: products of three fields keep a quarter of them as modes."""


def part_of(size: int, parts: int, place: int) -> slice:
    """Which of ``size`` things the process at this place holds."""
    return slice(size * place // parts, size * (place + 1) // parts)


def cut_for(shape: Sequence[int], processes: int) -> tuple[int, ...]:
    """How many parts each axis of a grid is cut into: slabs where they are thick enough, else pencils."""
    most = [min(size, max(1, following // LEAST_POINTS)) for size, following in itertools.pairwise(shape)]
    found = [(*parts, 1) for parts in _factors(processes, most)]
    if not found:
        raise UserError(
            f"a periodic grid of {' x '.join(map(str, shape))} points cannot be cut over {processes} processes; "
            f"use at most {math.prod(most)}"
        )

    def cost(parts: tuple[int, ...]) -> tuple[int, int, int]:
        largest = math.prod(-(-size // count) for size, count in zip(shape, parts, strict=True))
        return sum(count > 1 for count in parts), largest, sum(parts)

    # Among equals the first axes are cut: a part is then a long run of bytes in a file.
    return min(reversed(found), key=cost)


def _factors(product: int, most: Sequence[int]) -> list[tuple[int, ...]]:
    """All ways to write a number as a product of numbers not above ``most``."""
    if not most:
        return [()] if product == 1 else []
    first = [count for count in range(1, min(product, most[0]) + 1) if product % count == 0]
    return [(count, *rest) for count in first for rest in _factors(product // count, most[1:])]


def mode_ranges(cutoff: Sequence[int], parts: Sequence[int], place: Sequence[int]) -> Ranges:
    """The modes that the process at this place holds: axis ``m + 1`` is cut like the points of axis ``m``."""
    cut = [part_of(largest + 1, *at) for largest, at in zip(cutoff[1:], zip(parts, place, strict=True), strict=False)]
    return ((0, cutoff[0] + 1), *((kept.start, kept.stop) for kept in cut))


class Pencils:
    """The place of this process among those that share a field; by itself the only one, which holds all of it."""

    def __init__(self, mesh: DeviceMesh | None = None) -> None:
        """``mesh`` has a dimension for each axis of the grid, of size 1 for the last."""
        self.mesh = mesh
        place = None if mesh is None else mesh.get_coordinate()
        self.parts: tuple[int, ...] = () if mesh is None else tuple(mesh.shape)
        self.place: tuple[int, ...] = () if place is None else tuple(place)
        if self.parts and self.parts[-1] != 1:
            raise UserError(f"the last axis of a periodic field cannot be cut, got {self.parts} parts")

    @property
    def is_whole(self) -> bool:
        """Whether this process holds whole fields."""
        return math.prod(self.parts) == 1

    def points(self, shape: Sequence[int]) -> tuple[slice, ...]:
        """The points of a grid of ``shape`` that this process holds."""
        if not self.parts:
            return tuple(slice(0, size) for size in shape)
        return tuple(part_of(*axis) for axis in zip(shape, self.parts, self.place, strict=True))

    def ranges(self, cutoff: Sequence[int]) -> Ranges:
        """Of the modes ``|k_m| ≤ cutoff[m]`` this process holds those with ``first ≤ |k_m| < end``, for each axis."""
        return mode_ranges(cutoff, self.parts, self.place) if self.parts else whole_ranges(cutoff)

    def to_modes(self, x: Tensor, m: int, size: int) -> Tensor:
        """Axis ``m``, of which the points are cut, made whole, and the modes of the next axis cut; ``size`` points."""
        if not self.parts or self.parts[m] == 1:
            return x
        axis, (parts, place) = self._axis(x, m), (self.parts[m], self.place[m])
        count, last = x.shape[axis + 1], m + 2 == len(self.parts)
        pieces = [_views(x, axis + 1, _held(count, parts, other, last)) for other in range(parts)]
        here = sum(piece.shape[axis + 1] for piece in pieces[place])
        sizes = [_length(part_of(size, parts, other)) for other in range(parts)]
        shapes = [(*x.shape[:axis], length, here, *x.shape[axis + 2 :]) for length in sizes]
        return torch.cat(self._exchanged(pieces, axis + 1, shapes, m), dim=axis)

    def to_points(self, x: Tensor, m: int, count: int) -> Tensor:
        """The way back: axis ``m`` cut, and the next one, of ``count`` modes in all, made whole."""
        if not self.parts or self.parts[m] == 1:
            return x
        axis, (parts, place) = self._axis(x, m), (self.parts[m], self.place[m])
        size, last = x.shape[axis], m + 2 == len(self.parts)
        cuts = [part_of(size, parts, other) for other in range(parts)]
        pieces = [_views(x, axis, [points]) for points in cuts]
        held = [_held(count, parts, other, last) for other in range(parts)]
        here = _length(cuts[place])
        shapes = [(*x.shape[:axis], here, sum(map(_length, kept)), *x.shape[axis + 2 :]) for kept in held]
        received = self._exchanged(pieces, axis, shapes, m)
        result = x.new_empty((*x.shape[:axis], here, count, *x.shape[axis + 2 :]))
        for piece, kept in zip(received, held, strict=True):
            start = 0
            for modes in kept:
                length = _length(modes)
                result.narrow(axis + 1, modes.start, length).copy_(piece.narrow(axis + 1, start, length))
                start += length
        return result

    def modes_of(self, x: Tensor, m: int) -> Tensor:
        """Those entries of a tensor, whose last dimension holds all modes of axis ``m``, that this process holds."""
        if m == 0 or not self.parts:
            return x
        kept = _held(x.shape[-1], self.parts[m - 1], self.place[m - 1], m + 1 == len(self.parts))
        return torch.cat(_views(x, x.ndim - 1, kept), dim=-1)

    def total(self, sums: Tensor) -> Tensor:
        """The sum over all processes of what each of them gives."""
        for m, count in enumerate(self.parts):
            if count > 1:
                sums = sums.contiguous().clone()
                dist.all_reduce(sums, group=self._group(m))
        return sums

    def _axis(self, x: Tensor, m: int) -> int:
        return x.ndim - len(self.parts) + m

    def _group(self, m: int) -> dist.ProcessGroup:
        assert self.mesh is not None
        return self.mesh.get_group(m)

    def _exchanged(
        self, pieces: Sequence[Sequence[Tensor]], axis: int, shapes: Sequence[tuple[int, ...]], m: int
    ) -> list[Tensor]:
        """What the processes along axis ``m`` send to this one, of these shapes, for the pieces that they are sent.

        A piece is given as views side by side along dimension ``axis``; they are copied once, to where they are sent.
        """
        like = pieces[0][0]
        sent, coming = [sum(view.numel() for view in piece) for piece in pieces], [math.prod(size) for size in shapes]
        given, received = like.new_empty(sum(sent)), like.new_empty(sum(coming))
        for piece, place in zip(pieces, given.split(sent), strict=True):
            sizes = [view.shape[axis] for view in piece]
            target = place.view(*like.shape[:axis], sum(sizes), *like.shape[axis + 1 :])
            for view, into in zip(piece, target.split(sizes, dim=axis), strict=True):
                into.copy_(view)
        dist.all_to_all_single(
            torch.view_as_real(received), torch.view_as_real(given), coming, sent, group=self._group(m)
        )
        return [part.view(shape) for part, shape in zip(received.split(coming), shapes, strict=True)]


WHOLE = Pencils()
"""One process that holds whole fields."""


class Piece(Grid):
    """The points of a grid in a slice of each axis. Lengths are those of the whole grid; coordinates
    are its own part of them."""

    _whole: Grid
    slices: tuple[slice, ...]

    def __init__(self, whole: Grid, slices: Sequence[slice], **own: Any) -> None:
        axes = zip(whole.coordinates, slices, strict=True)
        values = {
            "shape": tuple(_length(points) for points in slices),
            "extent": whole.extent,
            "periodic": whole.periodic,
            "points": whole.points,
            "coordinates": tuple(None if axis is None else axis[points] for axis, points in axes),
            "_whole": whole,
            "slices": tuple(slices),
        }
        for name, value in {**values, **own}.items():
            object.__setattr__(self, name, value)

    @property
    def whole(self) -> Grid:
        return self._whole

    def axis(
        self, m: int, *, dtype: torch.dtype = torch.float64, device: torch.device | str | None = None
    ) -> Float[Tensor, "points"]:
        return self.whole.axis(m, dtype=dtype, device=device)[self.slices[m]]


class PeriodicPart(Piece):
    """The points of a periodic grid that this process holds."""

    pencils: Pencils

    def __init__(self, whole: Grid, pencils: Pencils) -> None:
        super().__init__(whole, pencils.points(whole.shape), pencils=pencils)

    @property
    def cut_axes(self) -> tuple[int, ...]:
        return tuple(m for m, count in enumerate(self.pencils.parts) if count > 1)

    @property
    def key(self) -> str:
        return repr((self.whole.key, self.slices))

    def cut(self, x: Tensor, first_dim: int) -> Tensor:
        for m, points in enumerate(self.slices):
            x = x.narrow(first_dim + m, points.start, _length(points))
        return x

    def wavenumbers(self, m: int, **options: Any) -> Float[Tensor, "modes"]:
        """Those of the modes that this process holds."""
        return self.pencils.modes_of(self.whole.wavenumbers(m, **options), m)


def pencils_of(grid: Grid) -> Pencils:
    """How a grid is cut."""
    return grid.pencils if isinstance(grid, PeriodicPart) else WHOLE


def _held(count: int, parts: int, place: int, last: bool) -> list[slice]:
    """Where the modes of one process lie among ``count`` of an axis in the order of ``rfft`` (``last``) or ``fft``."""
    if last:
        return [part_of(count, parts, place)]
    kept = part_of((count + 1) // 2, parts, place)
    return [kept, slice(count + 1 - kept.stop, count + 1 - max(kept.start, 1))] if _length(kept) else [kept]


def _views(x: Tensor, axis: int, kept: Sequence[slice]) -> list[Tensor]:
    return [x.narrow(axis, points.start, _length(points)) for points in kept]


def _length(points: slice) -> int:
    return int(points.stop - points.start)
