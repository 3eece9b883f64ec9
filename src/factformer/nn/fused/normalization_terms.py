# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""What a normalisation over the domain adds to the gradients of the matrix after it and of the values before it.

    h = W ẑ,  ẑ = (z - μ) ρ:        ∂W = Σ ∂h ẑᵀ,        ∂z = ∂h (ρ W) + w (α + β z)

``Σ ∂h zᵀ`` and ``Σ ∂h`` of a sample are known; all else is arithmetic on matrices of the size of the weights.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from factformer.nn.fused._common import padded, rows_of


@triton.jit
def _terms_kernel(
    raw,
    sums,
    weight,
    statistics,
    grad,
    terms,
    rows,
    groups,
    channels,
    measure,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    group, sample = tl.program_id(0), tl.program_id(1).to(tl.int64)
    c = tl.arange(0, BLOCK_C)
    where = (sample * groups + group) * 2
    mean, scale = tl.load(statistics + where), tl.load(statistics + where + 1)
    along = tl.zeros((BLOCK_R, BLOCK_C), dtype=tl.float32)
    level = tl.zeros((BLOCK_R, BLOCK_C), dtype=tl.float32)
    for start in range(0, rows, BLOCK_R):
        r = start + tl.arange(0, BLOCK_R)
        mask = (r < rows)[:, None] & (c < channels)[None, :]
        offset = (r[:, None] * groups + group) * channels + c[None, :]
        here = sample * rows * groups * channels
        total = tl.load(sums + sample * rows + r, mask=r < rows, other=0.0)[:, None]
        w = tl.load(weight + offset, mask=mask, other=0.0).to(tl.float32)
        g = (tl.load(raw + here + offset, mask=mask, other=0.0) - total * mean) * scale
        tl.store(grad + here + offset, g, mask=mask)
        along += tl.where(mask, g * w, 0.0)
        level += total * w
    slope = -scale * scale * tl.sum(tl.sum(along, axis=1), axis=0) * measure
    tl.store(terms + where, -scale * tl.sum(tl.sum(level, axis=1), axis=0) * measure - slope * mean)
    tl.store(terms + where + 1, slope)


def normalization_terms(
    raw: Tensor, sums: Tensor, weight: Tensor, statistics: Tensor, measure: float
) -> tuple[Tensor, Tensor]:
    """``∂W`` summed over the batch, and ``(α, β)`` of every sample and group, ``(batch, group, 2)``.

    ``raw = Σ ∂h zᵀ`` is ``(batch, row, group, channel)``, ``sums = Σ ∂h`` is ``(batch, row)``, ``weight`` is ``(row,
    group, channel)`` and ``statistics`` holds ``μ, ρ`` as ``(batch, group, 2)``. ``measure`` is one over the number of
    points where these have no weights of their own.
    """
    batch, rows, groups, channels = raw.shape
    grad = torch.empty_like(raw)
    terms = torch.empty_like(statistics)
    _terms_kernel[(groups, batch)](
        rows_of(raw),
        rows_of(sums),
        rows_of(weight),
        statistics,
        grad,
        terms,
        rows,
        groups,
        channels,
        measure / channels,
        BLOCK_R=min(padded(rows), 64),
        BLOCK_C=padded(channels),
    )
    return grad.sum(0) if batch > 1 else grad[0], terms
