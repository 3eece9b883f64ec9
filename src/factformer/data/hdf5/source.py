"""Reading one array of an HDF5 file, with its checksums."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray


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

    def read(self, trajectories: Sequence[int], frames: range, target: NDArray[Any]) -> None:
        """Fill ``target (trajectory, frame, *grid, channel)``; what does not vary is repeated."""
        ascending = frames if frames.step > 0 else frames[::-1]
        selected = slice(ascending.start, ascending.stop, ascending.step)
        shape = (len(frames) if self._time_varying else 1, *self._grid_shape, target.shape[-1])
        for position, trajectory in enumerate(trajectories):
            index: tuple[Any, ...] = (trajectory,) if self._sample_varying else ()
            index += (selected,) if self._time_varying else ()
            values = self._values[index].reshape(shape)
            self._verify(trajectory, ascending if self._time_varying else range(1), values)
            target[position] = values if frames.step > 0 else values[::-1]

    def _verify(self, trajectory: int, frames: range, values: NDArray[Any]) -> None:
        if self._checksums is None or self._verified is None:
            return
        for frame, content in zip(frames, values, strict=True):
            if self._verified[trajectory, frame]:
                continue
            if zlib.crc32(np.ascontiguousarray(content).data) != self._checksums[trajectory, frame]:
                raise RuntimeError(f"frame {frame} of trajectory {trajectory} does not fit its checksum; copy it again")
            self._verified[trajectory, frame] = True
