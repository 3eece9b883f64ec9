"""How an axis lies in channel-last values, and the tiles that contractions along it use."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple


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
