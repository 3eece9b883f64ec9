# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""The pointwise layers of the decoder in one pass, and their gradients.

    fields = W₃ gelu( W₂ gelu( G n + b₁ ) + b₂ ) + b₃,     n = z · scale + shift

``scale`` and ``shift`` hold the group norm and its affine map; the grouped matrix ``G`` comes as a dense one, since
the matrix units are idle here anyway. Plain twin: `factformer.nn.decoder.Decoder`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from factformer.nn.fused._common import gelu, gelu_slope, padded, pieces, precision

BLOCK_POINTS = 64


@triton.jit
def _forward_kernel(
    states, scale, shift, first, first_bias, second, second_bias, third, third_bias, result,
    points, latent, wide, narrow, channels,
    PRECISION: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_L: tl.constexpr, BLOCK_W: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_C: tl.constexpr,
):
    sample = tl.program_id(1).to(tl.int64)
    p = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)
    c, o, k, f = tl.arange(0, BLOCK_L), tl.arange(0, BLOCK_W), tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_C)
    inside = (p < points)[:, None]
    row = sample * points + p
    z = tl.load(states + row[:, None] * latent + c[None, :], mask=inside & (c < latent)[None, :], other=0.0)
    a = tl.load(scale + sample * latent + c, mask=c < latent, other=0.0)
    b = tl.load(shift + sample * latent + c, mask=c < latent, other=0.0)
    n = (z.to(tl.float32) * a[None, :] + b[None, :]).to(z.dtype)
    w = tl.load(
        first + o[:, None] * latent + c[None, :], mask=(o < wide)[:, None] & (c < latent)[None, :], other=0.0
    )
    h = tl.dot(n, tl.trans(w), input_precision=PRECISION)
    h = gelu(h + tl.load(first_bias + o, mask=o < wide, other=0.0)[None, :]).to(z.dtype)
    w = tl.load(
        second + k[:, None] * wide + o[None, :], mask=(k < narrow)[:, None] & (o < wide)[None, :], other=0.0
    )
    h = tl.dot(h, tl.trans(w), input_precision=PRECISION)
    h = gelu(h + tl.load(second_bias + k, mask=k < narrow, other=0.0)[None, :]).to(z.dtype)
    w = tl.load(
        third + f[:, None] * narrow + k[None, :], mask=(f < channels)[:, None] & (k < narrow)[None, :], other=0.0
    )
    fields = tl.dot(h, tl.trans(w), input_precision=PRECISION)
    fields += tl.load(third_bias + f, mask=f < channels, other=0.0)[None, :]
    tl.store(result + row[:, None] * channels + f[None, :], fields, mask=inside & (f < channels)[None, :])


@triton.jit
def _backward_kernel(
    grad, states, scale, shift, first, first_bias, second, second_bias, third,
    grad_first, second_parts, third_parts, sum_parts,
    points, latent, wide, narrow, channels, points_per_program, tiles,
    PRECISION: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_L: tl.constexpr, BLOCK_W: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_C: tl.constexpr,
):
    part, sample = tl.program_id(0), tl.program_id(1).to(tl.int64)
    c, o, k, f = tl.arange(0, BLOCK_L), tl.arange(0, BLOCK_W), tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_C)
    w1 = tl.load(
        first + o[:, None] * latent + c[None, :], mask=(o < wide)[:, None] & (c < latent)[None, :], other=0.0
    )
    w2 = tl.load(
        second + k[:, None] * wide + o[None, :], mask=(k < narrow)[:, None] & (o < wide)[None, :], other=0.0
    )
    w3 = tl.load(
        third + f[:, None] * narrow + k[None, :], mask=(f < channels)[:, None] & (k < narrow)[None, :], other=0.0
    )
    grad_second = tl.zeros((BLOCK_N, BLOCK_W), dtype=tl.float32)
    grad_third = tl.zeros((BLOCK_C, BLOCK_N), dtype=tl.float32)
    start = part * points_per_program
    for p0 in range(start, min(points, start + points_per_program), BLOCK_P):
        p = p0 + tl.arange(0, BLOCK_P)
        inside = (p < points)[:, None]
        row = sample * points + p
        z = tl.load(states + row[:, None] * latent + c[None, :], mask=inside & (c < latent)[None, :], other=0.0)
        n = z.to(tl.float32) * tl.load(scale + sample * latent + c, mask=c < latent, other=0.0)[None, :]
        n = (n + tl.load(shift + sample * latent + c, mask=c < latent, other=0.0)[None, :]).to(z.dtype)
        h1 = tl.dot(n, tl.trans(w1), input_precision=PRECISION)
        h1 += tl.load(first_bias + o, mask=o < wide, other=0.0)[None, :]
        g1 = gelu(h1).to(z.dtype)
        h2 = tl.dot(g1, tl.trans(w2), input_precision=PRECISION)
        h2 += tl.load(second_bias + k, mask=k < narrow, other=0.0)[None, :]
        g2 = gelu(h2).to(z.dtype)
        y = tl.load(grad + row[:, None] * channels + f[None, :], mask=inside & (f < channels)[None, :], other=0.0)
        base = sum_parts + (sample * tiles + p0 // BLOCK_P) * (wide + narrow + channels)
        tl.store(base + wide + narrow + f, tl.sum(y, axis=0), mask=f < channels)
        y = y.to(z.dtype)
        grad_third = tl.dot(tl.trans(y), g2, grad_third, input_precision=PRECISION)
        grad2 = tl.dot(y, w3, input_precision=PRECISION) * gelu_slope(h2)
        tl.store(base + wide + k, tl.sum(grad2, axis=0), mask=k < narrow)
        rounded = grad2.to(z.dtype)
        grad_second = tl.dot(tl.trans(rounded), g1, grad_second, input_precision=PRECISION)
        grad1 = tl.dot(rounded, w2, input_precision=PRECISION) * gelu_slope(h1)
        tl.store(base + o, tl.sum(grad1, axis=0), mask=o < wide)
        tl.store(
            grad_first + row[:, None] * wide + o[None, :], grad1.to(z.dtype), mask=inside & (o < wide)[None, :]
        )
    program = sample * tl.num_programs(0) + part
    tl.store(
        second_parts + program * narrow * wide + k[:, None] * wide + o[None, :], grad_second,
        mask=(k < narrow)[:, None] & (o < wide)[None, :],
    )
    tl.store(
        third_parts + program * channels * narrow + f[:, None] * narrow + k[None, :], grad_third,
        mask=(f < channels)[:, None] & (k < narrow)[None, :],
    )


def decode(states: Tensor, scale: Tensor, shift: Tensor, network: tuple[Tensor, ...]) -> Tensor:
    """Fields ``(sample, point, channel)`` in float32 of states ``(sample, point, latent)``.

    ``scale`` and ``shift`` are ``(sample, latent)``; ``network`` holds G, b₁, W₂, b₂, W₃, b₃ with the matrices in
    the type of the states and ``G`` as ``(wide, latent)``.
    """
    samples, points, latent = states.shape
    first, first_bias, second, second_bias, third, third_bias = network
    wide, narrow, channels = first.shape[0], second.shape[0], third.shape[0]
    result = states.new_empty(samples, points, channels, dtype=torch.float32)
    _forward_kernel[(triton.cdiv(points, BLOCK_POINTS), samples)](
        states, scale, shift, first, first_bias, second, second_bias, third, third_bias, result,
        points, latent, wide, narrow, channels,
        PRECISION=precision(states.dtype), BLOCK_P=BLOCK_POINTS, BLOCK_L=padded(latent), BLOCK_W=padded(wide),
        BLOCK_N=padded(narrow), BLOCK_C=padded(channels), num_warps=8,
    )
    return result


def decode_backward(
    grad: Tensor, states: Tensor, scale: Tensor, shift: Tensor, network: tuple[Tensor, ...]
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradient before the first activation, its sums per sample, and ``∂W₂, ∂b₂, ∂W₃, ∂b₃``."""
    samples, points, latent = states.shape
    first, first_bias, second, second_bias, third, _ = network
    wide, narrow, channels = first.shape[0], second.shape[0], third.shape[0]
    steps = triton.cdiv(points, BLOCK_POINTS)
    per_program = triton.cdiv(steps, pieces(steps, samples, waves=4)) * BLOCK_POINTS
    number = triton.cdiv(points, per_program)
    grad_first = states.new_empty(samples, points, wide)
    second_parts = states.new_empty(samples * number, narrow, wide, dtype=torch.float32)
    third_parts = states.new_empty(samples * number, channels, narrow, dtype=torch.float32)
    sum_parts = states.new_empty(samples, steps, wide + narrow + channels, dtype=torch.float32)
    _backward_kernel[(number, samples)](
        grad, states, scale, shift, first, first_bias, second, second_bias, third,
        grad_first, second_parts, third_parts, sum_parts, points, latent, wide, narrow, channels, per_program,
        steps, PRECISION=precision(states.dtype), BLOCK_P=BLOCK_POINTS, BLOCK_L=padded(latent), BLOCK_W=padded(wide),
        BLOCK_N=padded(narrow), BLOCK_C=padded(channels), num_warps=8, num_stages=1,
    )
    sums = sum_parts.sum(1)
    total = sums.sum(0)
    return (
        grad_first, sums[:, :wide], second_parts.sum(0), total[wide : wide + narrow], third_parts.sum(0),
        total[wide + narrow :],
    )
