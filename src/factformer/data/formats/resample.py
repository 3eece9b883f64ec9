"""Frames at uneven times, interpolated to even ones."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from factformer.data.formats.arrays import LazyArray
from factformer.data.formats.importers import Column
from factformer.errors import UserError


class Resampled:
    """An array whose frames, along ``axis``, are interpolated linearly from ``times`` to as many even ones."""

    def __init__(self, array: LazyArray, axis: int, times: NDArray[np.float64]) -> None:
        self._array, self._axis = array, axis
        self.shape = tuple(array.shape)
        self.dtype = np.result_type(array.dtype, np.float32)
        even = np.linspace(times[0], times[-1], len(times))
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


def resampled(column: Column, times: NDArray[np.float64]) -> Column:
    """A column at even times; one without frames stays as it is."""
    if "t" not in column.layout:
        return column
    return Column(column.name, Resampled(column.array, column.layout.index("t"), times), column.layout)


def even_interval(times: NDArray[np.float64], where: str) -> float:
    """The interval that ``times``, of two frames or more, are brought to."""
    if len(times) < 2 or not np.isfinite(times).all() or (np.diff(times) <= 0).any():
        raise UserError(f"{where}: its times do not increase from frame to frame, so that nothing can be interpolated")
    return float(times[-1] - times[0]) / (len(times) - 1)
