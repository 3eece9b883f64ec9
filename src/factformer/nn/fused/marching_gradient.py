# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""The gradient of one step of latent marching, in three passes.

What the decoder and the next step want of the state; the hidden layer once more and its gradient; through the
LayerNorm back to the state before. Plain twin: autograd through `factformer.nn.marching.LatentMarching`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from factformer.nn.fused._common import gelu, gelu_slope, padded, precision
from factformer.nn.fused.marching import BLOCK_LATENT, BLOCK_POINTS, Network


@triton.jit
def _state_gradient_kernel(
    grad_decoded,
    scaled,
    terms,
    following,
    weights,
    carry,
    grad_result,
    sum_parts,
    points,
    latent,
    hidden,
    decoded,
    stride_decoded,
    stride_scaled,
    stride_terms,
    stride_following,
    LAST: tl.constexpr,
    HAS_WEIGHTS: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_D: tl.constexpr,
    STAGES: tl.constexpr,
):
    """What the decoder and the next step want of a state: ``∂y = ∂h F + w (α + β y) + carry``."""
    tile, sample = tl.program_id(0), tl.program_id(1).to(tl.int64)
    p = tile * BLOCK_P + tl.arange(0, BLOCK_P)
    k, o = tl.arange(0, BLOCK_K), tl.arange(0, BLOCK_D)
    inside = (p < points)[:, None]
    sums = sum_parts + (sample * tl.num_programs(0) + tile) * (2 * latent + hidden)
    x = tl.load(
        grad_decoded + sample * stride_decoded + p[:, None] * decoded + o[None, :],
        mask=inside & (o < decoded)[None, :],
        other=0.0,
    )
    measure = tl.where(p < points, 1.0, 0.0)
    if HAS_WEIGHTS:
        measure = tl.load(weights + p, mask=p < points, other=0.0)
    for start in tl.range(0, latent, BLOCK_K, num_stages=STAGES):
        c = start + k
        inside_c = c < latent
        mask = inside & inside_c[None, :]
        offset = p[:, None] * latent + c[None, :]
        w = tl.load(
            scaled + sample * stride_scaled + o[:, None] * latent + c[None, :],
            mask=(o < decoded)[:, None] & inside_c[None, :],
            other=0.0,
        )
        y = tl.load(following + sample * stride_following + offset, mask=mask, other=0.0).to(tl.float32)
        base = terms + sample * stride_terms + c
        pull = tl.load(base, mask=inside_c, other=0.0)[None, :]
        pull += tl.load(base + latent, mask=inside_c, other=0.0)[None, :] * y
        grad = pull * measure[:, None] + tl.dot(x, w, input_precision=PRECISION)
        whole = sample * points * latent + offset
        if not LAST:
            grad += tl.load(carry + whole, mask=mask, other=0.0).to(tl.float32)
        tl.store(sums + c, tl.sum(grad, axis=0), mask=inside_c)
        tl.store(grad_result + whole, grad.to(grad_result.dtype.element_ty), mask=mask)


@triton.jit
def _march_gradient_kernel(
    state,
    embedding,
    first,
    first_sum,
    first_shift,
    first_bias,
    second,
    grad_result,
    activated,
    grad_hidden,
    row_statistics,
    sum_parts,
    points,
    latent,
    hidden,
    stride_state,
    eps,
    PRECISION: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_H: tl.constexpr,
    STAGES: tl.constexpr,
):
    tile, sample = tl.program_id(0), tl.program_id(1).to(tl.int64)
    p = tile * BLOCK_P + tl.arange(0, BLOCK_P)
    k, d = tl.arange(0, BLOCK_K), tl.arange(0, BLOCK_H)
    inside, inside_d = (p < points)[:, None], d < hidden
    state += sample * stride_state
    grad_result += sample * points * latent
    sums = sum_parts + (sample * tl.num_programs(0) + tile) * (2 * latent + hidden)
    h = tl.zeros((BLOCK_P, BLOCK_H), dtype=tl.float32)
    grad_h = tl.zeros((BLOCK_P, BLOCK_H), dtype=tl.float32)
    total = tl.zeros((BLOCK_P,), dtype=tl.float32)
    squares = tl.zeros((BLOCK_P,), dtype=tl.float32)
    for start in tl.range(0, latent, BLOCK_K, num_stages=STAGES):
        c = start + k
        inside_c = c < latent
        mask = inside & inside_c[None, :]
        offset = p[:, None] * latent + c[None, :]
        g = tl.load(grad_result + offset, mask=mask, other=0.0)
        w = tl.load(second + c[:, None] * hidden + d[None, :], mask=inside_c[:, None] & inside_d[None, :], other=0.0)
        grad_h = tl.dot(g, w, grad_h, input_precision=PRECISION)
        # The hidden layer once more.
        z = tl.load(state + offset, mask=mask, other=0.0)
        w = tl.load(first + d[:, None] * latent + c[None, :], mask=inside_d[:, None] & inside_c[None, :], other=0.0)
        moved = z.to(tl.float32) + tl.load(embedding + c, mask=inside_c, other=0.0)[None, :]
        total += tl.sum(moved, axis=1)
        squares += tl.sum(moved * moved, axis=1)
        h = tl.dot(z, tl.trans(w), h, input_precision=PRECISION)
    mean = total / latent
    scale = tl.rsqrt(tl.maximum(squares / latent - mean * mean, 0.0) + eps)
    summed = tl.load(first_sum + d, mask=inside_d, other=0.0)[None, :]
    h += tl.load(first_shift + d, mask=inside_d, other=0.0)[None, :]
    h = (h - mean[:, None] * summed) * scale[:, None]
    biased = h + tl.load(first_bias + d, mask=inside_d, other=0.0)[None, :]
    grad_h = tl.where(inside, grad_h * gelu_slope(biased), 0.0)
    tl.store(sums + 2 * latent + d, tl.sum(grad_h, axis=0), mask=inside_d)
    # The two means that the LayerNorm's gradient needs, from the hidden layer instead of the state.
    row = (sample * points + p) * 4
    tl.store(row_statistics + row, mean, mask=p < points)
    tl.store(row_statistics + row + 1, scale, mask=p < points)
    tl.store(row_statistics + row + 2, tl.sum(grad_h * summed, axis=1) / latent, mask=p < points)
    tl.store(row_statistics + row + 3, tl.sum(grad_h * h, axis=1) / latent, mask=p < points)
    narrow = (sample * points + p)[:, None] * hidden + d[None, :]
    tl.store(activated + narrow, gelu(biased).to(activated.dtype.element_ty), mask=inside & inside_d[None, :])
    tl.store(grad_hidden + narrow, grad_h.to(grad_hidden.dtype.element_ty), mask=inside & inside_d[None, :])


@triton.jit
def _carry_gradient_kernel(
    state,
    embedding,
    first,
    carry,
    grad_result,
    grad_hidden,
    row_statistics,
    sum_parts,
    points,
    latent,
    hidden,
    stride_state,
    PRECISION: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_H: tl.constexpr,
    STAGES: tl.constexpr,
):
    """``∂z' = ∂y + ρ (∂h W - level - x̂ along)``: through the LayerNorm, with its means known."""
    tile, sample = tl.program_id(0), tl.program_id(1).to(tl.int64)
    p = tile * BLOCK_P + tl.arange(0, BLOCK_P)
    k, d = tl.arange(0, BLOCK_K), tl.arange(0, BLOCK_H)
    inside, inside_d = (p < points)[:, None], d < hidden
    row = row_statistics + (sample * points + p) * 4
    mean = tl.load(row, mask=p < points, other=0.0)[:, None]
    scale = tl.load(row + 1, mask=p < points, other=0.0)[:, None]
    level = tl.load(row + 2, mask=p < points, other=0.0)[:, None]
    along = tl.load(row + 3, mask=p < points, other=0.0)[:, None]
    x = tl.load(
        grad_hidden + (sample * points + p)[:, None] * hidden + d[None, :], mask=inside & inside_d[None, :], other=0.0
    )
    sums = sum_parts + (sample * tl.num_programs(0) + tile) * (2 * latent + hidden)
    for start in tl.range(0, latent, BLOCK_K, num_stages=STAGES):
        c = start + k
        inside_c = c < latent
        mask = inside & inside_c[None, :]
        offset = p[:, None] * latent + c[None, :]
        w = tl.load(first + d[:, None] * latent + c[None, :], mask=inside_d[:, None] & inside_c[None, :], other=0.0)
        z = tl.load(state + sample * stride_state + offset, mask=mask, other=0.0).to(tl.float32)
        z += tl.load(embedding + c, mask=inside_c, other=0.0)[None, :]
        grad = tl.dot(x, w, input_precision=PRECISION)
        grad = (grad - level - (z - mean) * scale * along) * scale
        whole = sample * points * latent + offset
        grad += tl.load(grad_result + whole, mask=mask, other=0.0).to(tl.float32)
        tl.store(carry + whole, grad.to(carry.dtype.element_ty), mask=mask)
        tl.store(sums + latent + c, tl.sum(tl.where(inside, grad, 0.0), axis=0), mask=inside_c)


def march_backward(
    step: int,
    states: Tensor,
    start: Tensor,
    network: Network,
    grad_decoded: Tensor,
    scaled: Tensor,
    terms: Tensor,
    weights: Tensor | None,
    buffers: tuple[Tensor, ...],
) -> Tensor:
    """Gradient of one step; returns the sums of ``∂y``, ``∂z'`` and ``∂h`` over all points, one after the other.

    ``buffers`` are filled: gradient of the state (also what the next step, if any, wants of this one's result),
    of the result, the activated hidden layer, its gradient before the activation, and the rows' statistics.
    """
    batch, num_steps, points, latent = states.shape
    hidden, decoded = network.first.shape[0], grad_decoded.shape[-1]
    state = states[:, step - 1] if step else start
    tiles = triton.cdiv(points, BLOCK_POINTS)
    sums = start.new_empty(batch * tiles, 2 * latent + hidden, dtype=torch.float32)
    carry, grad_result, activated, grad_hidden, row_statistics = buffers
    block = min(padded(latent), BLOCK_LATENT)
    _state_gradient_kernel[(tiles, batch)](
        grad_decoded[:, step],
        scaled[:, step],
        terms[:, step],
        states[:, step],
        weights if weights is not None else network.first_bias,
        carry,
        grad_result,
        sums,
        points,
        latent,
        hidden,
        decoded,
        grad_decoded.stride(0),
        scaled.stride(0),
        terms.stride(0),
        states.stride(0),
        LAST=step == num_steps - 1,
        HAS_WEIGHTS=weights is not None,
        PRECISION=precision(start.dtype),
        BLOCK_P=BLOCK_POINTS,
        BLOCK_K=block,
        BLOCK_D=padded(decoded),
        STAGES=2,
        num_warps=4,
    )
    _march_gradient_kernel[(tiles, batch)](
        state,
        network.embeddings[step],
        network.first,
        network.first_sum,
        network.first_shift[step],
        network.first_bias,
        network.second,
        grad_result,
        activated,
        grad_hidden,
        row_statistics,
        sums,
        points,
        latent,
        hidden,
        state.stride(0),
        network.eps,
        PRECISION=precision(start.dtype),
        BLOCK_P=BLOCK_POINTS,
        BLOCK_K=block,
        BLOCK_H=padded(hidden),
        STAGES=2,
        num_warps=8,
    )
    _carry_gradient_kernel[(tiles, batch)](
        state,
        network.embeddings[step],
        network.first,
        carry,
        grad_result,
        grad_hidden,
        row_statistics,
        sums,
        points,
        latent,
        hidden,
        state.stride(0),
        PRECISION=precision(start.dtype),
        BLOCK_P=BLOCK_POINTS,
        BLOCK_K=block,
        BLOCK_H=padded(hidden),
        STAGES=2,
        num_warps=4,
    )
    return sums.sum(0)
