# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Sums of the parts that the programs of a kernel leave, always in the same order."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from factformer.kernels._triton.launch import launch


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
