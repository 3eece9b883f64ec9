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

from factformer.kernels._triton.arithmetic import gelu, padded, precision
from factformer.kernels._triton.launching import launch
from factformer.kernels._triton.limits import chosen
from factformer.kernels._triton.tiles import Tile, can_move, load_tile, moved, row_of, store_tile
from factformer.kernels.march_decode.network import Forcing, Network

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
def _row_moments(
    states,
    embedding,
    at,
    start,
    points,
    eps,
    LATENT: tl.constexpr,
    DESCRIBED: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_K: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Mean and reciprocal deviation of the states of a tile of points with the embedding added."""
    k = tl.arange(0, BLOCK_K)
    total = tl.zeros((BLOCK_P,), dtype=tl.float32)
    length = tl.zeros((BLOCK_P,), dtype=tl.float32)
    for begin in tl.range(0, LATENT, BLOCK_K, num_stages=STAGES):
        z = load_tile(states, at, start, begin, points, LATENT, DESCRIBED, BLOCK_P, BLOCK_K).to(tl.float32)
        z += tl.load(embedding + begin + k, mask=begin + k < LATENT, other=0.0)[None, :]
        total += tl.sum(z, axis=1)
        length += tl.sum(z * z, axis=1)
    mean = total / LATENT
    return mean, tl.rsqrt(tl.maximum(length / LATENT - mean * mean, 0.0) + eps)


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
    LATENT: tl.constexpr,
    HIDDEN: tl.constexpr,
    CHANNELS: tl.constexpr,
    HAS_WEIGHTS: tl.constexpr,
    OF_SAMPLES: tl.constexpr,
    FORCED: tl.constexpr,
    DESCRIBED: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_G: tl.constexpr,
    STAGES: tl.constexpr,
):
    """One step of one tile of points. ``FORCED`` states are not those that the step before has seen the sums of."""
    tile, sample = tl.program_id(0), tl.program_id(1)
    start, at = tile * BLOCK_P, step * batch + sample
    k, d, group = tl.arange(0, BLOCK_K), tl.arange(0, BLOCK_H), tl.arange(0, BLOCK_G)
    inside_d = d < HIDDEN
    p = start + tl.arange(0, BLOCK_P)
    inside = p < points
    row = rows + (at.to(tl.int64) * points + p) * 2
    if FORCED:
        mean, scale = _row_moments(
            states, embeddings + step * LATENT, at, start, points, eps, LATENT, DESCRIBED, BLOCK_P, BLOCK_K, STAGES
        )
        tl.store(row, mean, mask=inside)
        tl.store(row + 1, scale, mask=inside)
    elif step == 0:
        mean, scale = _row_moments(
            states, embeddings, at, start, points, eps, LATENT, DESCRIBED, BLOCK_P, BLOCK_K, STAGES
        )
        tl.store(row, mean, mask=inside)
        tl.store(row + 1, scale, mask=inside)
    else:
        mean = tl.load(row, mask=inside, other=0.0)
        scale = tl.load(row + 1, mask=inside, other=0.0)
    h = tl.zeros((BLOCK_P, BLOCK_H), dtype=tl.float32)
    for begin in tl.range(0, LATENT, BLOCK_K, num_stages=STAGES):
        z = load_tile(states, at, start, begin, points, LATENT, DESCRIBED, BLOCK_P, BLOCK_K)
        w = load_tile(first, 0, 0, begin, HIDDEN, LATENT, DESCRIBED, BLOCK_H, BLOCK_K)
        h = tl.dot(z, tl.trans(w), h, input_precision=PRECISION)
    h += tl.load(first_shift + step * HIDDEN + d, mask=inside_d, other=0.0)[None, :]
    h -= mean[:, None] * tl.load(first_sum + d, mask=inside_d, other=0.0)[None, :]
    h = h * scale[:, None] + tl.load(first_bias + d, mask=inside_d, other=0.0)[None, :]
    active = gelu(h).to(result.dtype if DESCRIBED else result.dtype.element_ty)
    sums = tl.zeros((BLOCK_P, BLOCK_G), dtype=tl.float32)
    squares = tl.zeros((BLOCK_P, BLOCK_G), dtype=tl.float32)
    cross = tl.zeros((BLOCK_P,), dtype=tl.float32)
    for begin in tl.range(0, LATENT, BLOCK_K, num_stages=STAGES):
        c = begin + k
        inside_c = c < LATENT
        z = load_tile(states, at, start, begin, points, LATENT, DESCRIBED, BLOCK_P, BLOCK_K)
        w = load_tile(second, 0, begin, 0, LATENT, HIDDEN, DESCRIBED, BLOCK_K, BLOCK_H)
        y = z.to(tl.float32) + tl.load(constant + step * LATENT + c, mask=inside_c, other=0.0)[None, :]
        y = tl.dot(active, tl.trans(w), y, input_precision=PRECISION)
        rounded = y.to(active.dtype)
        store_tile(result, rounded, at + batch, start, begin, points, LATENT, DESCRIBED, BLOCK_P, BLOCK_K)
        # Sums over a group of channels on tensor cores: what rounding does to so many squares averages out.
        members = tl.where((c // CHANNELS)[:, None] == group[None, :], 1.0, 0.0).to(active.dtype)
        sums = tl.dot(rounded, members, sums, input_precision=PRECISION)
        squares = tl.dot((y * y).to(active.dtype), members, squares, input_precision=PRECISION)
        e = tl.load(embeddings + (step + 1) * LATENT + c, mask=inside_c, other=0.0)
        cross += tl.sum(y * e[None, :], axis=1)
    # Of the state with the next embedding added, for the next LayerNorm.
    mean = (tl.sum(sums, axis=1) + tl.load(embedding_sums + (step + 1) * 2)) / LATENT
    length = tl.sum(squares, axis=1) + 2.0 * cross + tl.load(embedding_sums + (step + 1) * 2 + 1)
    scale = tl.rsqrt(tl.maximum(length / LATENT - mean * mean, 0.0) + eps)
    row += batch.to(tl.int64) * points * 2
    following = inside & (step + 1 < num_steps)
    tl.store(row, mean, mask=following)
    tl.store(row + 1, scale, mask=following)
    measure = tl.where(inside, 1.0, 0.0)
    if OF_SAMPLES:
        weights += row_of(sample, points)
        counts += sample * tl.num_programs(0)
    if HAS_WEIGHTS:
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
    of_samples = weights is not None and weights.numel() > points
    counts = states.new_empty(batch if of_samples else 1, tiles, dtype=torch.float32)
    block, block_hidden = latent_block(latent), padded(hidden)
    entering = states if forcing is None else forcing.states
    described = can_move(states, network.first, network.second)
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
            LATENT=latent,
            HIDDEN=hidden,
            CHANNELS=latent // num_groups,
            HAS_WEIGHTS=weights is not None,
            OF_SAMPLES=of_samples,
            FORCED=forcing is not None,
            DESCRIBED=described,
            PRECISION=precision(states.dtype),
            BLOCK_P=tile.points,
            BLOCK_K=block,
            BLOCK_H=block_hidden,
            BLOCK_G=block_groups,
            STAGES=tile.stages,
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
        batch if of_samples else None,
        group_eps,
        OF_SAMPLES=of_samples,
        BLOCK_T=min(padded(tiles), MERGED_TILES),
        BLOCK_G=block_groups,
    )
    return rows, statistics
