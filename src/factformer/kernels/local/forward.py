# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# mypy: disable-error-code="assignment, var-annotated"
# ruff: noqa: RUF005 (Triton adds tuples, it does not unpack them)
"""Kernels of the local branch, forward: the convolution; norm, pointwise network and residual add."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from factformer.kernels._triton.arithmetic import gelu, zeros
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
    axes,
    STENCIL: tl.constexpr,
    TRANSPOSED: tl.constexpr,
    MASKED: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """``start`` and the convolution of ``source``: a bias per channel, or of its transpose a field.

    With a mask the convolution reads what lies inside the ``domain``, all where that is ``None``, and its result is
    multiplied by the ``factor`` of each point.
    """
    RUN: tl.constexpr = STENCIL.RUN
    size3 = axes.size3
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
            total = zeros(BLOCK_R, BLOCK_D)
            total += tl.load(start + d, mask=d < dim, other=0.0)[None, :]
        totals = totals + (total,)
    begin = totals
    if MASKED:
        totals = ()
        for _ in tl.static_range(RUN):
            totals = totals + (zeros(BLOCK_R, BLOCK_D),)
    totals = correlate(
        source + sample,
        None if domain is None else domain + first_point,
        weight,
        number,
        d,
        runs,
        dim,
        totals,
        axes,
        -1 if TRANSPOSED else 1,
        STENCIL,
    )
    for r in tl.static_range(RUN):
        mask = ((number < runs) & (first + r < size3))[:, None] & inside_d
        total = totals[r]
        if MASKED:
            place = row * size3 + first + r
            here = tl.load(factor + first_point + place, mask=(number < runs) & (first + r < size3), other=0)
            total = total * here.to(tl.float32)[:, None] + begin[r]
        tl.store(result + offset + r * dim, total.to(result.dtype.element_ty), mask=mask)


class Network(NamedTuple):
    """Gain and shift of the norm, and the pointwise network up to its last bias."""

    gain: Tensor
    shift: Tensor
    first: Tensor
    first_bias: Tensor
    second: Tensor


class Sizes(NamedTuple):
    """Points of all samples, channels and hidden channels; ``eps`` is the norm's."""

    points: int
    dim: int
    hidden: int
    eps: float


@dataclass(frozen=True, kw_only=True)
class Tiles:
    """What the kernels of the network are made for: points, channels and hidden channels of a tile."""

    PRECISION: str
    BLOCK_P: int
    BLOCK_D: int
    BLOCK_H: int


@triton.jit
def network_kernel(field, convolved, network, second_bias, result, sizes, TILES: tl.constexpr):
    """Norm, pointwise network and residual add."""
    points, dim, hidden, eps = sizes
    p = tl.program_id(0) * TILES.BLOCK_P + tl.arange(0, TILES.BLOCK_P)
    d = tl.arange(0, TILES.BLOCK_D)
    inside_d = d < dim
    mask = (p < points)[:, None] & inside_d[None, :]
    offset = p.to(tl.int64)[:, None] * dim + d[None, :]
    x = normalized(convolved, network, offset, mask, d, dim, eps)[0]
    out = zeros(TILES.BLOCK_P, TILES.BLOCK_D)
    for start in range(0, hidden, TILES.BLOCK_H):
        h, _, w2 = hidden_layer(x, network, start + tl.arange(0, TILES.BLOCK_H), d, sizes, TILES)
        out = tl.dot(gelu(h).to(w2.dtype), tl.trans(w2), out, input_precision=TILES.PRECISION)
    out += tl.load(field + offset, mask=mask, other=0.0).to(tl.float32)
    out += tl.load(second_bias + d, mask=inside_d, other=0.0)[None, :]
    tl.store(result + offset, out.to(result.dtype.element_ty), mask=mask)


@triton.jit
def normalized(convolved, network, offset, mask, d, dim, eps):
    """What the norm makes of rows, then their values of zero mean and unit deviation, the deviation they had, the gain.

    The deviation is the reciprocal one.
    """
    inside_d = d < dim
    y = tl.load(convolved + offset, mask=mask, other=0.0).to(tl.float32)
    mean = tl.sum(y, axis=1) / dim
    centred = tl.where(inside_d[None, :], y - mean[:, None], 0.0)
    scale = tl.rsqrt(tl.sum(centred * centred, axis=1) / dim + eps)
    unit = centred * scale[:, None]
    gain = tl.load(network.gain + d, mask=inside_d, other=0.0)[None, :]
    shift = tl.load(network.shift + d, mask=inside_d, other=0.0)[None, :]
    return (unit * gain + shift).to(network.first.dtype.element_ty), unit, scale, gain


@triton.jit
def hidden_layer(x, network, k, d, sizes, TILES: tl.constexpr):
    """The channels ``k`` of the hidden layer before its activation, and the rows and columns of both matrices there."""
    dim, hidden = sizes.dim, sizes.hidden
    inside_k, inside_d = k < hidden, d < dim
    w1 = tl.load(network.first + k[:, None] * dim + d[None, :], mask=inside_k[:, None] & inside_d[None, :], other=0.0)
    w2 = tl.load(
        network.second + d[:, None] * hidden + k[None, :], mask=inside_d[:, None] & inside_k[None, :], other=0.0
    )
    h = tl.dot(x, tl.trans(w1), input_precision=TILES.PRECISION)
    h += tl.load(network.first_bias + k, mask=inside_k, other=0.0)[None, :]
    return h, w1, w2
