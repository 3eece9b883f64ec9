# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# mypy: disable-error-code=assignment
# ruff: noqa: RUF005 - inside kernels tuples are joined by a sum, the compiler knows no unpacking
"""All steps of latent marching in one kernel.

    z' = z + e,   y = z' + W₂ gelu( W₁ LayerNorm(z') + b₁ ) + b₂

A program keeps both matrices in shared memory and the state of its points in registers from step to step; every state
is written once, for the decoder. The sums of each group of channels are taken on the way, from which the group norm of
the decoder follows without reading the states again. Plain twin: `factformer.nn.marching.LatentMarching`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from factformer.nn.fused._common import MULTIPROCESSORS, gelu, padded, precision
from factformer.nn.fused.network import Network
from factformer.nn.fused.resident import Tile, blocks, pack, unpack

TILE = Tile(128, 8)
BLOCK_LATENT = 64


@triton.jit(do_not_specialize=["points", "tiles", "jobs", "num_steps"])
def _march_kernel(
    states,
    rows,
    parts,
    embeddings,
    embedding_sums,
    first,
    first_sum,
    first_shift,
    first_bias,
    second,
    constant,
    weights,
    counts,
    points,
    tiles,
    jobs,
    num_steps,
    eps,
    LATENT: tl.constexpr,
    HIDDEN: tl.constexpr,
    CHANNELS: tl.constexpr,
    HAS_WEIGHTS: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_G: tl.constexpr,
    CHUNKS: tl.constexpr,
):
    """All steps of one tile of points after another, with the weights and the tile's state on the chip."""
    dtype = states.dtype.element_ty
    k, d, group = tl.arange(0, BLOCK_K), tl.arange(0, BLOCK_H), tl.arange(0, BLOCK_G)
    inside_d = d < HIDDEN
    firsts = blocks(first, dtype, HIDDEN, LATENT, BLOCK_H, BLOCK_K)
    seconds = blocks(second, dtype, LATENT, HIDDEN, BLOCK_K, BLOCK_H)
    members = ()
    for j in tl.static_range(CHUNKS):
        belongs = ((j * BLOCK_K + k) // CHANNELS)[:, None] == group[None, :]
        members = members + (tl.where(belongs, 1.0, 0.0).to(dtype),)
    samples = (jobs // tiles).to(tl.int64)
    for index in range(tl.program_id(0), jobs, tl.num_programs(0)):
        sample, tile = (index // tiles).to(tl.int64), index % tiles
        p = tile * BLOCK_P + tl.arange(0, BLOCK_P)
        inside = p < points
        measure = tl.where(inside, 1.0, 0.0)
        if HAS_WEIGHTS:
            measure = tl.load(weights + p, mask=inside, other=0.0)
        tl.store(counts + tile, tl.sum(measure, axis=0))
        where = states + sample * points * LATENT
        total = tl.zeros((BLOCK_P,), dtype=tl.float32)
        length = tl.zeros((BLOCK_P,), dtype=tl.float32)
        state = ()
        for j in tl.static_range(CHUNKS):
            c = j * BLOCK_K + k
            mask = inside[:, None] & (c < LATENT)[None, :]
            z = tl.load(where + p[:, None] * LATENT + c[None, :], mask=mask, other=0.0)
            moved = z.to(tl.float32) + tl.load(embeddings + c, mask=c < LATENT, other=0.0)[None, :]
            total += tl.sum(moved, axis=1)
            length += tl.sum(moved * moved, axis=1)
            state = state + (pack(z.to(tl.float32), dtype),)
        for step in range(num_steps):
            mean = total / LATENT
            scale = tl.rsqrt(tl.maximum(length / LATENT - mean * mean, 0.0) + eps)
            at = step * samples + sample
            row = rows + (at * points + p)[:, None] * 2 + tl.arange(0, 2)[None, :]
            tl.store(row, tl.join(mean, scale), mask=inside[:, None])
            h = tl.zeros((BLOCK_P, BLOCK_H), dtype=tl.float32)
            for j in tl.static_range(CHUNKS):
                h = tl.dot(unpack(state[j], dtype), tl.trans(firsts[j]), h, input_precision=PRECISION)
            h += tl.load(first_shift + step * HIDDEN + d, mask=inside_d, other=0.0)[None, :]
            h -= mean[:, None] * tl.load(first_sum + d, mask=inside_d, other=0.0)[None, :]
            h = h * scale[:, None] + tl.load(first_bias + d, mask=inside_d, other=0.0)[None, :]
            active = gelu(h).to(dtype)
            where += samples * points * LATENT
            following = embeddings + (step + 1) * LATENT
            sums = tl.zeros((BLOCK_P, BLOCK_G), dtype=tl.float32)
            squares = tl.zeros((BLOCK_P, BLOCK_G), dtype=tl.float32)
            cross = tl.zeros((BLOCK_P,), dtype=tl.float32)
            new = ()
            for j in tl.static_range(CHUNKS):
                c = j * BLOCK_K + k
                inside_c = c < LATENT
                y = unpack(state[j], tl.float32)
                y += tl.load(constant + step * LATENT + c, mask=inside_c, other=0.0)[None, :]
                y = tl.dot(active, tl.trans(seconds[j]), y, input_precision=PRECISION)
                rounded = y.to(dtype)
                mask = inside[:, None] & inside_c[None, :]
                tl.store(where + p[:, None] * LATENT + c[None, :], rounded, mask=mask)
                # Sums over a group of channels on the matrix units: what rounding does to so many squares averages out.
                sums = tl.dot(rounded, members[j], sums, input_precision=PRECISION)
                squares = tl.dot((y * y).to(dtype), members[j], squares, input_precision=PRECISION)
                cross += tl.sum(y * tl.load(following + c, mask=inside_c, other=0.0)[None, :], axis=1)
                new = new + (pack(y, dtype),)
            state = new
            # Of the state with the next embedding added, for the next LayerNorm.
            total = tl.sum(sums, axis=1) + tl.load(embedding_sums + (step + 1) * 2)
            length = tl.sum(squares, axis=1) + 2.0 * cross + tl.load(embedding_sums + (step + 1) * 2 + 1)
            part = parts + (at * tiles + tile) * 2 * BLOCK_G + group
            tl.store(part, tl.sum(sums * measure[:, None], axis=0))
            tl.store(part + BLOCK_G, tl.sum(squares * measure[:, None], axis=0))


@triton.jit(do_not_specialize=["tiles", "groups", "channels"])
def _merge_groups_kernel(
    parts, counts, statistics, tiles, groups, channels, eps, BLOCK_T: tl.constexpr, BLOCK_G: tl.constexpr
):
    """Mean and reciprocal deviation of each group of channels from the sums of tiles."""
    sample, g = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK_G)
    parts += sample * tiles * 2 * BLOCK_G
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
    states: Tensor, network: Network, weights: Tensor | None, num_groups: int, group_eps: float
) -> tuple[Tensor, Tensor]:
    """Fills ``states`` ``(1 + step, batch, point, latent)`` from its first slot on.

    Returns mean and reciprocal deviation of the LayerNorms ``(step, batch, point, 2)`` and of the groups of channels
    ``(step * batch, group, 2)``.
    """
    slots, batch, points, latent = states.shape
    num_steps, hidden = slots - 1, network.first.shape[0]
    tiles = triton.cdiv(points, TILE.points)
    block_groups = padded(num_groups)
    rows = states.new_empty(num_steps, batch, points, 2, dtype=torch.float32)
    parts = states.new_empty(num_steps * batch, tiles, 2, block_groups, dtype=torch.float32)
    counts = states.new_empty(tiles, dtype=torch.float32)
    block, block_hidden = min(padded(latent), BLOCK_LATENT), padded(hidden)
    _march_kernel[(min(MULTIPROCESSORS, tiles * batch),)](
        states,
        rows,
        parts,
        network.embeddings,
        network.embedding_sums,
        network.first,
        network.first_sum,
        network.first_shift,
        network.first_bias,
        network.second,
        network.constant,
        weights if weights is not None else network.first_bias,
        counts,
        points,
        tiles,
        tiles * batch,
        num_steps,
        network.eps,
        LATENT=latent,
        HIDDEN=hidden,
        CHANNELS=latent // num_groups,
        HAS_WEIGHTS=weights is not None,
        PRECISION=precision(states.dtype),
        BLOCK_P=TILE.points,
        BLOCK_K=block,
        BLOCK_H=block_hidden,
        BLOCK_G=block_groups,
        CHUNKS=triton.cdiv(latent, block),
        num_warps=TILE.warps,
        num_stages=TILE.stages,
    )
    statistics = states.new_empty(num_steps * batch, num_groups, 2, dtype=torch.float32)
    _merge_groups_kernel[(num_steps * batch,)](
        parts,
        counts,
        statistics,
        tiles,
        num_groups,
        latent // num_groups,
        group_eps,
        BLOCK_T=min(padded(tiles), 128),
        BLOCK_G=block_groups,
    )
    return rows, statistics
