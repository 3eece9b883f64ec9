# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""A step of latent marching in one kernel.

    z' = z + e,   y = z' + W₂ gelu( W₁ LayerNorm(z') + b₁ ) + b₂

Every state is written once, for the next step and for the decoder. The sums of each group of channels are taken on the
way, from which the next LayerNorm and the group norm of the decoder follow without reading the states again.
Reference implementation: `factformer.nn.marching.LatentMarching`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from factformer.kernels._triton.arithmetic import gelu, padded, zeros
from factformer.kernels._triton.launching import launch
from factformer.kernels._triton.limits import chosen
from factformer.kernels._triton.tiles import Tile, can_move, load_tile, moved, row_of, store_tile
from factformer.kernels.march_decode.network import Case, Forcing, Network, Sizes

TILE = Tile(128, 4, 3)
SMALLER_TILE = Tile(64, 4, 2)
BLOCK_LATENT = 64
MERGED_TILES = 128
"""Tiles whose sums are merged at a time."""


def latent_block(latent: int) -> int:
    """Latent channels that a program takes at a time: half of them at most.

    A kernel whose loop over 64 channels had a single turn came out wrong on an H200 (docs/performance.md).
    """
    return max(min(padded(latent) // 2, BLOCK_LATENT), 16)


@triton.jit
def _row_moments(states, embedding, at, start, points, eps, S: tl.constexpr):
    """Mean and reciprocal deviation of the states of a tile of points with the embedding added."""
    k = tl.arange(0, S.BLOCK_K)
    total = zeros(S.BLOCK_P)
    length = zeros(S.BLOCK_P)
    for begin in tl.range(0, S.LATENT, S.BLOCK_K, num_stages=S.STAGES):
        z = load_tile(states, at, start, begin, points, S.LATENT, S.DESCRIBED, S.BLOCK_P, S.BLOCK_K).to(tl.float32)
        z += tl.load(embedding + begin + k, mask=begin + k < S.LATENT, other=0.0)[None, :]
        total += tl.sum(z, axis=1)
        length += tl.sum(z * z, axis=1)
    mean = total / S.LATENT
    return mean, tl.rsqrt(tl.maximum(length / S.LATENT - mean * mean, 0.0) + eps)


@triton.jit(do_not_specialize=["points", "batch", "step", "num_steps"])
def _march_kernel(
    states,
    result,
    first,
    second,
    rows,
    parts,
    counts,
    embeddings,
    embedding_sums,
    first_sum,
    first_shift,
    first_bias,
    constant,
    weights,
    points,
    batch,
    num_steps,
    eps,
    step,
    CHANNELS: tl.constexpr,
    BLOCK_G: tl.constexpr,
    S: tl.constexpr,
    CASE: tl.constexpr,
):
    """One step of one tile of points. ``FORCED`` states are not those that the step before has seen the sums of."""
    tile, sample = tl.program_id(0), tl.program_id(1)
    start, at = tile * S.BLOCK_P, step * batch + sample
    k, d, group = tl.arange(0, S.BLOCK_K), tl.arange(0, S.BLOCK_H), tl.arange(0, BLOCK_G)
    inside_d = d < S.HIDDEN
    p = start + tl.arange(0, S.BLOCK_P)
    inside = p < points
    row = rows + (at.to(tl.int64) * points + p) * 2
    if CASE.FORCED:
        mean, scale = _row_moments(states, embeddings + step * S.LATENT, at, start, points, eps, S)
        tl.store(row, mean, mask=inside)
        tl.store(row + 1, scale, mask=inside)
    elif step == 0:
        mean, scale = _row_moments(states, embeddings, at, start, points, eps, S)
        tl.store(row, mean, mask=inside)
        tl.store(row + 1, scale, mask=inside)
    else:
        mean = tl.load(row, mask=inside, other=0.0)
        scale = tl.load(row + 1, mask=inside, other=0.0)
    h = zeros(S.BLOCK_P, S.BLOCK_H)
    for begin in tl.range(0, S.LATENT, S.BLOCK_K, num_stages=S.STAGES):
        z = load_tile(states, at, start, begin, points, S.LATENT, S.DESCRIBED, S.BLOCK_P, S.BLOCK_K)
        w = load_tile(first, 0, 0, begin, S.HIDDEN, S.LATENT, S.DESCRIBED, S.BLOCK_H, S.BLOCK_K)
        h = tl.dot(z, tl.trans(w), h, input_precision=S.PRECISION)
    h += tl.load(first_shift + step * S.HIDDEN + d, mask=inside_d, other=0.0)[None, :]
    h -= mean[:, None] * tl.load(first_sum + d, mask=inside_d, other=0.0)[None, :]
    h = h * scale[:, None] + tl.load(first_bias + d, mask=inside_d, other=0.0)[None, :]
    active = gelu(h).to(result.dtype if S.DESCRIBED else result.dtype.element_ty)
    sums = zeros(S.BLOCK_P, BLOCK_G)
    squares = zeros(S.BLOCK_P, BLOCK_G)
    cross = zeros(S.BLOCK_P)
    for begin in tl.range(0, S.LATENT, S.BLOCK_K, num_stages=S.STAGES):
        c = begin + k
        inside_c = c < S.LATENT
        z = load_tile(states, at, start, begin, points, S.LATENT, S.DESCRIBED, S.BLOCK_P, S.BLOCK_K)
        w = load_tile(second, 0, begin, 0, S.LATENT, S.HIDDEN, S.DESCRIBED, S.BLOCK_K, S.BLOCK_H)
        y = z.to(tl.float32) + tl.load(constant + step * S.LATENT + c, mask=inside_c, other=0.0)[None, :]
        y = tl.dot(active, tl.trans(w), y, input_precision=S.PRECISION)
        rounded = y.to(active.dtype)
        store_tile(result, rounded, at + batch, start, begin, points, S.LATENT, S.DESCRIBED, S.BLOCK_P, S.BLOCK_K)
        # Sums over a group of channels on tensor cores: what rounding does to so many squares averages out.
        members = tl.where((c // CHANNELS)[:, None] == group[None, :], 1.0, 0.0).to(active.dtype)
        sums = tl.dot(rounded, members, sums, input_precision=S.PRECISION)
        squares = tl.dot((y * y).to(active.dtype), members, squares, input_precision=S.PRECISION)
        e = tl.load(embeddings + (step + 1) * S.LATENT + c, mask=inside_c, other=0.0)
        cross += tl.sum(y * e[None, :], axis=1)
    # Of the state with the next embedding added, for the next LayerNorm.
    mean = (tl.sum(sums, axis=1) + tl.load(embedding_sums + (step + 1) * 2)) / S.LATENT
    length = tl.sum(squares, axis=1) + 2.0 * cross + tl.load(embedding_sums + (step + 1) * 2 + 1)
    scale = tl.rsqrt(tl.maximum(length / S.LATENT - mean * mean, 0.0) + eps)
    row += batch.to(tl.int64) * points * 2
    following = inside & (step + 1 < num_steps)
    tl.store(row, mean, mask=following)
    tl.store(row + 1, scale, mask=following)
    measure = tl.where(inside, 1.0, 0.0)
    if CASE.OF_SAMPLES:
        weights += row_of(sample, points)
        counts += sample * tl.num_programs(0)
    if CASE.HAS_WEIGHTS:
        measure = tl.load(weights + p, mask=inside, other=0.0)
    tl.store(counts + tile, tl.sum(measure, axis=0))
    part = parts + (at.to(tl.int64) * tl.num_programs(0) + tile) * 2 * BLOCK_G + group
    tl.store(part, tl.sum(sums * measure[:, None], axis=0))
    tl.store(part + BLOCK_G, tl.sum(squares * measure[:, None], axis=0))


@triton.jit(do_not_specialize=["tiles", "groups", "channels", "batch"])
def _merge_groups_kernel(
    parts,
    counts,
    statistics,
    tiles,
    groups,
    channels,
    batch,
    eps,
    OF_SAMPLES: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_G: tl.constexpr,
):
    """Mean and reciprocal deviation of each group of channels from the sums of tiles."""
    sample, g = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK_G)
    parts += sample * tiles * 2 * BLOCK_G
    if OF_SAMPLES:
        counts += sample % batch * tiles
    total = tl.zeros((BLOCK_G,), dtype=tl.float32)
    mean = tl.zeros((BLOCK_G,), dtype=tl.float32)
    spread = tl.zeros((BLOCK_G,), dtype=tl.float32)
    for start in range(0, tiles, BLOCK_T):
        t = start + tl.arange(0, BLOCK_T)
        inside = (t < tiles)[:, None]
        weight = channels * tl.load(counts + t, mask=t < tiles, other=0.0)[:, None]
        sums = tl.load(parts + t[:, None] * 2 * BLOCK_G + g[None, :], mask=inside, other=0.0)
        squares = tl.load(parts + t[:, None] * 2 * BLOCK_G + BLOCK_G + g[None, :], mask=inside, other=0.0)
        level = tl.where(weight > 0.0, sums / tl.where(weight > 0.0, weight, 1.0), 0.0)
        new = tl.sum(weight, axis=0)
        if OF_SAMPLES:  # tiles may lie outside the domain, all of them
            new = tl.maximum(new, 1e-30)
        middle = tl.sum(sums, axis=0) / new
        # Of the few rows of a tile sums of squares are exact enough; tiles are merged by mean and spread.
        away = level - middle[None, :]
        within = squares - sums * level
        share = new / (total + new)
        spread += tl.sum(tl.where(within < 0.0, 0.0, within) + weight * away * away, axis=0)
        spread += (middle - mean) * (middle - mean) * total * share
        mean += (middle - mean) * share
        total += new
    where = statistics + (sample * groups + g) * 2
    tl.store(where, mean, mask=g < groups)
    tl.store(where + 1, 1.0 / tl.sqrt(spread / total + eps), mask=g < groups)


def march(
    states: Tensor,
    network: Network,
    weights: Tensor | None,
    num_groups: int,
    group_eps: float,
    forcing: Forcing | None = None,
) -> tuple[Tensor, Tensor]:
    """Fills ``states`` ``(1 + step, batch, point, latent)`` from its first slot on, and the states under ``forcing``.

    Returns mean and reciprocal deviation of the LayerNorms ``(step, batch, point, 2)`` and of the groups of channels
    ``(step * batch, group, 2)``.
    """
    slots, batch, points, latent = states.shape
    tile = chosen(TILE, SMALLER_TILE)
    num_steps, hidden = slots - 1, network.first.shape[0]
    tiles = triton.cdiv(points, tile.points)
    block_groups = padded(num_groups)
    rows = states.new_empty(num_steps, batch, points, 2, dtype=torch.float32)
    parts = states.new_empty(num_steps * batch, tiles, 2, block_groups, dtype=torch.float32)
    case = Case.of(states, weights, forcing)
    counts = states.new_empty(batch if case.OF_SAMPLES else 1, tiles, dtype=torch.float32)
    described = can_move(states, network.first, network.second)
    sizes = Sizes.of(states, hidden, latent_block(latent), tile, described)
    block, block_hidden = sizes.BLOCK_K, sizes.BLOCK_H
    entering = states if forcing is None else forcing.states
    arguments = (
        *(moved(x, len(x) * batch, tile.points, block, described) for x in (entering, states)),
        moved(network.first, 1, block_hidden, block, described),
        moved(network.second, 1, block, block_hidden, described),
        rows,
        parts,
        counts,
        network.embeddings,
        network.embedding_sums,
        network.first_sum,
        network.first_shift,
        network.first_bias,
        network.constant,
        weights if weights is not None else rows,
        points,
        batch,
        num_steps,
        network.eps,
    )
    for step in range(num_steps):
        if forcing is not None:
            forcing.add_to(states, step)
        launch(
            _march_kernel,
            (tiles, batch),
            *arguments,
            step,
            CHANNELS=latent // num_groups,
            BLOCK_G=block_groups,
            S=sizes,
            CASE=case,
            num_warps=tile.warps,
        )
    statistics = states.new_empty(num_steps * batch, num_groups, 2, dtype=torch.float32)
    launch(
        _merge_groups_kernel,
        (num_steps * batch,),
        parts,
        counts,
        statistics,
        tiles,
        num_groups,
        latent // num_groups,
        batch if case.OF_SAMPLES else None,
        group_eps,
        OF_SAMPLES=case.OF_SAMPLES,
        BLOCK_T=min(padded(tiles), MERGED_TILES),
        BLOCK_G=block_groups,
    )
    return rows, statistics
