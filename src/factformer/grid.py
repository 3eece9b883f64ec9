"""Rectilinear grids: coordinates, quadrature weights and wavenumbers of each axis.

An axis is one of

* periodic: points ``x_j = j L / S``, the end point is the first one again and is not stored;
* nodes: both ends included, ``x_j = j L / (S - 1)``;
* cells: centres, ``x_j = (j + 1/2) L / S``;
* explicit: any increasing coordinates (`Grid.from_axes`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import index
from typing import Any, Self

import torch
from jaxtyping import Float
from torch import Tensor

from factformer._support.axes import coordinates_of, evenly_spaced, number, per_axis, require_increasing, require_length
from factformer.errors import UserError

POINTS = ("nodes", "cells")
MAX_AXES = 4
MOST_POINTS = 2**24
"""Points along one axis."""
MOST_IN_ALL = 2**36
"""Points of a grid: one channel of it is a quarter of a terabyte."""
LENGTHS = (1e-30, 1e30)
"""Lengths that float32 can still square."""


@dataclass(frozen=True)
class Grid:
    """A tensor-product grid of 1 to 4 axes on a box.

    ``extent`` holds the length of each axis and ``periodic`` whether it wraps around; ``points`` says where
    the values of non-periodic axes sit, ``"nodes"`` or ``"cells"``. A single value stands for all axes.
    """

    shape: tuple[int, ...]
    extent: tuple[float, ...]
    periodic: tuple[bool, ...]
    points: tuple[str, ...] = ("nodes",)
    coordinates: tuple[tuple[float, ...] | None, ...] = field(default=(), repr=False)

    def __init__(
        self,
        shape: int | Sequence[int],
        extent: float | Sequence[float],
        periodic: bool | Sequence[bool],
        points: str | Sequence[str] = "nodes",
        *,
        coordinates: Sequence[Sequence[float] | None] | None = None,
    ) -> None:
        try:
            sizes = (index(shape),) if hasattr(shape, "__index__") else tuple(index(size) for size in shape)
        except TypeError:
            raise UserError(f"a shape is a whole number of points for each axis, got {shape!r}") from None
        num_axes = len(sizes)
        if not 1 <= num_axes <= MAX_AXES:
            raise UserError(f"a grid has 1 to {MAX_AXES} axes, got shape {sizes}")
        if max(sizes) > MOST_POINTS or math.prod(sizes) > MOST_IN_ALL:
            raise UserError(
                f"a grid has at most {MOST_POINTS} points along an axis and {MOST_IN_ALL} in all, got shape {sizes}"
            )
        lengths = tuple(number("extent", length) for length in per_axis("extent", extent, num_axes))
        flags = per_axis("periodic", periodic, num_axes)
        if any(flag not in (True, False) for flag in flags):
            raise UserError(f"periodic is true or false for each axis, got {periodic!r}")
        wraps = tuple(bool(flag) for flag in flags)
        kinds = tuple(str(kind) for kind in per_axis("points", points, num_axes))
        explicit: tuple[tuple[float, ...] | None, ...] = (None,) * num_axes
        if coordinates is not None:
            given = per_axis("coordinates", coordinates, num_axes)
            explicit = tuple(None if axis is None else coordinates_of(m, axis) for m, axis in enumerate(given))
        for m, (size, length, kind, axis) in enumerate(zip(sizes, lengths, kinds, explicit, strict=True)):
            if kind not in POINTS:
                raise UserError(f"points of axis {m} must be one of {POINTS}, got {kind!r}")
            if size < 2:
                raise UserError(f"axis {m} needs at least 2 points, got {size}")
            if axis is not None and len(axis) != size:
                raise UserError(f"axis {m} has {len(axis)} coordinates but the shape says {size}")
            if axis is not None:
                require_increasing(f"axis {m}", axis)
            if not LENGTHS[0] < length < LENGTHS[1]:
                between = f"; lengths lie between {LENGTHS[0]:g} and {LENGTHS[1]:g}" if length > 0 else ""
                raise UserError(f"extent of axis {m} must be a positive length, got {length}{between}")
            if axis is not None:
                require_length(m, axis[-1] - axis[0], length, wraps[m])
        for name, value in (
            ("shape", sizes),
            ("extent", lengths),
            ("periodic", wraps),
            ("points", kinds),
            ("coordinates", explicit),
        ):
            object.__setattr__(self, name, value)

    @classmethod
    def from_axes(
        cls,
        axes: Sequence[Sequence[float] | Tensor],
        periodic: bool | Sequence[bool] = False,
        extent: float | Sequence[float] | None = None,
    ) -> Self:
        """A grid with given, increasing coordinates on each axis, evenly spaced or not.

        The length of an axis is the distance between its ends, and ``extent`` can say no other; for a periodic
        axis that is not enough, so ``extent`` must give the period, which is longer than that distance.
        """
        lists = [coordinates_of(m, axis) for m, axis in enumerate(axes)]
        wraps = per_axis("periodic", periodic, len(lists))
        lengths = None if extent is None else per_axis("extent", extent, len(lists))
        spans = []
        for m, (axis, wrap) in enumerate(zip(lists, wraps, strict=True)):
            require_increasing(f"axis {m}", axis)
            span = axis[-1] - axis[0]
            if wrap and lengths is None:
                raise UserError(f"axis {m} is periodic: give its period in extent, larger than {span:g}")
            spans.append(span if lengths is None else lengths[m])
        return cls([len(axis) for axis in lists], spans, wraps, coordinates=lists)

    @property
    def num_axes(self) -> int:
        return len(self.shape)

    @property
    def num_points(self) -> int:
        return math.prod(self.shape)

    def is_uniform(self, m: int) -> bool:
        """Whether axis ``m`` is evenly spaced by construction."""
        return self.coordinates[m] is None

    def is_even(self, m: int) -> bool:
        """Whether neighbours along axis ``m`` are equally far apart, by construction or as given."""
        return self._even[m]

    @cached_property
    def _even(self) -> tuple[bool, ...]:
        with torch.device("cpu"):  # a network that is built without memory needs numbers here
            return tuple(self.is_uniform(m) or evenly_spaced(self._gaps(m), self.axis(m)) for m in range(self.num_axes))

    def spacing(self, m: int) -> float:
        """Distance between neighbours along axis ``m``; the mean one where it is not even."""
        closed = not self.periodic[m] and not (self.is_uniform(m) and self.points[m] == "cells")
        return self.extent[m] / max(1, self.shape[m] - closed)

    @cached_property
    def key(self) -> str:
        """A string that is equal exactly for equal grids; tables derived from a grid are cached under it."""
        return repr((self.shape, self.extent, self.periodic, self.points, self.coordinates))

    def axis(
        self, m: int, *, dtype: torch.dtype = torch.float64, device: torch.device | str | None = None
    ) -> Float[Tensor, "points"]:
        """Physical coordinates of axis ``m``."""
        explicit = self.coordinates[m]
        size, length = self.shape[m], self.extent[m]
        if explicit is not None:
            values = torch.tensor(explicit, dtype=torch.float64)
        else:
            index = torch.arange(size, dtype=torch.float64)
            if self.periodic[m]:
                values = index * (length / size)
            elif self.points[m] == "cells":
                values = (index + 0.5) * (length / size)
            else:
                values = index * (length / (size - 1))
        return values.to(device=device, dtype=dtype)

    def mesh(
        self, *, dtype: torch.dtype = torch.float64, device: torch.device | str | None = None
    ) -> Float[Tensor, "*grid axis"]:
        """Coordinates of every point."""
        axes = [self.axis(m, dtype=dtype, device=device) for m in range(self.num_axes)]
        return torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1)

    def equal_weights(self, m: int) -> bool:
        """Whether the quadrature of axis ``m`` is a plain mean."""
        return self.coordinates[m] is None and (self.periodic[m] or self.points[m] == "cells")

    def weights(
        self, m: int, *, dtype: torch.dtype = torch.float64, device: torch.device | str | None = None
    ) -> Float[Tensor, "points"]:
        """Quadrature weights of axis ``m``; they sum to 1, so that ``Σ_j w_j f(x_j) ≈ (1/L) ∫ f dx``.

        Equal on periodic and cell axes, trapezoid on node axes and on explicit coordinates.
        """
        if self.equal_weights(m):
            values = torch.full((self.shape[m],), 1.0 / self.shape[m], dtype=torch.float64)
        else:
            gaps = self._gaps(m)
            if self.periodic[m]:
                values = (gaps + gaps.roll(1)) / (2 * self.extent[m])
            else:
                ends = gaps.new_zeros(1)
                values = (torch.cat([gaps, ends]) + torch.cat([ends, gaps])) / (2 * gaps.sum())
        return values.to(device=device, dtype=dtype)

    def _gaps(self, m: int) -> Float[Tensor, "gaps"]:
        """Distances between neighbours; on a periodic axis the last one leads to the first point again."""
        x = self.axis(m)
        return torch.cat([x.diff(), x[:1] + self.extent[m] - x[-1:]]) if self.periodic[m] else x.diff()

    @property
    def cut_axes(self) -> tuple[int, ...]:
        """Axes of which other processes hold parts (`factformer.parallel.part.GridPart`); none of a whole grid."""
        return ()

    @property
    def whole(self) -> Grid:
        """The grid that this one is a part of."""
        return self

    def cut(self, x: Tensor, first_dim: int) -> Tensor:
        """This part of a tensor of the whole grid, whose first axis is dimension ``first_dim``."""
        return x

    def put_together(self, x: Tensor, first_dim: int) -> Tensor:
        """The tensor of the whole grid of which each process gives its part."""
        return x

    def coarsened(self, whole: Grid, steps: Sequence[int]) -> Grid:
        """This part of a grid ``whole`` whose points stand for ``steps`` points along each axis of this one."""
        return whole

    def total(self, sums: Tensor, axes: Sequence[int]) -> Tensor:
        """Sums over ``axes`` of all parts of the grid, from those of this part; a whole grid is its only part."""
        return sums

    def largest(self, values: Tensor, axes: Sequence[int]) -> Tensor:
        """Maxima over ``axes`` of all parts of the grid, from those of this part."""
        return values

    def dense_moves_less(self, m: int, heads: int, head_dim: int, kernel_dim: int) -> bool:
        """Whether a kernel of axis ``m``, which is cut, is contracted in the dense order with fewer bytes exchanged."""
        return False

    def contracted(self, values: Tensor, queries: Tensor, keys: Tensor, m: int) -> Tensor:
        """``(q kᵀ) V`` along axis ``m``, which is cut; of ``values (batch, head, *grid, channel)`` of this part."""
        raise TypeError("a whole grid has no cut axis")

    def with_neighbours(self, u: Tensor, m: int, width: int, kind: str) -> Tensor:
        """A field of this part with ``width`` points more at both ends of axis ``m``, which is cut."""
        raise TypeError("a whole grid has no neighbours")

    def wavenumbers(
        self,
        m: int,
        *,
        real: bool = False,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str | None = None,
    ) -> Float[Tensor, "modes"]:
        """Angular wavenumbers ``2π k / L`` of a uniform periodic axis, in the order of ``fft`` or ``rfft``."""
        if not self.periodic[m] or not self.is_uniform(m):
            raise UserError(f"axis {m} has no wavenumbers: it is not periodic and uniform")
        frequencies = torch.fft.rfftfreq if real else torch.fft.fftfreq
        size = self.shape[m]
        values: Tensor = frequencies(size, dtype=torch.float64) * (size * 2 * math.pi / self.extent[m])
        return values.to(device=device, dtype=dtype)

    def resample(self, shape: int | Sequence[int]) -> Grid:
        """The same box with other numbers of points; uneven axes keep their size."""
        sizes = [int(size) for size in per_axis("shape", shape, self.num_axes)]
        coordinates = list(self.coordinates)
        for m, (size, explicit) in enumerate(zip(sizes, self.coordinates, strict=True)):
            if explicit is None or size == self.shape[m]:
                continue
            if not self.is_even(m):
                raise UserError(f"axis {m} has uneven coordinates and cannot be resampled to {size} points")
            first, last = explicit[0], explicit[0] + self.extent[m] if self.periodic[m] else explicit[-1]
            steps = torch.linspace(first, last, size + self.periodic[m], dtype=torch.float64)
            coordinates[m] = tuple(steps[:size].tolist())
        return Grid(sizes, self.extent, self.periodic, self.points, coordinates=coordinates)

    def every(self, step: int) -> Grid:
        """The grid of every ``step``-th point along each axis, in the same box."""
        for m, size in enumerate(self.shape):
            intervals = size if self.periodic[m] else size - 1
            cells = self.is_uniform(m) and not self.periodic[m] and self.points[m] == "cells"
            if step > 1 and (cells or intervals % step or not self.is_even(m)):
                raise UserError(
                    f"one in {step} of {size} points is no grid of the same box along axis {m}: that takes evenly "
                    f"spaced nodes and a multiple of {step} intervals"
                )
        return self.resample(
            [
                size // step if wraps else (size - 1) // step + 1
                for size, wraps in zip(self.shape, self.periodic, strict=True)
            ]
        )

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready description; `Grid.from_dict` reads it back."""
        return {
            "shape": list(self.shape),
            "extent": list(self.extent),
            "periodic": list(self.periodic),
            "points": list(self.points),
            "coordinates": [None if axis is None else list(axis) for axis in self.coordinates],
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        return cls(**values)
