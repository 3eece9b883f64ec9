# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Products ``Xᵀ Y`` of tall matrices, summed over their rows: the gradients of pointwise weights.

A library product leaves most of the chip idle here, since the result is one or a few tiles; the rows are cut
into parts and the parts added, in float32 and always in the same order.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from factformer.nn.fused._common import padded, pieces, precision

BLOCK_ROWS = 64


@triton.jit
def _gram_kernel(
    left,
    right,
    parts,
    shift,
    row_statistics,
    rows,
    width_left,
    width_right,
    stride_left,
    stride_right,
    stride_statistics,
    rows_per_program,
    right_blocks,
    NORMALIZE: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_LEFT: tl.constexpr,
    BLOCK_RIGHT: tl.constexpr,
):
    tile, part, group = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    a = (tile // right_blocks) * BLOCK_LEFT + tl.arange(0, BLOCK_LEFT)
    b = (tile % right_blocks) * BLOCK_RIGHT + tl.arange(0, BLOCK_RIGHT)
    inside_a, inside_b = (a < width_left)[None, :], (b < width_right)[None, :]
    left += group * stride_left
    right += group * stride_right
    if NORMALIZE:
        moved = tl.load(shift + b, mask=b < width_right, other=0.0)[None, :]
    total = tl.zeros((BLOCK_LEFT, BLOCK_RIGHT), dtype=tl.float32)
    first = part * rows_per_program
    for start in range(first, min(rows, first + rows_per_program), BLOCK_R):
        r = (start + tl.arange(0, BLOCK_R)).to(tl.int64)
        inside = (r < rows)[:, None]
        x = tl.load(left + r[:, None] * width_left + a[None, :], mask=inside & inside_a, other=0.0)
        y = tl.load(right + r[:, None] * width_right + b[None, :], mask=inside & inside_b, other=0.0)
        if NORMALIZE:
            where = row_statistics + (group * rows + r) * stride_statistics
            mean = tl.load(where, mask=r < rows, other=0.0)[:, None]
            scale = tl.load(where + 1, mask=r < rows, other=0.0)[:, None]
            y = ((y.to(tl.float32) + moved - mean) * scale).to(x.dtype)
        total = tl.dot(tl.trans(x), y, total, input_precision=PRECISION)
    base = parts + (group * tl.num_programs(1) + part) * width_left * width_right
    mask = (a < width_left)[:, None] & inside_b
    tl.store(base + a[:, None] * width_right + b[None, :], total, mask=mask)


def gram_parts(
    left: Tensor, right: Tensor, *, shift: Tensor | None = None, row_statistics: Tensor | None = None
) -> Tensor:
    """Parts of `gram` that are still to be added: ``(group, part, a, b)``.

    Groups may lie apart, rows are dense. With ``row_statistics`` ``(group, row, 2 or more)`` the rows of ``Y``
    are moved by ``shift`` and normalised with their mean and reciprocal deviation, its first entries.
    """
    groups, rows, width_left = left.shape
    width_right = right.shape[-1]
    block_left = min(padded(width_left), 128)
    block_right = min(padded(width_right), 128)
    right_blocks = triton.cdiv(width_right, block_right)
    tiles = triton.cdiv(width_left, block_left) * right_blocks
    steps = triton.cdiv(rows, BLOCK_ROWS)
    per_program = triton.cdiv(steps, pieces(steps, tiles * groups, waves=3)) * BLOCK_ROWS
    number = triton.cdiv(rows, per_program)
    parts = left.new_empty(groups, number, width_left, width_right, dtype=torch.float32)
    normalize = row_statistics is not None
    _gram_kernel[(tiles, number, groups)](
        left,
        right,
        parts,
        shift if normalize else left,
        row_statistics if normalize else left,
        rows,
        width_left,
        width_right,
        left.stride(0),
        right.stride(0),
        row_statistics.shape[-1] if row_statistics is not None else 0,
        per_program,
        right_blocks,
        NORMALIZE=normalize,
        PRECISION=precision(left.dtype),
        BLOCK_R=BLOCK_ROWS,
        BLOCK_LEFT=block_left,
        BLOCK_RIGHT=block_right,
        num_warps=8 if block_left * block_right >= 128 * 128 else 4,
        num_stages=3,
    )
    return parts


def gram(left: Tensor, right: Tensor, *, shift: Tensor | None = None, row_statistics: Tensor | None = None) -> Tensor:
    """``Xᵀ Y`` of each group in float32: ``(group, row, a), (group, row, b) -> (group, a, b)``."""
    parts = gram_parts(left, right, shift=shift, row_statistics=row_statistics)
    return parts.sum(1) if parts.shape[1] > 1 else parts.squeeze(1)
