"""A section of the grid: what one of several processes reads of every frame."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

from numpy.typing import NDArray
from torch import Tensor

from factformer.data.numbers import AXES

Values = TypeVar("Values", Tensor, NDArray[Any])


@dataclass(frozen=True)
class Section:
    """A slice of every axis of the grid, read by process ``index`` of ``count``, whose sections are the whole grid.

    Checksums are those of whole frames. Each of the processes verifies those of its share of the frames.
    """

    slices: tuple[slice, ...]
    index: int = 0
    count: int = 1

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(points.stop - points.start for points in self.slices)

    def of(self, values: Values, part: str) -> Values:
        """The section of one part of a dataset (`AXES`) on the whole grid: a view."""
        if part == "parameters":
            return values
        return values[(*[slice(None)] * len(AXES[part]), *self.slices)]

    def verifies(self, trajectory: int, frame: int) -> bool:
        """Whether the checksum of a frame is this process's to verify."""
        return (trajectory + frame) % self.count == self.index
