# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Tiles of matrices ``(sample, row, column)``, moved by TMA where the layout allows it.

The tensor memory accelerator writes to shared memory by itself. It needs no registers for addresses and masks, and
several tiles can be on their way while a program computes. Rows and tiles must begin at multiples of 16 bytes; others
are read and written by pointers.
"""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from factformer.kernels._triton.limits import limits


class Tile(NamedTuple):
    """Points of a tile, warps and pipeline stages of a program."""

    points: int
    warps: int
    stages: int = 1


def can_move(*matrices: Tensor, columns: int = 0) -> bool:
    """Whether TMA serves for all of these dense matrices, and tiles that begin every so many columns."""
    return limits().tma and all(
        m.shape[-1] * m.element_size() % 16 == 0 and columns * m.element_size() % 16 == 0 and m.data_ptr() % 16 == 0
        for m in matrices
    )


def moved(matrix: Tensor, samples: int, rows: int, columns: int, described: bool) -> Tensor | TensorDescriptor:
    """Argument of `load_tile` and `store_tile` for tiles of this many rows and columns of a dense matrix."""
    if not described:
        return matrix
    width = matrix.shape[-1]
    length = matrix.numel() // (samples * width)
    return TensorDescriptor(matrix, [samples, length, width], [length * width, width, 1], [1, rows, columns])


@triton.jit
def row_of(sample, rows):
    """The first row of a sample: fields can have more entries than 32 bits count."""
    return tl.full((), 1, tl.int64) * sample * rows


@triton.jit
def _places(sample, row, column, rows, columns, end, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr):
    """Where the entries of a tile lie, and which of them there are."""
    r, c = row + tl.arange(0, BLOCK_R), column + tl.arange(0, BLOCK_C)
    mask = (r < rows)[:, None] & (c < (columns if end is None else end))[None, :]
    return (row_of(sample, rows) + r)[:, None] * columns + c[None, :], mask


@triton.jit
def load_tile(
    source,
    sample,
    row,
    column,
    rows,
    columns,
    DESCRIBED: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
    end=None,
):
    """The tile from ``(row, column)`` on; zeros outside of ``rows × columns``.

    ``end`` is where its columns stop before those of the matrix do; TMA then needs tiles just as wide.
    """
    if DESCRIBED:
        tile = source.load([sample, row, column]).reshape(BLOCK_R, BLOCK_C)
    else:
        where, mask = _places(sample, row, column, rows, columns, end, BLOCK_R, BLOCK_C)
        tile = tl.load(source + where, mask=mask, other=0.0)
    return tile


@triton.jit
def store_tile(
    target,
    tile,
    sample,
    row,
    column,
    rows,
    columns,
    DESCRIBED: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
    end=None,
):
    if DESCRIBED:
        target.store([sample, row, column], tile.to(target.dtype).reshape(1, BLOCK_R, BLOCK_C))
    else:
        where, mask = _places(sample, row, column, rows, columns, end, BLOCK_R, BLOCK_C)
        tl.store(target + where, tile.to(target.dtype.element_ty), mask=mask)
