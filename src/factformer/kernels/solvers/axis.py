# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# mypy: disable-error-code="assignment,operator"
"""One transform along one axis of an array of packed lines, from kept modes to points and back.

An array is ``(field, 2, …, axis, …, column)``: real and imaginary parts in planes, columns contiguous. Of the columns,
which are modes of the last axis at their places among its points, only ``half`` at either end are read and written.
Kernels of one transform each compile quickly; several in one do not.
"""

# ruff: noqa: RUF005 (Triton's language has no starred tuples)

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from factformer.kernels._triton.launching import launch
from factformer.kernels.solvers.fourier import narrow_index, to_narrow, to_wide, wide_index
from factformer.kernels.solvers.lines import Lines

COLUMNS = {16: (16, 2), 64: (16, 4), 96: (32, 4), 512: (8, 16)}  # of a program, and its warps


@triton.jit
def columns_of(line_and_block, HALF: tl.constexpr, PITCH: tl.constexpr, R: tl.constexpr):
    """The line of a program, its columns at their places, and which of them there are."""
    blocks: tl.constexpr = (2 * HALF + R - 1) // R
    column = line_and_block % blocks * R + tl.arange(0, R)[None, :]
    inside = column < 2 * HALF
    return line_and_block // blocks, column + tl.where(column >= HALF, PITCH - 2 * HALF, 0), inside


@triton.jit
def _places(j, step, column, inside, K: tl.constexpr, OF_MODES: tl.constexpr, LINE: tl.constexpr):
    """Where the numbers lie that element ``j`` of a line holds, and which of them there are."""
    if OF_MODES:
        n = narrow_index(j, LINE)
        keep = ((n <= K) | (n >= LINE.S - K)) & inside
        place = tl.where(n <= K, n, n - LINE.S + 2 * K + 1) * step + column
    else:
        keep = inside
        place = wide_index(j, LINE) * step + column
    return place, keep


@triton.jit
def _transform_kernel(
    source,
    target,
    table,
    source_plane,
    source_line,
    source_step,
    target_plane,
    target_line,
    target_step,
    K: tl.constexpr,
    HALF: tl.constexpr,
    PITCH: tl.constexpr,
    INVERSE: tl.constexpr,
    LINE: tl.constexpr,
):
    READ: tl.constexpr = LINE.LIST if INVERSE else LINE.WIDE_LIST
    WRITTEN: tl.constexpr = LINE.WIDE_LIST if INVERSE else LINE.LIST
    line, column, inside = columns_of(tl.program_id(0), HALF, PITCH, LINE.R)
    field = tl.program_id(1).to(tl.int64)
    source += field * 2 * source_plane + line * source_line
    re = ()
    im = ()
    for j in tl.static_range(READ):
        place, keep = _places(j, source_step, column, inside, K, INVERSE, LINE)
        re = re + (tl.load(source + place, mask=keep, other=0.0),)
        im = im + (tl.load(source + source_plane + place, mask=keep, other=0.0),)
    if INVERSE:
        re, im = to_wide(re, im, table, 1.0, LINE)
    else:
        re, im = to_narrow(re, im, table, -1.0, LINE)
    target += field * 2 * target_plane + line * target_line
    for j in tl.static_range(WRITTEN):
        place, keep = _places(j, target_step, column, inside, K, not INVERSE, LINE)
        tl.store(target + place, re[j], mask=keep)
        tl.store(target + target_plane + place, im[j], mask=keep)


def transform(source: Tensor, target: Tensor, axis: int, cutoff: int, lines: Lines, half: int) -> None:
    """``(field, 2, *axes)`` to ``(field, 2, *axes)`` along ``axis`` (negative, not the last), of which one side holds
    the modes ``0 … cutoff, -cutoff … -1`` and the other the points; the further axes are as long in both.

    The transform is the inverse one where the points are those of ``target``.
    """
    others = [m for m in range(2, source.ndim - 1) if m != source.ndim + axis]
    assert len(others) <= 1
    count = source.shape[others[0]] if others else 1
    columns, warps = COLUMNS[lines.size]
    strides = [
        (array.stride(1), array.stride(others[0]) if others else 0, array.stride(axis)) for array in (source, target)
    ]
    launch(
        _transform_kernel,
        (triton.cdiv(2 * half, columns) * count, source.shape[0]),
        source,
        target,
        lines.table,
        *strides[0],
        *strides[1],
        K=cutoff,
        HALF=half,
        PITCH=source.shape[-1],
        INVERSE=target.shape[axis] == lines.size,
        LINE=lines.taken(columns),
        num_warps=warps,
    )


def half_columns(cutoff: int, size: int) -> int:
    """Columns at either end of ``size`` that hold the modes up to ``cutoff``, in blocks of eight."""
    return min((cutoff + 8) // 8 * 8, size // 2)


def planes_of(*symbols: Tensor) -> Tensor:
    """Real and imaginary parts of symbols over the modes, one plane after the other, in float32."""
    stacked = torch.stack([symbol.to(torch.complex128) for symbol in symbols])
    return torch.view_as_real(stacked).movedim(-1, 1).to(torch.float32).contiguous()
