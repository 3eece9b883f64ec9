"""How an axis lies in channel-last values, and the tiles that contractions along it use."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from factformer.kernels._triton.arithmetic import MULTIPROCESSORS, padded, precision
from factformer.kernels._triton.limits import limits

if TYPE_CHECKING:
    from triton.tools.tensor_descriptor import TensorDescriptor


class Tiling(NamedTuple):
    """Tile of a contraction: rows, columns at a time, warps, pipeline stages."""

    rows: int
    columns: int
    warps: int
    stages: int


class Geometry(NamedTuple):
    batch: int
    outer: int
    size_in: int
    inner: int
    heads: int
    channels: int

    @classmethod
    def of(cls, shape: Sequence[int], axis: int) -> Geometry:
        grid = shape[1:-2]
        return cls(shape[0], math.prod(grid[:axis]), grid[axis], math.prod(grid[axis + 1 :]), shape[-2], shape[-1])

    def contracted(self, size_out: int) -> Contracted:
        """To ``size_out`` points."""
        return Contracted(size_out, self.size_in, self.inner, self.outer * self.inner, self.heads)

    def tiles(self, tiling: Tiling, block_in: int, described: bool, dtype: torch.dtype) -> ContractionTiles:
        return ContractionTiles(
            DESCRIBED=described,
            PRECISION=precision(dtype),
            BLOCK_OUT=tiling.rows,
            BLOCK_IN=block_in,
            BLOCK_Q=tiling.columns,
            BLOCK_C=padded(self.channels),
            STAGES=tiling.stages,
        )


class Contracted(NamedTuple):
    """What a kernel must know of a contraction: its points, how they lie in memory, and how many columns there are."""

    size_out: int
    size_in: int
    inner: int
    columns: int
    heads: int


@dataclass(frozen=True, kw_only=True)
class ContractionTiles:
    """What a kernel of a contraction is made for: tiles of results, points, columns (Q) and channels."""

    DESCRIBED: bool
    PRECISION: str
    BLOCK_OUT: int
    BLOCK_IN: int
    BLOCK_Q: int
    BLOCK_C: int
    STAGES: int


def can_describe(values: Tensor) -> bool:
    """Whether TMA can move tiles of ``values``, whose heads must lie at multiples of 16 bytes."""
    return limits().tma and values.shape[-1] * values.element_size() % 16 == 0 and values.data_ptr() % 16 == 0


def describe(values: Tensor, axis: int, rows: int) -> TensorDescriptor:
    """Tiles of ``rows`` points along ``axis`` of one column and head, for TMA.

    Seen as ``(batch · outer, inner · head, points, channel)``; what lies outside is read as zero and not written.
    """
    from triton.tools.tensor_descriptor import TensorDescriptor

    geometry = Geometry.of(values.shape, axis)
    step = geometry.inner * geometry.heads * geometry.channels
    return TensorDescriptor(
        values,
        [geometry.batch * geometry.outer, geometry.inner * geometry.heads, geometry.size_in, geometry.channels],
        [geometry.size_in * step, geometry.channels, step, 1],
        [1, 1, rows, padded(geometry.channels)],
    )


@functools.lru_cache(maxsize=256)
def shares(work: int, others: int, resident: int, overhead: int) -> int:
    """Items for each program, of ``work`` that each of ``others`` groups has.

    The chip holds ``resident`` programs per multiprocessor, and starting one costs as much as ``overhead`` items:
    the number of rounds times the length of a round is made least.
    """
    room = MULTIPROCESSORS * resident
    best, least = work, math.inf
    for parts in range(1, min(work, max(1, 8 * room // others)) + 1):
        share = -(-work // parts)
        rounds = others * -(-work // share) / room
        time = max(1.0, math.ceil(rounds)) * (share + overhead)
        if time < least:
            best, least = share, time
    return best
