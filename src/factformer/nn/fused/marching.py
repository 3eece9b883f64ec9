# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""One step of latent marching in one pass, and its gradient.

    z' = z + e,   y = z' + W₂ gelu( W₁ LayerNorm(z') + b₁ ) + b₂

The forward pass also takes mean and spread of every channel of a tile, from which the group norm of the decoder
follows without reading the state again; the backward pass makes the decoder's gradient of the state on the way.
Plain twin: `factformer.nn.marching.LatentMarching`.
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
    state, embedding, gain, bias, first, first_bias, second, second_bias, weights, result, parts, counts,
    points, latent, hidden, stride_state, stride_result, stride_parts, eps, points_per_program,
    HAS_WEIGHTS: tl.constexpr, PRECISION: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_L: tl.constexpr,
    BLOCK_H: tl.constexpr, STAGES: tl.constexpr,
):
    part, sample = tl.program_id(0), tl.program_id(1).to(tl.int64)
    c, d = tl.arange(0, BLOCK_L), tl.arange(0, BLOCK_H)
    inside_c, inside_d = c < latent, d < hidden
    # The weights stay on the chip while the program walks over its points.
    w1 = tl.load(first + d[:, None] * latent + c[None, :], mask=inside_d[:, None] & inside_c[None, :], other=0.0)
    w2 = tl.load(second + c[:, None] * hidden + d[None, :], mask=inside_c[:, None] & inside_d[None, :], other=0.0)
    begin = part * points_per_program
    for p0 in tl.range(begin, min(points, begin + points_per_program), BLOCK_P, num_stages=STAGES):
        p = p0 + tl.arange(0, BLOCK_P)
        mask = (p < points)[:, None] & inside_c[None, :]
        offset = p[:, None] * latent + c[None, :]
        # Vectors and, for the residual, the state are read again where they are used: held, they would spill.
        z = tl.load(state + sample * stride_state + offset, mask=mask, other=0.0).to(tl.float32)
        z += tl.load(embedding + c, mask=inside_c, other=0.0)[None, :]
        mean = tl.sum(z, axis=1)[:, None] / latent
        centred = tl.where(inside_c[None, :], z - mean, 0.0)
        scale = tl.rsqrt(tl.sum(centred * centred, axis=1) / latent + eps)[:, None]
        normed = centred * scale * tl.load(gain + c, mask=inside_c, other=0.0)[None, :]
        normed = (normed + tl.load(bias + c, mask=inside_c, other=0.0)[None, :]).to(w1.dtype)
        h = tl.dot(normed, tl.trans(w1), input_precision=PRECISION)
        h += tl.load(first_bias + d, mask=inside_d, other=0.0)[None, :]
        y = tl.dot(gelu(h).to(w2.dtype), tl.trans(w2), input_precision=PRECISION)
        y += tl.load(state + sample * stride_state + offset, mask=mask, other=0.0).to(tl.float32)
        y += tl.load(embedding + c, mask=inside_c, other=0.0)[None, :]
        y += tl.load(second_bias + c, mask=inside_c, other=0.0)[None, :]
        tl.store(result + sample * stride_result + offset, y.to(result.dtype.element_ty), mask=mask)
        measure = tl.where(p < points, 1.0, 0.0)
        if HAS_WEIGHTS:
            measure = tl.load(weights + p, mask=p < points, other=0.0)
        count = tl.sum(measure, axis=0)
        level = tl.sum(y * measure[:, None], axis=0) / count
        away = y - level[None, :]
        spread = tl.sum(away * away * measure[:, None], axis=0)
        tile = p0 // BLOCK_P
        base = parts + sample * stride_parts + tile * 2 * latent
        tl.store(base + c, level, mask=inside_c)
        tl.store(base + latent + c, spread, mask=inside_c)
        tl.store(counts + tile, count)


@triton.jit
def _merge_kernel(
    parts, counts, statistics, tiles, latent, channels, groups, eps, BLOCK_T: tl.constexpr, BLOCK_C: tl.constexpr
):
    """Mean and reciprocal deviation of a group of channels from those of tiles and channels."""
    sample, group = tl.program_id(0).to(tl.int64), tl.program_id(1)
    c = tl.arange(0, BLOCK_C)
    base = parts + sample * tiles * 2 * latent + group * channels
    total, mean, spread = 0.0, 0.0, 0.0
    for start in range(0, tiles, BLOCK_T):
        t = start + tl.arange(0, BLOCK_T)
        mask = (t < tiles)[:, None] & (c < channels)[None, :]
        count = tl.load(counts + t, mask=t < tiles, other=0.0)
        level = tl.load(base + t[:, None] * 2 * latent + c[None, :], mask=mask, other=0.0)
        within = tl.load(base + t[:, None] * 2 * latent + latent + c[None, :], mask=mask, other=0.0)
        weight = tl.where(mask, count[:, None], 0.0)
        new = tl.sum(tl.sum(weight, axis=1), axis=0)
        middle = tl.sum(tl.sum(weight * level, axis=1), axis=0) / new
        away = level - middle
        share = new / (total + new)
        spread += tl.sum(tl.sum(within + weight * away * away, axis=1), axis=0)
        spread += (middle - mean) * (middle - mean) * total * share
        mean += (middle - mean) * share
        total += new
    tl.store(statistics + (sample * groups + group) * 2, mean)
    tl.store(statistics + (sample * groups + group) * 2 + 1, 1.0 / tl.sqrt(spread / total + eps))


@triton.jit
def _backward_kernel(
    grad_decoded, scaled, terms, following, state, embedding, gain, bias, first, first_bias, second, weights,
    carry, grad_result, activated, grad_hidden, row_statistics, sum_parts,
    points, latent, hidden, decoded, stride_decoded, stride_scaled, stride_terms, stride_following, stride_state,
    eps, points_per_program, tiles,
    LAST: tl.constexpr, HAS_WEIGHTS: tl.constexpr, PRECISION: tl.constexpr, BLOCK_P: tl.constexpr,
    BLOCK_L: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_D: tl.constexpr,
):
    part, sample = tl.program_id(0), tl.program_id(1).to(tl.int64)
    c, d, o = tl.arange(0, BLOCK_L), tl.arange(0, BLOCK_H), tl.arange(0, BLOCK_D)
    inside_c, inside_d = c < latent, d < hidden
    # Sums over points are stored tile by tile and vectors read where they are used: held, they would spill.
    w1 = tl.load(first + d[:, None] * latent + c[None, :], mask=inside_d[:, None] & inside_c[None, :], other=0.0)
    begin = part * points_per_program
    for p0 in tl.range(begin, min(points, begin + points_per_program), BLOCK_P, num_stages=1):
        p = p0 + tl.arange(0, BLOCK_P)
        inside = (p < points)[:, None]
        mask = inside & inside_c[None, :]
        offset = p[:, None] * latent + c[None, :]
        # What the decoder and the next step want of this state.
        x = tl.load(
            grad_decoded + sample * stride_decoded + p[:, None] * decoded + o[None, :],
            mask=inside & (o < decoded)[None, :], other=0.0,
        )
        w = tl.load(
            scaled + sample * stride_scaled + o[:, None] * latent + c[None, :],
            mask=(o < decoded)[:, None] & inside_c[None, :], other=0.0,
        )
        y = tl.load(following + sample * stride_following + offset, mask=mask, other=0.0).to(tl.float32)
        base = terms + sample * stride_terms + c
        pull = tl.load(base, mask=inside_c, other=0.0)[None, :]
        pull += tl.load(base + latent, mask=inside_c, other=0.0)[None, :] * y
        if HAS_WEIGHTS:
            pull *= tl.load(weights + p, mask=p < points, other=0.0)[:, None]
        grad = tl.dot(x, w, input_precision=PRECISION) + tl.where(mask, pull, 0.0)
        whole = sample * points * latent + offset
        if not LAST:
            grad += tl.load(carry + whole, mask=mask, other=0.0).to(tl.float32)
        sums = sum_parts + (sample * tiles + p0 // BLOCK_P) * (2 * latent + hidden)
        tl.store(sums + c, tl.sum(grad, axis=0), mask=inside_c)
        rounded = grad.to(grad_result.dtype.element_ty)
        tl.store(grad_result + whole, rounded, mask=mask)
        w = tl.load(
            second + c[:, None] * hidden + d[None, :], mask=inside_c[:, None] & inside_d[None, :], other=0.0
        )
        grad_h = tl.dot(rounded, w, input_precision=PRECISION)
        # The hidden layer once more.
        z = tl.load(state + sample * stride_state + offset, mask=mask, other=0.0).to(tl.float32)
        z += tl.load(embedding + c, mask=inside_c, other=0.0)[None, :]
        mean = tl.sum(z, axis=1) / latent
        centred = tl.where(inside_c[None, :], z - mean[:, None], 0.0)
        scale = tl.rsqrt(tl.sum(centred * centred, axis=1) / latent + eps)
        row = (sample * points + p) * 2
        tl.store(row_statistics + row, mean, mask=p < points)
        tl.store(row_statistics + row + 1, scale, mask=p < points)
        normed = centred * scale[:, None] * tl.load(gain + c, mask=inside_c, other=0.0)[None, :]
        normed = (normed + tl.load(bias + c, mask=inside_c, other=0.0)[None, :]).to(w1.dtype)
        h = tl.dot(normed, tl.trans(w1), input_precision=PRECISION)
        h += tl.load(first_bias + d, mask=inside_d, other=0.0)[None, :]
        narrow = sample * points * hidden + p[:, None] * hidden + d[None, :]
        in_hidden = inside & inside_d[None, :]
        tl.store(activated + narrow, gelu(h).to(activated.dtype.element_ty), mask=in_hidden)
        grad_h = tl.where(inside, grad_h * gelu_slope(h), 0.0)
        tl.store(sums + 2 * latent + d, tl.sum(grad_h, axis=0), mask=inside_d)
        rounded_h = grad_h.to(grad_hidden.dtype.element_ty)
        tl.store(grad_hidden + narrow, rounded_h, mask=in_hidden)
        grad_normed = tl.dot(rounded_h, w1, input_precision=PRECISION)
        # State and gradient are read again rather than held: they would not fit beside the product.
        tl.debug_barrier()
        z = tl.load(state + sample * stride_state + offset, mask=mask, other=0.0).to(tl.float32)
        z += tl.load(embedding + c, mask=inside_c, other=0.0)[None, :]
        unit = tl.where(inside_c[None, :], (z - mean[:, None]) * scale[:, None], 0.0)
        grad_normed = grad_normed * tl.load(gain + c, mask=inside_c, other=0.0)[None, :]
        level = tl.sum(grad_normed, axis=1)[:, None] / latent
        along = tl.sum(grad_normed * unit, axis=1)[:, None] / latent
        grad_normed = scale[:, None] * (grad_normed - level - unit * along)
        grad_normed += tl.load(grad_result + whole, mask=mask, other=0.0).to(tl.float32)
        grad_normed = tl.where(mask, grad_normed, 0.0)
        tl.store(carry + whole, grad_normed.to(carry.dtype.element_ty), mask=mask)
        tl.store(sums + latent + c, tl.sum(grad_normed, axis=0), mask=inside_c)


def march(
    start: Tensor, embeddings: Tensor, norm: tuple[Tensor, Tensor, float], network: tuple[Tensor, ...],
    weights: Tensor | None, num_groups: int, group_eps: float,
) -> tuple[Tensor, Tensor]:
    """States ``(batch, step, point, latent)`` from ``start``, and mean and reciprocal deviation of their groups.

    ``network`` holds W₁, b₁, W₂, b₂ with the matrices in the type of ``start``.
    """
    batch, points, latent = start.shape
    num_steps = len(embeddings)
    first, first_bias, second, second_bias = network
    gain, bias, eps = norm
    tiles = triton.cdiv(points, BLOCK_POINTS)
    per_program = triton.cdiv(tiles, pieces(tiles, batch, waves=2)) * BLOCK_POINTS
    states = start.new_empty(batch, num_steps, points, latent)
    parts = start.new_empty(batch, num_steps, tiles, 2, latent, dtype=torch.float32)
    counts = start.new_empty(tiles, dtype=torch.float32)
    for step in range(num_steps):
        state = states[:, step - 1] if step else start
        _forward_kernel[(triton.cdiv(points, per_program), batch)](
            state, embeddings[step], gain, bias, first, first_bias, second, second_bias,
            weights if weights is not None else gain, states[:, step], parts[:, step], counts,
            points, latent, first.shape[0], state.stride(0), states.stride(0), parts.stride(0), eps,
            per_program, HAS_WEIGHTS=weights is not None, PRECISION=precision(start.dtype), BLOCK_P=BLOCK_POINTS,
            BLOCK_L=padded(latent), BLOCK_H=padded(first.shape[0]), STAGES=2, num_warps=8,
        )
    statistics = start.new_empty(batch, num_steps, num_groups, 2, dtype=torch.float32)
    channels = latent // num_groups
    _merge_kernel[(batch * num_steps, num_groups)](
        parts, counts, statistics, tiles, latent, channels, num_groups, group_eps,
        BLOCK_T=min(padded(tiles), 128), BLOCK_C=padded(channels),
    )
    return states, statistics


def march_backward(
    step: int, states: Tensor, start: Tensor, embedding: Tensor, norm: tuple[Tensor, Tensor, float],
    network: tuple[Tensor, ...], grad_decoded: Tensor, scaled: Tensor, terms: Tensor, weights: Tensor | None,
    buffers: tuple[Tensor, ...],
) -> Tensor:
    """Gradient of one step; returns the sums of ``∂y``, ``∂z'`` and ``∂h`` over all points, one after the other.

    ``buffers`` are filled: gradient of the state (also what the next step, if any, wants of this one's result),
    of the result, the activated hidden layer, its gradient before the activation, and the rows' statistics.
    """
    batch, num_steps, points, latent = states.shape
    first, first_bias, second, _ = network
    gain, bias, eps = norm
    hidden, decoded = first.shape[0], grad_decoded.shape[-1]
    state = states[:, step - 1] if step else start
    steps = triton.cdiv(points, BLOCK_POINTS)
    per_program = triton.cdiv(steps, pieces(steps, batch, waves=4)) * BLOCK_POINTS
    number = triton.cdiv(points, per_program)
    sums = start.new_empty(batch, steps, 2 * latent + hidden, dtype=torch.float32)
    _backward_kernel[(number, batch)](
        grad_decoded[:, step], scaled[:, step], terms[:, step], states[:, step], state, embedding, gain, bias, first,
        first_bias, second, weights if weights is not None else gain, *buffers, sums,
        points, latent, hidden, decoded, grad_decoded.stride(0), scaled.stride(0), terms.stride(0), states.stride(0),
        state.stride(0), eps, per_program, steps,
        LAST=step == num_steps - 1, HAS_WEIGHTS=weights is not None, PRECISION=precision(start.dtype),
        BLOCK_P=BLOCK_POINTS, BLOCK_L=padded(latent), BLOCK_H=padded(hidden), BLOCK_D=padded(decoded), num_warps=8,
        num_stages=1,
    )
    return sums.sum((0, 1))
