"""Frames at uneven times, interpolated to even ones."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from factformer.data.formats.arrays import LazyArray
from factformer.data.formats.importers import Column
from factformer.errors import UserError

MOST_FRAMES = 10
"""How many frames one of the file may become at most."""
ROUNDING = 1e-3
"""Part of an interval by which the last frame may be missed."""


class Resampled:
    """An array whose frames, along ``axis``, are interpolated linearly from ``times`` to the ``even`` ones."""

    def __init__(self, array: LazyArray, axis: int, times: NDArray[np.float64], even: NDArray[np.float64]) -> None:
        self._array, self._axis = array, axis
        self.shape = (*array.shape[:axis], len(even), *array.shape[axis + 1 :])
        self.dtype = np.result_type(array.dtype, np.float32)
        self._before = np.clip(np.searchsorted(times, even, side="right") - 1, 0, len(times) - 2)
        self._share = (even - times[self._before]) / np.diff(times)[self._before]

    def __getitem__(self, index: Any) -> NDArray[Any]:
        parts = index if isinstance(index, tuple) else (index,)
        parts = (slice(None),) * len(self.shape) if parts == (Ellipsis,) else parts
        parts = (*parts, *[slice(None)] * (len(self.shape) - len(parts)))
        wanted = np.arange(self.shape[self._axis])[parts[self._axis]]
        if not len(wanted):
            return np.asarray(self._array[parts])
        before, share = self._before[wanted], self._share[wanted]
        first, last = int(before.min()), int(before.max()) + 2
        read = (*parts[: self._axis], slice(first, last), *parts[self._axis + 1 :])
        values = np.asarray(self._array[read])
        weight = share.reshape([-1 if axis == self._axis else 1 for axis in range(values.ndim)])
        earlier, later = (np.take(values, before - first + step, axis=self._axis) for step in (0, 1))
        mixed: NDArray[Any] = (1 - weight) * earlier + weight * later
        return mixed.astype(self.dtype)


def resampled(column: Column, times: NDArray[np.float64], even: NDArray[np.float64]) -> Column:
    """A column at even times; one without frames stays as it is."""
    if "t" not in column.layout:
        return column
    return Column(column.name, Resampled(column.array, column.layout.index("t"), times, even), column.layout)


def even_times(times: NDArray[np.float64], interval: float | None, where: str) -> NDArray[np.float64]:
    """The times that increasing ``times`` are brought to: as many or, where it is said, one every ``interval``."""
    if interval is None:
        return np.linspace(times[0], times[-1], len(times))
    steps = float(times[-1] - times[0]) / interval if interval > 0 else 0.0
    if not 1 - ROUNDING <= steps <= MOST_FRAMES * len(times):
        raise UserError(
            f"{where}: its {len(times)} frames, from time {times[0]:g} to {times[-1]:g}, cannot be interpolated to "
            f"every frame_dt={interval:g}; say another, or none"
        )
    even: NDArray[np.float64] = np.minimum(times[0] + interval * np.arange(int(steps + ROUNDING) + 1), times[-1])
    return even
