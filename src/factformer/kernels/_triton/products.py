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

from factformer.kernels._triton.arithmetic import padded, pieces, precision
from factformer.kernels._triton.launch import launch

BLOCK_ROWS = 64


@triton.jit
def _gram_kernel(
    left,
    right,
    parts,
    rows,
    width_left,
    width_right,
    stride_left,
    stride_right,
    rows_per_program,
    right_blocks,
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
    total = tl.zeros((BLOCK_LEFT, BLOCK_RIGHT), dtype=tl.float32)
    first = part * rows_per_program
    for start in range(first, min(rows, first + rows_per_program), BLOCK_R):
        r = (start + tl.arange(0, BLOCK_R)).to(tl.int64)
        inside = (r < rows)[:, None]
        x = tl.load(left + r[:, None] * width_left + a[None, :], mask=inside & inside_a, other=0.0)
        y = tl.load(right + r[:, None] * width_right + b[None, :], mask=inside & inside_b, other=0.0)
        total = tl.dot(tl.trans(x), y, total, input_precision=PRECISION)
    base = parts + (group * tl.num_programs(1) + part) * width_left * width_right
    mask = (a < width_left)[:, None] & inside_b
    tl.store(base + a[:, None] * width_right + b[None, :], total, mask=mask)


def gram_parts(left: Tensor, right: Tensor) -> Tensor:
    """Parts of `gram` that are still to be added: ``(group, part, a, b)``.

    Groups may lie apart, rows are dense.
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
    launch(
        _gram_kernel,
        (tiles, number, groups),
        left,
        right,
        parts,
        rows,
        width_left,
        width_right,
        left.stride(0),
        right.stride(0),
        per_program,
        right_blocks,
        PRECISION=precision(left.dtype),
        BLOCK_R=BLOCK_ROWS,
        BLOCK_LEFT=block_left,
        BLOCK_RIGHT=block_right,
        num_warps=8 if block_left * block_right >= 128 * 128 else 4,
        num_stages=3,
    )
    return parts


def gram(left: Tensor, right: Tensor) -> Tensor:
    """``Xᵀ Y`` of each group in float32: ``(group, row, a), (group, row, b) -> (group, a, b)``."""
    parts = gram_parts(left, right)
    return parts.sum(1) if parts.shape[1] > 1 else parts.squeeze(1)
