# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""A normalisation over the domain folded into the matrix after it.

    W ( γ (z - μ) ρ + β ) + b  =  F z + f       with F = W γ ρ and f = b + W β - F μ of each sample

so that the product runs on the values as they lie in memory, at full speed.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from factformer.kernels._triton.arithmetic import padded
from factformer.kernels._triton.launching import launch


@triton.jit
def _fold_kernel(
    weight, statistics, folded, constant, rows, columns, groups, channels, BLOCK_R: tl.constexpr, BLOCK_K: tl.constexpr
):
    sample = tl.program_id(1).to(tl.int64)
    r = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    total = tl.zeros((BLOCK_R,), dtype=tl.float32)
    for start in range(0, columns, BLOCK_K):
        c = start + tl.arange(0, BLOCK_K)
        inside = c < columns
        mask = (r < rows)[:, None] & inside[None, :]
        w = tl.load(weight + r[:, None] * columns + c[None, :], mask=mask, other=0.0).to(tl.float32)
        where = statistics + (sample * groups + c // channels) * 2
        mean = tl.load(where, mask=inside, other=0.0)
        scale = tl.load(where + 1, mask=inside, other=0.0)
        f = (w * scale[None, :]).to(folded.dtype.element_ty)
        tl.store(folded + (sample * rows + r)[:, None] * columns + c[None, :], f, mask=mask)
        # With the rounded matrix, so that a constant field still gives exactly nothing.
        total -= tl.sum(f.to(tl.float32) * mean[None, :], axis=1)
    tl.store(constant + sample * rows + r, total, mask=r < rows)


@dataclass(frozen=True, kw_only=True)
class Grouped:
    """What the kernels of a grouped matrix are made for: its sizes, and tiles of channels (K) and outputs (R)."""

    GROUPS: int
    CHANNELS: int
    OUTPUTS: int
    BLOCK_K: int
    BLOCK_R: int


@triton.jit
def _fold_grouped_kernel(grouped, statistics, gain, shift, bias, folded, constant, S: tl.constexpr):
    COLUMNS: tl.constexpr = S.GROUPS * S.CHANNELS
    BLOCK_K: tl.constexpr = S.BLOCK_K
    group, sample = tl.program_id(0), tl.program_id(1).to(tl.int64)
    o, c = tl.arange(0, S.BLOCK_R), tl.arange(0, BLOCK_K)
    inside_o = o < S.OUTPUTS
    row = group * S.OUTPUTS + o
    mean = tl.load(statistics + (sample * S.GROUPS + group) * 2)
    scale = tl.load(statistics + (sample * S.GROUPS + group) * 2 + 1)
    total = tl.load(bias + row, mask=inside_o, other=0.0)
    folded += (sample * S.GROUPS * S.OUTPUTS + row[:, None]) * COLUMNS
    for start in tl.static_range(0, COLUMNS, BLOCK_K):
        column = start + c
        own = (column // S.CHANNELS == group) & (column < COLUMNS)
        mask = inside_o[:, None] & own[None, :]
        w = tl.load(grouped + column[None, :] * S.OUTPUTS + o[:, None], mask=mask, other=0.0)
        total += tl.sum(w * tl.load(shift + column, mask=own, other=0.0)[None, :], axis=1)
        f = (w * (scale * tl.load(gain + column, mask=own, other=0.0))[None, :]).to(folded.dtype.element_ty)
        tl.store(folded + column[None, :], f, mask=inside_o[:, None] & (column < COLUMNS)[None, :])
        total -= mean * tl.sum(f.to(tl.float32), axis=1)
    tl.store(constant + sample * S.GROUPS * S.OUTPUTS + row, total, mask=inside_o)


def fold_grouped(
    grouped: Tensor, statistics: Tensor, dtype: torch.dtype, affine: tuple[Tensor, Tensor, Tensor]
) -> tuple[Tensor, Tensor]:
    """The same of a grouped matrix ``(group, in, out)`` with ``affine = γ, β, b``; ``F`` is zero between groups."""
    groups, channels, outputs = grouped.shape
    samples = statistics.shape[0]
    folded = grouped.new_empty(samples, groups * outputs, groups * channels, dtype=dtype)
    constant = grouped.new_empty(samples, groups * outputs, dtype=torch.float32)
    block_k = min(padded(groups * channels), 256)
    launch(
        _fold_grouped_kernel,
        (groups, samples),
        grouped,
        statistics,
        *affine,
        folded,
        constant,
        S=Grouped(GROUPS=groups, CHANNELS=channels, OUTPUTS=outputs, BLOCK_K=block_k, BLOCK_R=padded(outputs)),
    )
    return folded, constant


def fold(weight: Tensor, statistics: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """``F`` of every sample, ``(sample, row, column)`` in ``dtype``, and ``f`` in float32, with no ``γ``, ``β``, ``b``.

    ``statistics`` holds ``μ, ρ`` as ``(sample, group, 2)``.
    """
    rows, columns = weight.shape
    samples, groups = statistics.shape[:2]
    folded = weight.new_empty(samples, rows, columns, dtype=dtype)
    constant = weight.new_empty(samples, rows, dtype=torch.float32)
    launch(
        _fold_kernel,
        (triton.cdiv(rows, 16), samples),
        weight,
        statistics,
        folded,
        constant,
        rows,
        columns,
        groups,
        columns // groups,
        BLOCK_R=16,
        BLOCK_K=min(padded(columns), 256),
    )
    return folded, constant
