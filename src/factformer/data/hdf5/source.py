"""Reading one array of an HDF5 file, with its checksums."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from factformer.data.section import Section


class Source:
    """One HDF5 dataset with what its attributes say, looked up once: that takes longer than small reads.

    ``checksums`` of its frames are verified when a frame is first read.
    """

    def __init__(
        self, values: h5py.Dataset, grid_shape: tuple[int, ...], checksums: NDArray[np.uint32] | None = None
    ) -> None:
        self._values = values
        self._checksums = None if checksums is None else checksums.reshape(len(checksums), -1)
        self._verified = None if self._checksums is None else np.zeros(self._checksums.shape, dtype=bool)
        self.dtype: np.dtype[Any] = values.dtype
        self._time_varying = bool(values.attrs.get("time_varying", True))
        self._sample_varying = bool(values.attrs.get("sample_varying", True))
        flags = values.attrs.get("dim_varying", [True] * len(grid_shape))
        self._whole = tuple(grid_shape)
        self._leading = self._sample_varying + self._time_varying
        self._grid_shape = tuple(size if flag else 1 for size, flag in zip(grid_shape, flags, strict=True))

    @property
    def is_verified(self) -> bool:
        """Whether reading verifies the values, which were finite when they were written."""
        return self._checksums is not None

    def holds(self, num_trajectories: int, num_frames: int, num_channels: int) -> bool:
        """Whether so much can be read."""
        leading = [num_trajectories] * self._sample_varying + [num_frames] * self._time_varying
        shape = self._values.shape
        enough = len(shape) >= len(leading) and all(a >= b for a, b in zip(shape, leading, strict=False))
        return enough and math.prod(shape[len(leading) :]) == math.prod(self._grid_shape) * num_channels

    def read(self, trajectories: Sequence[int], frames: range, target: NDArray[Any], section: Section) -> None:
        """Fill ``target (trajectory, frame, *section, channel)``; what does not vary is repeated."""
        ascending = frames if frames.step > 0 else frames[::-1]
        selected = slice(ascending.start, ascending.stop, ascending.step)
        points = [
            slice(None) if size == 1 else kept for kept, size in zip(section.slices, self._grid_shape, strict=True)
        ]
        whole = section.shape == self._whole
        # An array may be shaped otherwise than its grid: all of it is read then, and cut.
        cut_first = not whole and self._values.shape[self._leading :][: len(points)] == self._grid_shape
        for position, trajectory in enumerate(trajectories):
            index: tuple[Any, ...] = (trajectory,) if self._sample_varying else ()
            index += (selected,) if self._time_varying else ()
            numbers = ascending if self._time_varying else range(1)
            values = self._values[(*index, *points) if cut_first else index]
            if cut_first:
                values = values.reshape(len(numbers), *self._sizes(section), target.shape[-1])
            else:
                values = values.reshape(len(numbers), *self._grid_shape, target.shape[-1])
                self._verify(trajectory, numbers, values)
                values = values[(slice(None), *points)]
            target[position] = values if frames.step > 0 else values[::-1]
            if cut_first:
                self._verify_share(trajectory, numbers, section)

    def _sizes(self, section: Section) -> list[int]:
        return [1 if size == 1 else kept for kept, size in zip(section.shape, self._grid_shape, strict=True)]

    def _verify(self, trajectory: int, frames: range, values: NDArray[Any]) -> None:
        for frame, content in zip(frames, values, strict=True):
            if self._is_unverified(trajectory, frame):
                self._compare(trajectory, frame, zlib.crc32(np.ascontiguousarray(content).data))

    def _verify_share(self, trajectory: int, frames: range, section: Section) -> None:
        """Verify what is this process's to verify: whole frames, a piece as large as the section at a time."""
        for frame in frames:
            if not section.verifies(trajectory, frame) or not self._is_unverified(trajectory, frame):
                continue
            index = (trajectory,) * self._sample_varying + (frame,) * self._time_varying
            rows, checksum = self._grid_shape[0], 0
            step = max(1, rows * math.prod(section.shape) // math.prod(self._grid_shape))
            for first in range(0, rows, step):
                piece = self._values[(*index, slice(first, first + step))]
                checksum = zlib.crc32(np.ascontiguousarray(piece).data, checksum)
            self._compare(trajectory, frame, checksum)

    def _is_unverified(self, trajectory: int, frame: int) -> bool:
        return self._verified is not None and not self._verified[trajectory, frame]

    def _compare(self, trajectory: int, frame: int, checksum: int) -> None:
        assert self._checksums is not None and self._verified is not None
        if checksum != self._checksums[trajectory, frame]:
            raise RuntimeError(f"frame {frame} of trajectory {trajectory} does not fit its checksum; copy it again")
        self._verified[trajectory, frame] = True
