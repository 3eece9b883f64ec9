# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""One step of latent marching in one pass, and its gradient.

    z' = z + e,   y = z' + W₂ gelu( W₁ LayerNorm(z') + b₁ ) + b₂

The forward pass also takes mean and spread of every channel of a tile, from which the group norm of the decoder
follows without reading the state again.
Plain twin: `factformer.nn.marching.LatentMarching`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from factformer.nn.fused._common import gelu, padded, precision

BLOCK_POINTS = 64
BLOCK_LATENT = 64


@triton.jit
def _march_kernel(
    state,
    embedding,
    first,
    first_sum,
    first_shift,
    first_bias,
    second,
    constant,
    weights,
    result,
    parts,
    counts,
    points,
    latent,
    hidden,
    stride_state,
    stride_result,
    stride_parts,
    eps,
    HAS_WEIGHTS: tl.constexpr,
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
    result += sample * stride_result
    h = tl.zeros((BLOCK_P, BLOCK_H), dtype=tl.float32)
    total = tl.zeros((BLOCK_P,), dtype=tl.float32)
    length = tl.zeros((BLOCK_P,), dtype=tl.float32)
    for start in tl.range(0, latent, BLOCK_K, num_stages=STAGES):
        c = start + k
        inside_c = c < latent
        z = tl.load(state + p[:, None] * latent + c[None, :], mask=inside & inside_c[None, :], other=0.0)
        w = tl.load(first + d[:, None] * latent + c[None, :], mask=inside_d[:, None] & inside_c[None, :], other=0.0)
        moved = z.to(tl.float32) + tl.load(embedding + c, mask=inside_c, other=0.0)[None, :]
        total += tl.sum(moved, axis=1)
        length += tl.sum(moved * moved, axis=1)
        h = tl.dot(z, tl.trans(w), h, input_precision=PRECISION)
    mean = total / latent
    scale = tl.rsqrt(tl.maximum(length / latent - mean * mean, 0.0) + eps)
    h += tl.load(first_shift + d, mask=inside_d, other=0.0)[None, :]
    h -= mean[:, None] * tl.load(first_sum + d, mask=inside_d, other=0.0)[None, :]
    h = h * scale[:, None] + tl.load(first_bias + d, mask=inside_d, other=0.0)[None, :]
    g = gelu(h).to(result.dtype.element_ty)
    measure = tl.where(p < points, 1.0, 0.0)
    if HAS_WEIGHTS:
        measure = tl.load(weights + p, mask=p < points, other=0.0)
    count = tl.sum(measure, axis=0)
    tl.store(counts + tile, count)
    base = parts + sample * stride_parts + tile * 2 * latent
    for start in tl.range(0, latent, BLOCK_K, num_stages=STAGES):
        c = start + k
        inside_c = c < latent
        mask = inside & inside_c[None, :]
        offset = p[:, None] * latent + c[None, :]
        w = tl.load(second + c[:, None] * hidden + d[None, :], mask=inside_c[:, None] & inside_d[None, :], other=0.0)
        y = tl.load(state + offset, mask=mask, other=0.0).to(tl.float32)
        y += tl.load(constant + c, mask=inside_c, other=0.0)[None, :]
        y += tl.dot(g, tl.trans(w), input_precision=PRECISION)
        tl.store(result + offset, y.to(result.dtype.element_ty), mask=mask)
        # Of the few rows of a tile sums of squares are exact enough; tiles are merged by mean and spread.
        sums = tl.sum(y * measure[:, None], axis=0)
        squares = tl.sum(y * y * measure[:, None], axis=0)
        tl.store(base + c, sums / count, mask=inside_c)
        tl.store(base + latent + c, tl.maximum(squares - sums * sums / count, 0.0), mask=inside_c)


@triton.jit
def _merge_groups_kernel(
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


class Network(NamedTuple):
    """One marching step with the LayerNorm's affine map inside its first matrix.

    ``W₁ (γ x̂ + β) + b₁`` with ``x̂ = (z + e - μ) ρ`` is ``ρ (Wz + We - μ W1) + b``, so the product runs on the state as
    it lies in memory.
    """

    embeddings: Tensor
    first: Tensor
    first_sum: Tensor
    first_shift: Tensor
    first_bias: Tensor
    second: Tensor
    constant: Tensor
    eps: float

    @classmethod
    def fold(
        cls, embeddings: Tensor, norm: tuple[Tensor, Tensor, float], layers: tuple[Tensor, ...], dtype: torch.dtype
    ) -> Network:
        """From the embeddings of the steps, gain, bias and eps of the LayerNorm, and W₁, b₁, W₂, b₂."""
        gain, bias, eps = norm
        first, first_bias, second, second_bias = layers
        folded = (first * gain).to(dtype)
        exact = folded.float()
        return cls(
            embeddings,
            folded,
            exact.sum(1),
            (embeddings[:, None] * exact).sum(-1),
            first_bias + (first * bias).sum(1),
            second.to(dtype),
            embeddings + second_bias,
            eps,
        )


def march(
    start: Tensor, network: Network, weights: Tensor | None, num_groups: int, group_eps: float
) -> tuple[Tensor, Tensor]:
    """States ``(batch, step, point, latent)`` from ``start``, and mean and reciprocal deviation of their groups."""
    batch, points, latent = start.shape
    num_steps, hidden = len(network.embeddings), network.first.shape[0]
    tiles = triton.cdiv(points, BLOCK_POINTS)
    states = start.new_empty(batch, num_steps, points, latent)
    parts = start.new_empty(batch, num_steps, tiles, 2, latent, dtype=torch.float32)
    counts = start.new_empty(tiles, dtype=torch.float32)
    for step in range(num_steps):
        state = states[:, step - 1] if step else start
        _march_kernel[(tiles, batch)](
            state,
            network.embeddings[step],
            network.first,
            network.first_sum,
            network.first_shift[step],
            network.first_bias,
            network.second,
            network.constant[step],
            weights if weights is not None else network.first_bias,
            states[:, step],
            parts[:, step],
            counts,
            points,
            latent,
            hidden,
            state.stride(0),
            states.stride(0),
            parts.stride(0),
            network.eps,
            HAS_WEIGHTS=weights is not None,
            PRECISION=precision(start.dtype),
            BLOCK_P=BLOCK_POINTS,
            BLOCK_K=min(padded(latent), BLOCK_LATENT),
            BLOCK_H=padded(hidden),
            STAGES=3,
            num_warps=4,
        )
    statistics = start.new_empty(batch, num_steps, num_groups, 2, dtype=torch.float32)
    channels = latent // num_groups
    _merge_groups_kernel[(batch * num_steps, num_groups)](
        parts,
        counts,
        statistics,
        tiles,
        latent,
        channels,
        num_groups,
        group_eps,
        BLOCK_T=min(padded(tiles), 128),
        BLOCK_C=padded(channels),
    )
    return states, statistics
