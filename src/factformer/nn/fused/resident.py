# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# mypy: disable-error-code=assignment
# ruff: noqa: RUF005 - inside kernels tuples are joined by a sum, the compiler knows no unpacking
"""What stays on the chip while a program walks over points: blocks of weights, and tiles carried from step to step."""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl


class Tile(NamedTuple):
    """Points of a tile, warps and pipeline stages of a program."""

    points: int
    warps: int
    stages: int = 1


@triton.jit
def blocks(
    matrix,
    dtype: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """A matrix in blocks, row after row of them: what stays in shared memory while a program walks over points."""
    r, c = tl.arange(0, BLOCK_R), tl.arange(0, BLOCK_C)
    result = ()
    for i in tl.static_range((ROWS + BLOCK_R - 1) // BLOCK_R):
        for j in tl.static_range((COLUMNS + BLOCK_C - 1) // BLOCK_C):
            mask = (i * BLOCK_R + r < ROWS)[:, None] & (j * BLOCK_C + c < COLUMNS)[None, :]
            block = tl.load(
                matrix + (i * BLOCK_R + r)[:, None] * COLUMNS + (j * BLOCK_C + c)[None, :], mask=mask, other=0.0
            )
            result = result + (block.to(dtype),)
    return result


@triton.jit
def pack(x, dtype: tl.constexpr):
    """Two neighbours of a row rounded into one word: what a loop carries takes half the registers so."""
    if dtype == tl.float32:
        return x
    left, right = tl.split(tl.reshape(x, (x.shape[0], x.shape[1] // 2, 2)))
    return tl.inline_asm_elementwise(
        "cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,r,r", [left, right], dtype=tl.uint32, is_pure=True, pack=1
    )


@triton.jit
def unpack(x, dtype: tl.constexpr):
    """The rows again, in ``dtype`` (that of `pack`, or float32)."""
    if x.dtype == tl.float32:
        return x
    if dtype == tl.float32:
        left, right = (x << 16).to(tl.float32, bitcast=True), (x & 0xFFFF0000).to(tl.float32, bitcast=True)
    else:
        left, right = x.to(tl.uint16).to(dtype, bitcast=True), (x >> 16).to(tl.uint16).to(dtype, bitcast=True)
    return tl.reshape(tl.join(left, right), (x.shape[0], x.shape[1] * 2))


@triton.jit
def grouped_blocks(
    matrix,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    CHUNKS: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """The blocks on the diagonal of a matrix, each of a few groups of channels; the rest of it is zero."""
    r, c = tl.arange(0, BLOCK_R), tl.arange(0, BLOCK_C)
    mask = (r < ROWS // CHUNKS)[:, None] & (c < COLUMNS // CHUNKS)[None, :]
    result = ()
    for j in tl.static_range(CHUNKS):
        row, column = j * (ROWS // CHUNKS) + r, j * (COLUMNS // CHUNKS) + c
        result = result + (tl.load(matrix + row[:, None] * COLUMNS + column[None, :], mask=mask, other=0.0),)
    return result


@triton.jit
def column_blocks(
    matrix,
    dtype: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    CHUNKS: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """A matrix in pieces of the columns that one chunk of groups makes."""
    r, c = tl.arange(0, BLOCK_R), tl.arange(0, BLOCK_C)
    mask = (r < ROWS)[:, None] & (c < COLUMNS // CHUNKS)[None, :]
    result = ()
    for j in tl.static_range(CHUNKS):
        column = j * (COLUMNS // CHUNKS) + c
        block = tl.load(matrix + r[:, None] * COLUMNS + column[None, :], mask=mask, other=0.0)
        result = result + (block.to(dtype),)
    return result
