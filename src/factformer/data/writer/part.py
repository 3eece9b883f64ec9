"""Writing a part of each frame: the processes that share a grid write side by side into one file.

Each writes its own points, in runs of bytes that lie together. The CRC-32 of a frame is put together from those of the
runs of all processes, statistics from their moments; so no process ever holds or reads a whole frame to store it.
"""

from __future__ import annotations

import itertools
import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from factformer._support.crc import Appended
from factformer._support.files import write_all
from factformer.data.layout import Contents
from factformer.data.statistics import Moments
from factformer.data.writer.batch import BatchWriter

Crc = NDArray[np.uint32]


@dataclass(frozen=True)
class Share:
    """The points of a stored frame that this process holds, and the processes (over gloo) that hold the others."""

    points: tuple[slice, ...]
    group: dist.ProcessGroup

    @property
    def is_first(self) -> bool:
        return dist.get_rank(self.group) == 0


class PartWriter(BatchWriter):
    """Places this process's part of the frames; the first process of the group collects checksums and statistics.

    All processes of the group make the same calls.
    """

    def __init__(self, path: Path, contents: Contents, trajectories: range, share: Share) -> None:
        super().__init__(path, contents, trajectories)
        self.share, self.is_first = share, share.is_first
        self._runs = run_starts(contents.problem.grid.shape, share.points)
        self._lengths = [0] * len(self._places)
        shapes = [(*checksums.shape, len(self._runs)) for checksums in self._checksums]
        self._crcs = [np.zeros(shape, dtype=np.uint32) for shape in shapes]

    def write_checksums(self) -> None:
        """Those of all frames of the batch, when what every process wrote is on the disk."""
        os.fsync(self.descriptor)
        gathered = self._gathered([self._runs, self._lengths, self._crcs, [item.moments() for item in self.moments]])
        if not self.is_first:
            return
        for place in range(len(self._places)):
            runs = [(found[0], found[1][place], found[2][place]) for found in gathered]
            self._checksums[place] = joined(runs).astype("<u4")
        for row, item in enumerate(self.moments):
            for other in gathered[1:]:
                item.merge(_of_fields(other[3][row]))
        super().write_checksums()

    @property
    def _grid(self) -> tuple[int, ...]:
        return tuple(points.stop - points.start for points in self.share.points)

    def _bad_rows(self, values: NDArray[np.float32]) -> list[int]:
        """Rows that are not finite in any process: all find the same ones."""
        bad = torch.zeros(len(values), dtype=torch.int32)
        bad[super()._bad_rows(values)] = 1
        dist.all_reduce(bad, dist.ReduceOp.MAX, group=self.share.group)
        return [int(row) for row in bad.nonzero().flatten()]

    def _write_frame(self, place: int, position: int, index: int, content: bytes) -> None:
        entry = self._places[place]
        first = entry.start + self._frame(place, position, index) * entry.frame_size
        values = 4 * (entry.entry.channels.stop - entry.entry.channels.start)
        length = len(content) // len(self._runs)
        self._lengths[place] = length
        view = memoryview(content)
        for number, start in enumerate(self._runs):
            run = view[number * length : (number + 1) * length]
            self._crcs[place][position, index, number] = zlib.crc32(run)
            write_all(self.descriptor, run, first + start * values)

    def _gathered(self, own: Any) -> list[Any]:
        """What each process gives, at the first one."""
        found: list[Any] | None = [None] * dist.get_world_size(self.share.group) if self.is_first else None
        dist.gather_object(own, found, group=self.share.group, group_dst=0)
        return found or []


def run_starts(shape: Sequence[int], points: Sequence[slice]) -> list[int]:
    """The first point, in memory order, of every run of a part of a grid that lies together there."""
    cut = [m for m, own in enumerate(points) if own.stop - own.start < shape[m]]
    last = max(cut, default=0)
    rows = [range(own.start, own.stop) for own in points[:last]]
    strides = [int(np.prod(shape[m + 1 :], dtype=np.int64)) for m in range(len(shape))]
    within = points[last].start * strides[last]
    return [within + sum(at * step for at, step in zip(row, strides, strict=False)) for row in itertools.product(*rows)]


def joined(runs: Sequence[tuple[Sequence[int], int, Crc]]) -> Crc:
    """The CRCs of frames from those of their runs: of each process where they start, their length and ``(…, run)``."""
    pieces = sorted(
        ((start, length, crcs[..., number]) for starts, length, crcs in runs for number, start in enumerate(starts)),
        key=lambda piece: piece[0],
    )
    appended = {length: Appended(length) for length in {length for _, length, _ in pieces}}
    total = pieces[0][2]
    for _, length, crcs in pieces[1:]:
        total = appended[length](total, crcs)
    return total


def _of_fields(found: dict[str, Moments]) -> dict[str, Moments]:
    """Without parameters, which are the same in every process and count once."""
    return {kind: moments for kind, moments in found.items() if kind != "parameters"}
