# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# mypy: disable-error-code="assignment, var-annotated"
# ruff: noqa: RUF005 (Triton adds tuples, it does not unpack them)
"""Kernels of the local branch, forward: the convolution; norm, pointwise network and residual add."""

from __future__ import annotations

import triton
import triton.language as tl

from factformer.kernels._triton.arithmetic import gelu
from factformer.kernels.local.neighbours import correlate, run_of


@triton.jit
def convolution_kernel(
    source,
    weight,
    start,
    result,
    domain,
    factor,
    points,
    dim,
    size0,
    size1,
    size2,
    size3,
    step,
    WRAPS: tl.constexpr,
    REACH: tl.constexpr,
    ABSENT: tl.constexpr,
    RUN: tl.constexpr,
    TRANSPOSED: tl.constexpr,
    MASKED: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """``start`` and the convolution of ``source``: a bias per channel, or of its transpose a field.

    With a mask the convolution reads what lies inside the ``domain``, all where that is ``None``, and its result is
    multiplied by the ``factor`` of each point.
    """
    first_point = tl.program_id(1).to(tl.int64) * points
    sample = tl.program_id(1).to(tl.int64) * points * dim
    runs = points // size3 * tl.cdiv(size3, RUN)
    number = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    d = tl.arange(0, BLOCK_D)
    inside_d = (d < dim)[None, :]
    row, first = run_of(number, size3, RUN)
    offset = sample + (row * size3 + first)[:, None] * dim + d[None, :]
    totals = ()
    for r in tl.static_range(RUN):
        if TRANSPOSED:
            mask = ((number < runs) & (first + r < size3))[:, None] & inside_d
            total = tl.load(start + offset + r * dim, mask=mask, other=0.0).to(tl.float32)
        else:
            total = tl.zeros((BLOCK_R, BLOCK_D), dtype=tl.float32)
            total += tl.load(start + d, mask=d < dim, other=0.0)[None, :]
        totals = totals + (total,)
    begin = totals
    if MASKED:
        totals = ()
        for _ in tl.static_range(RUN):
            totals = totals + (tl.zeros((BLOCK_R, BLOCK_D), dtype=tl.float32),)
    totals = correlate(
        source + sample,
        None if domain is None else domain + first_point,
        weight,
        number,
        d,
        runs,
        dim,
        totals,
        size0,
        size1,
        size2,
        size3,
        step,
        -1 if TRANSPOSED else 1,
        WRAPS,
        REACH,
        ABSENT,
        RUN,
    )
    for r in tl.static_range(RUN):
        mask = ((number < runs) & (first + r < size3))[:, None] & inside_d
        total = totals[r]
        if MASKED:
            place = row * size3 + first + r
            here = tl.load(factor + first_point + place, mask=(number < runs) & (first + r < size3), other=0)
            total = total * here.to(tl.float32)[:, None] + begin[r]
        tl.store(result + offset + r * dim, total.to(result.dtype.element_ty), mask=mask)


@triton.jit
def network_kernel(
    field,
    convolved,
    gain,
    shift,
    first,
    first_bias,
    second,
    second_bias,
    result,
    rows,
    dim,
    hidden,
    eps,
    PRECISION: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_H: tl.constexpr,
):
    """Norm, pointwise network and residual add."""
    p = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)
    d = tl.arange(0, BLOCK_D)
    inside_d = d < dim
    mask = (p < rows)[:, None] & inside_d[None, :]
    offset = p.to(tl.int64)[:, None] * dim + d[None, :]
    unit, _ = normalized(tl.load(convolved + offset, mask=mask, other=0.0).to(tl.float32), inside_d, dim, eps)
    g = tl.load(gain + d, mask=inside_d, other=0.0)[None, :]
    x = (unit * g + tl.load(shift + d, mask=inside_d, other=0.0)[None, :]).to(first.dtype.element_ty)
    out = tl.zeros((BLOCK_P, BLOCK_D), dtype=tl.float32)
    for start in range(0, hidden, BLOCK_H):
        k = start + tl.arange(0, BLOCK_H)
        w1 = tl.load(first + k[:, None] * dim + d[None, :], mask=(k < hidden)[:, None] & inside_d[None, :], other=0.0)
        w2 = tl.load(
            second + d[:, None] * hidden + k[None, :], mask=inside_d[:, None] & (k < hidden)[None, :], other=0.0
        )
        h = tl.dot(x, tl.trans(w1), input_precision=PRECISION)
        h += tl.load(first_bias + k, mask=k < hidden, other=0.0)[None, :]
        out = tl.dot(gelu(h).to(w2.dtype), tl.trans(w2), out, input_precision=PRECISION)
    out += tl.load(field + offset, mask=mask, other=0.0).to(tl.float32)
    out += tl.load(second_bias + d, mask=inside_d, other=0.0)[None, :]
    tl.store(result + offset, out.to(result.dtype.element_ty), mask=mask)


@triton.jit
def normalized(y, inside_d, dim, eps):
    """Rows of zero mean and unit deviation, and the reciprocal deviation they had."""
    mean = tl.sum(y, axis=1) / dim
    centred = tl.where(inside_d[None, :], y - mean[:, None], 0.0)
    scale = tl.rsqrt(tl.sum(centred * centred, axis=1) / dim + eps)
    return centred * scale[:, None], scale
