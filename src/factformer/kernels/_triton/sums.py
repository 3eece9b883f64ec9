# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Sums of the parts that the programs of a kernel leave, always in the same order."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from factformer.kernels._triton.arithmetic import padded, pieces
from factformer.kernels._triton.launching import launch

BLOCK_ROWS = 64


@triton.jit
def _add_kernel(parts, result, number, size, BLOCK: tl.constexpr):
    k = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for part in range(number):
        total += tl.load(parts + part * size + k, mask=k < size, other=0.0)
    tl.store(result + k, total.to(result.dtype.element_ty), mask=k < size)


def add_parts(parts: Tensor, dtype: torch.dtype) -> Tensor:
    """Sum over the first, short dimension of dense float32 parts, rounded once at the end."""
    result = torch.empty(parts.shape[1:], dtype=dtype, device=parts.device)
    block = 1024 if result.numel() >= 2**18 else 256
    launch(
        _add_kernel, (triton.cdiv(result.numel(), block),), parts, result, parts.shape[0], result.numel(), BLOCK=block
    )
    return result


@triton.jit
def _column_sums_kernel(values, parts, rows, width, rows_per_program, BLOCK_R: tl.constexpr, BLOCK_W: tl.constexpr):
    part, c = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK_W)
    total = tl.zeros((BLOCK_R, BLOCK_W), dtype=tl.float32)
    first = part * rows_per_program
    for start in range(first, min(rows, first + rows_per_program), BLOCK_R):
        r = start + tl.arange(0, BLOCK_R)
        mask = (r < rows)[:, None] & (c < width)[None, :]
        total += tl.load(values + r[:, None] * width + c[None, :], mask=mask, other=0.0).to(tl.float32)
    tl.store(parts + part * width + c, tl.sum(total, axis=0), mask=c < width)


def column_sums(values: Tensor) -> Tensor:
    """Sums over the rows of ``(row, column)``, in float32 and always in the same order."""
    rows, width = values.shape
    steps = triton.cdiv(rows, BLOCK_ROWS)
    per_program = triton.cdiv(steps, pieces(steps, 1, waves=2)) * BLOCK_ROWS
    parts = values.new_empty(triton.cdiv(rows, per_program), width, dtype=torch.float32)
    launch(
        _column_sums_kernel,
        (len(parts),),
        values,
        parts,
        rows,
        width,
        per_program,
        BLOCK_R=BLOCK_ROWS,
        BLOCK_W=padded(width),
    )
    return parts.sum(0)
