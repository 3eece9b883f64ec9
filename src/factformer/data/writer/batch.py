"""Writing the values of some trajectories at their places in the file of a split."""

from __future__ import annotations

import os
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from factformer._support.files import write_all
from factformer.data.layout import Contents
from factformer.data.statistics import TrajectoryMoments
from factformer.data.writer.places import CHECKSUM_SIZE, parameter_places, places
from factformer.errors import BlewUp, UserError


class BatchWriter:
    """Places the frames of some trajectories in the unfinished file and watches over their values."""

    is_first = True
    """Whether this process notes what was finished; of several that write one batch, one does."""

    def __init__(self, path: Path, contents: Contents, trajectories: range) -> None:
        problem = contents.problem
        self.descriptor = os.open(path, os.O_RDWR)
        self.moments = [TrajectoryMoments(problem) for _ in trajectories] if contents.split == "train" else []
        self._inside: NDArray[np.bool_] | None = None
        self._contents = contents
        self._trajectories = trajectories
        self._places = places(path, contents)
        self._parameter_places = parameter_places(path, contents)
        self._checksums = [np.zeros((len(trajectories), max(p.num_frames, 1)), dtype="<u4") for p in self._places]
        self._num_written = 0
        self._missing = [part for part in problem.parts if part != "forcing"]

    def write_static(self, values: NDArray[Any]) -> None:
        """The static fields ``(batch, *grid, channel)``."""
        values = self._checked(values, (*self._grid, self._contents.problem.num_static_channels), "its static fields")
        self._place(values, slice(0, values.shape[-1]), time_varying=False)
        self._add("static", values)

    def write_mask(self, values: NDArray[Any]) -> None:
        """The mask ``(batch, *grid)``, before all fields: outside of it they are stored as zero."""
        values = self._checked(values, self._grid, "its mask")[..., None]
        self._inside = values[..., 0] != 0
        for position, trajectory in enumerate(self._trajectories):
            if not self._inside[position].any():
                name = self._contents.problem.name
                raise UserError(f"{name}: the mask of trajectory {trajectory} has no point inside the domain")
        for item, inside in zip(self.moments, self._inside, strict=False):
            item.inside = inside
        first = self._contents.problem.num_static_channels
        self._place(values, slice(first, first + 1), time_varying=False)
        self._missing.remove("mask")

    def write_parameters(self, values: NDArray[Any]) -> None:
        """The parameters ``(batch, parameter)``."""
        values = self._checked(values, (len(self._contents.problem.parameters),), "its parameters")
        for column, start in enumerate(self._parameter_places):
            write_all(self.descriptor, values[:, column].tobytes(), start + 4 * self._trajectories.start)
        self._add("parameters", values)

    def write(self, frame: NDArray[Any], forcing: NDArray[Any] | None = None) -> None:
        """The next frame ``(batch, *grid, channel)`` of all trajectories of the batch, with its forcing if any."""
        problem, what = self._contents.problem, f"frame {self._num_written}"
        split = problem.num_state_channels
        values = self._checked(frame, (*self._grid, split), what)
        self._place(values, slice(0, split), time_varying=True)
        for item, value in zip(self.moments, values, strict=False):
            item.add(value)
        if problem.forcing:
            if forcing is None:
                raise UserError(f"{problem.name}: {what} comes without its forcing")
            count = problem.num_forcing_channels
            values = self._checked(forcing, (*self._grid, count), f"the forcing of {what}")
            self._place(values, slice(split, split + count), time_varying=True)
            for item, value in zip(self.moments, values, strict=False):
                item.add_part("forcing", value)
        self._num_written += 1

    def require_complete(self) -> None:
        expected = self._contents.num_frames
        if self._num_written != expected or self._missing:
            lacking = f" without {', '.join(self._missing)}" if self._missing else ""
            raise UserError(f"expected {expected} frames and all that goes with them, got {self._num_written}{lacking}")

    @property
    def _grid(self) -> tuple[int, ...]:
        return self._contents.problem.grid.shape

    def _add(self, part: str, values: NDArray[Any]) -> None:
        """Count a part that is written once per trajectory."""
        self._missing.remove(part)
        for item, value in zip(self.moments, values, strict=False):
            item.add_part(part, value)

    def _checked(self, values: NDArray[Any], shape: tuple[int, ...], what: str) -> NDArray[np.float32]:
        contents = self._contents
        expected = (len(self._trajectories), *shape)
        if values.shape != expected:
            raise UserError(f"{contents.problem.name}: {what} has shape {values.shape}, expected {expected}")
        result = np.ascontiguousarray(values, dtype="<f4")
        if contents.problem.masked and len(shape) > len(self._grid):  # a field
            assert self._inside is not None, "the mask is written before the fields"
            result = np.where(self._inside[..., None], result, np.float32(0))
        for position in self._bad_rows(result):
            trajectory = self._trajectories[position]
            seed = f" (seed {contents.seeds[trajectory]})" if contents.seeds else ""
            raise BlewUp(
                f"{contents.problem.name}: trajectory {trajectory}{seed} of {contents.split} "
                f"holds NaN or infinite values in {what}",
                trajectory,
                what,
            )
        return result

    def _bad_rows(self, values: NDArray[np.float32]) -> list[int]:
        """Rows of a batch that hold NaN or infinite values."""
        return [row for row, own in enumerate(values) if not np.isfinite(own).all()]

    def write_checksums(self) -> None:
        """Those of all frames of the batch."""
        for place, checksums in zip(self._places, self._checksums, strict=True):
            start = place.checksums + self._trajectories.start * checksums.shape[1] * CHECKSUM_SIZE
            write_all(self.descriptor, checksums.tobytes(), start)

    def _place(self, values: NDArray[np.float32], channels: slice, *, time_varying: bool) -> None:
        """Write ``values``, which are some ``channels`` of all that is stored for a frame or once."""
        index = self._num_written if time_varying else 0
        for number, place in enumerate(self._places):
            first, last = place.entry.channels.start, place.entry.channels.stop
            if bool(place.num_frames) != time_varying or not channels.start <= first < channels.stop:
                continue
            own = slice(first - channels.start, last - channels.start)
            for position in range(len(self._trajectories)):
                self._write_frame(number, position, index, values[position][..., own].tobytes())

    def _write_frame(self, place: int, position: int, index: int, content: bytes) -> None:
        """Put one frame of one array of a trajectory where it belongs, and keep its checksum."""
        array = self._places[place]
        self._checksums[place][position, index] = zlib.crc32(content)
        write_all(self.descriptor, content, array.start + self._frame(place, position, index) * array.frame_size)

    def _frame(self, place: int, position: int, index: int) -> int:
        """The number of a frame among all of an array."""
        return self._trajectories[position] * max(self._places[place].num_frames, 1) + index
