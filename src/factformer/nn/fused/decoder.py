# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""The pointwise layers of the decoder in one pass, and their gradients.

    fields = W₃ gelu( W₂ gelu( F z + f ) + b₂ ) + b₃

``F`` and ``f`` of each sample hold the group norm and the grouped matrix as a dense one (`factformer.nn.fused.fold`):
the matrix units are idle here anyway. Plain twin: `factformer.nn.decoder.Decoder`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from factformer.nn.fused._common import gelu, gelu_slope, padded, precision
from factformer.nn.fused.gram import gram

BLOCK_POINTS = 64
BLOCK_LATENT = 64


@triton.jit
def _decode_kernel(
    states,
    first,
    first_bias,
    second,
    second_bias,
    third,
    third_bias,
    result,
    points,
    latent,
    wide,
    narrow,
    channels,
    PRECISION: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_W: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_C: tl.constexpr,
    STAGES: tl.constexpr,
):
    sample = tl.program_id(1).to(tl.int64)
    p = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)
    o, n, f = tl.arange(0, BLOCK_W), tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_C)
    inside = (p < points)[:, None]
    row = sample * points + p
    first += sample * wide * latent
    h = tl.zeros((BLOCK_P, BLOCK_W), dtype=tl.float32)
    for start in tl.range(0, latent, BLOCK_K, num_stages=STAGES):
        c = start + tl.arange(0, BLOCK_K)
        z = tl.load(states + row[:, None] * latent + c[None, :], mask=inside & (c < latent)[None, :], other=0.0)
        w = tl.load(
            first + o[:, None] * latent + c[None, :], mask=(o < wide)[:, None] & (c < latent)[None, :], other=0.0
        )
        h = tl.dot(z, tl.trans(w), h, input_precision=PRECISION)
    h += tl.load(first_bias + sample * wide + o, mask=o < wide, other=0.0)[None, :]
    w = tl.load(second + n[:, None] * wide + o[None, :], mask=(n < narrow)[:, None] & (o < wide)[None, :], other=0.0)
    h = tl.dot(gelu(h).to(w.dtype), tl.trans(w), input_precision=PRECISION)
    h += tl.load(second_bias + n, mask=n < narrow, other=0.0)[None, :]
    w = tl.load(
        third + f[:, None] * narrow + n[None, :], mask=(f < channels)[:, None] & (n < narrow)[None, :], other=0.0
    )
    fields = tl.dot(gelu(h).to(w.dtype), tl.trans(w), input_precision=PRECISION)
    fields += tl.load(third_bias + f, mask=f < channels, other=0.0)[None, :]
    tl.store(result + row[:, None] * channels + f[None, :], fields, mask=inside & (f < channels)[None, :])


@triton.jit
def _decode_gradient_kernel(
    grad,
    states,
    first,
    first_bias,
    second,
    second_bias,
    third,
    grad_first,
    grad_second,
    activated,
    third_parts,
    sum_parts,
    points,
    latent,
    wide,
    narrow,
    channels,
    PRECISION: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_W: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_C: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Gradients before both activations, the first activated layer, and sums over the points of a tile."""
    sample = tl.program_id(1).to(tl.int64)
    p = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)
    o, n, f = tl.arange(0, BLOCK_W), tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_C)
    inside = (p < points)[:, None]
    row = sample * points + p
    program = sample * tl.num_programs(0) + tl.program_id(0)
    sums = sum_parts + program * (wide + narrow + channels)
    first += sample * wide * latent
    h1 = tl.zeros((BLOCK_P, BLOCK_W), dtype=tl.float32)
    for start in tl.range(0, latent, BLOCK_K, num_stages=STAGES):
        c = start + tl.arange(0, BLOCK_K)
        z = tl.load(states + row[:, None] * latent + c[None, :], mask=inside & (c < latent)[None, :], other=0.0)
        w = tl.load(
            first + o[:, None] * latent + c[None, :], mask=(o < wide)[:, None] & (c < latent)[None, :], other=0.0
        )
        h1 = tl.dot(z, tl.trans(w), h1, input_precision=PRECISION)
    h1 += tl.load(first_bias + sample * wide + o, mask=o < wide, other=0.0)[None, :]
    w2 = tl.load(second + n[:, None] * wide + o[None, :], mask=(n < narrow)[:, None] & (o < wide)[None, :], other=0.0)
    g1 = gelu(h1).to(w2.dtype)
    offset = row[:, None] * wide + o[None, :]
    tl.store(activated + offset, g1, mask=inside & (o < wide)[None, :])
    h2 = tl.dot(g1, tl.trans(w2), input_precision=PRECISION)
    h2 += tl.load(second_bias + n, mask=n < narrow, other=0.0)[None, :]
    y = tl.load(grad + row[:, None] * channels + f[None, :], mask=inside & (f < channels)[None, :], other=0.0)
    tl.store(sums + wide + narrow + f, tl.sum(y, axis=0), mask=f < channels)
    y = y.to(w2.dtype)
    grad_third = tl.dot(tl.trans(y), gelu(h2).to(w2.dtype), input_precision=PRECISION)
    tl.store(
        third_parts + program * channels * narrow + f[:, None] * narrow + n[None, :],
        grad_third,
        mask=(f < channels)[:, None] & (n < narrow)[None, :],
    )
    w3 = tl.load(
        third + f[:, None] * narrow + n[None, :], mask=(f < channels)[:, None] & (n < narrow)[None, :], other=0.0
    )
    grad2 = tl.dot(y, w3, input_precision=PRECISION) * gelu_slope(h2)
    tl.store(sums + wide + n, tl.sum(grad2, axis=0), mask=n < narrow)
    rounded = grad2.to(w2.dtype)
    tl.store(grad_second + row[:, None] * narrow + n[None, :], rounded, mask=inside & (n < narrow)[None, :])
    grad1 = tl.dot(rounded, w2, input_precision=PRECISION) * gelu_slope(h1)
    tl.store(sums + o, tl.sum(grad1, axis=0), mask=o < wide)
    tl.store(grad_first + offset, grad1.to(w2.dtype), mask=inside & (o < wide)[None, :])


def decode(states: Tensor, network: tuple[Tensor, ...]) -> Tensor:
    """Fields ``(sample, point, channel)`` in float32 of states ``(sample, point, latent)``.

    ``network`` holds F, f, W₂, b₂, W₃, b₃, the first two of every sample and the matrices in the type of the states.
    """
    samples, points, latent = states.shape
    first, first_bias, second, second_bias, third, third_bias = network
    wide, narrow, channels = first.shape[1], second.shape[0], third.shape[0]
    result = states.new_empty(samples, points, channels, dtype=torch.float32)
    _decode_kernel[(triton.cdiv(points, BLOCK_POINTS), samples)](
        states,
        first,
        first_bias,
        second,
        second_bias,
        third,
        third_bias,
        result,
        points,
        latent,
        wide,
        narrow,
        channels,
        PRECISION=precision(states.dtype),
        BLOCK_P=BLOCK_POINTS,
        BLOCK_K=min(padded(latent), BLOCK_LATENT),
        BLOCK_W=padded(wide),
        BLOCK_N=padded(narrow),
        BLOCK_C=padded(channels),
        STAGES=3,
        num_warps=4,
    )
    return result


def decode_backward(
    grad: Tensor, states: Tensor, network: tuple[Tensor, ...]
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradient before the first activation, its sums per sample, and ``∂W₂, ∂b₂, ∂W₃, ∂b₃``."""
    samples, points, latent = states.shape
    first, first_bias, second, second_bias, third, _ = network
    wide, narrow, channels = first.shape[1], second.shape[0], third.shape[0]
    tiles = triton.cdiv(points, BLOCK_POINTS)
    grad_first, activated = states.new_empty(2, samples, points, wide).unbind(0)
    grad_second = states.new_empty(samples, points, narrow)
    third_parts = states.new_empty(samples * tiles, channels, narrow, dtype=torch.float32)
    sum_parts = states.new_empty(samples, tiles, wide + narrow + channels, dtype=torch.float32)
    _decode_gradient_kernel[(tiles, samples)](
        grad,
        states,
        first,
        first_bias,
        second,
        second_bias,
        third,
        grad_first,
        grad_second,
        activated,
        third_parts,
        sum_parts,
        points,
        latent,
        wide,
        narrow,
        channels,
        PRECISION=precision(states.dtype),
        BLOCK_P=BLOCK_POINTS,
        BLOCK_K=min(padded(latent), BLOCK_LATENT),
        BLOCK_W=padded(wide),
        BLOCK_N=padded(narrow),
        BLOCK_C=padded(channels),
        STAGES=3,
        num_warps=8,
    )
    sums = sum_parts.sum(1)
    total = sums.sum(0)
    grad_weight = gram(grad_second.view(1, -1, narrow), activated.view(1, -1, wide)).squeeze(0)
    return (
        grad_first,
        sums[:, :wide],
        grad_weight,
        total[wide : wide + narrow],
        third_parts.sum(0),
        total[wide + narrow :],
    )
