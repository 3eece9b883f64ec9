# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# mypy: disable-error-code=assignment
# ruff: noqa: RUF005 - inside kernels tuples are joined by a sum, the compiler knows no unpacking
"""The gradient of latent marching, from the last step to the first in one kernel.

A program keeps the matrices in shared memory and the gradient of its points' state in registers; what the decoder wants
of each state is added on the way. The gradients of the weights are left to `factformer.nn.fused.marching_weights`.
Plain twin: autograd through `factformer.nn.marching.LatentMarching`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from factformer.nn.fused._common import MULTIPROCESSORS, gelu_and_slope, padded, precision
from factformer.nn.fused.marching import BLOCK_LATENT
from factformer.nn.fused.network import Network
from factformer.nn.fused.resident import Tile, blocks, pack, unpack

TILE = Tile(128, 8)
BLOCK_HIDDEN = 64


@triton.jit
def _load_decoder(
    grad_decoded,
    scaled,
    at,
    p,
    inside,
    points,
    wanted,
    CHANNEL: tl.constexpr,
    LATENT: tl.constexpr,
    WIDE: tl.constexpr,
    GROUPS: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_W: tl.constexpr,
):
    """What `_add_decoder` multiplies, for the channels from ``CHANNEL`` on: only their groups' rows of ``F``."""
    c = CHANNEL + tl.arange(0, BLOCK_K)
    row = CHANNEL // (LATENT // GROUPS) * (WIDE // GROUPS) + tl.arange(0, BLOCK_W)
    keep = (row < WIDE) & wanted
    x = tl.load(
        grad_decoded + (at * points + p)[:, None] * WIDE + row[None, :],
        mask=inside[:, None] & keep[None, :],
        other=0.0,
    )
    w = tl.load(
        scaled + at * WIDE * LATENT + row[:, None] * LATENT + c[None, :],
        mask=keep[:, None] & (c < LATENT)[None, :],
        other=0.0,
    )
    return x, w


@triton.jit
def _add_decoder(grad, y, x, w, terms, at, c, measure, wanted, LATENT: tl.constexpr, PRECISION: tl.constexpr):
    """Adds what the decoder wants of a state, ``∂h F + w (α + β y)``."""
    base = terms + at * 2 * LATENT + c
    inside_c = (c < LATENT) & wanted
    offset = tl.load(base, mask=inside_c, other=0.0)[None, :]
    grad += (offset + tl.load(base + LATENT, mask=inside_c, other=0.0)[None, :] * y) * measure[:, None]
    return tl.dot(x, w, grad, input_precision=PRECISION)


@triton.jit(do_not_specialize=["points", "tiles", "jobs", "num_steps"])
def _march_gradient_kernel(
    states,
    rows,
    grad_decoded,
    scaled,
    terms,
    weights,
    embeddings,
    first,
    first_sum,
    first_shift,
    first_bias,
    second,
    grads,
    grad_hidden,
    activated,
    alongs,
    points,
    tiles,
    jobs,
    num_steps,
    LATENT: tl.constexpr,
    HIDDEN: tl.constexpr,
    WIDE: tl.constexpr,
    GROUPS: tl.constexpr,
    HAS_WEIGHTS: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_W: tl.constexpr,
    CHUNKS: tl.constexpr,
    PARTS: tl.constexpr,
):
    """From the last step to the first, tile after tile, with the weights and the tile's gradient on the chip."""
    dtype = states.dtype.element_ty
    k = tl.arange(0, BLOCK_K)
    firsts = blocks(first, dtype, HIDDEN, LATENT, BLOCK_H, BLOCK_K)
    seconds = blocks(second, dtype, LATENT, HIDDEN, BLOCK_K, BLOCK_H)
    # A product with the identity takes a tile from where the matrix units read it to where the arithmetic is done.
    identity = tl.where(k[:, None] == k[None, :], 1.0, 0.0).to(dtype)
    samples = (jobs // tiles).to(tl.int64)
    for index in range(tl.program_id(0), jobs, tl.num_programs(0)):
        sample, tile = (index // tiles).to(tl.int64), index % tiles
        p = tile * BLOCK_P + tl.arange(0, BLOCK_P)
        inside = p < points
        measure = tl.where(inside, 1.0, 0.0)
        if HAS_WEIGHTS:
            measure = tl.load(weights + p, mask=inside, other=0.0)
        carry = ()
        at = (num_steps - 1) * samples + sample
        for j in tl.static_range(CHUNKS):
            c = j * BLOCK_K + k
            mask = inside[:, None] & (c < LATENT)[None, :]
            slot = (at + samples) * points * LATENT + p[:, None] * LATENT + c[None, :]
            y = tl.load(states + slot, mask=mask, other=0.0).to(tl.float32)
            x, w = _load_decoder(
                grad_decoded, scaled, at, p, inside, points, True, j * BLOCK_K, LATENT, WIDE, GROUPS, BLOCK_K, BLOCK_W
            )
            grad = tl.zeros((BLOCK_P, BLOCK_K), dtype=tl.float32)
            grad = _add_decoder(grad, y, x, w, terms, at, c, measure, True, LATENT, PRECISION)
            tl.store(grads + slot, grad.to(dtype), mask=mask)
            carry = carry + (pack(grad, dtype),)
        for back in range(num_steps):
            step = num_steps - 1 - back
            at = step * samples + sample
            row = at * points + p
            mean = tl.load(rows + row * 2, mask=inside, other=0.0)
            scale = tl.load(rows + row * 2 + 1, mask=inside, other=0.0)
            source = at * points * LATENT
            zs = ()
            for j in tl.static_range(CHUNKS):
                c = j * BLOCK_K + k
                mask = inside[:, None] & (c < LATENT)[None, :]
                zs = zs + (tl.load(states + source + p[:, None] * LATENT + c[None, :], mask=mask, other=0.0),)
            level = tl.zeros((BLOCK_P,), dtype=tl.float32)
            along = tl.zeros((BLOCK_P,), dtype=tl.float32)
            hidden = ()
            for i in tl.static_range(PARTS):
                d = i * BLOCK_H + tl.arange(0, BLOCK_H)
                inside_d = d < HIDDEN
                h = tl.zeros((BLOCK_P, BLOCK_H), dtype=tl.float32)
                grad_h = tl.zeros((BLOCK_P, BLOCK_H), dtype=tl.float32)
                for j in tl.static_range(CHUNKS):
                    h = tl.dot(zs[j], tl.trans(firsts[i * CHUNKS + j]), h, input_precision=PRECISION)
                    moved = unpack(carry[j], dtype)
                    grad_h = tl.dot(moved, seconds[j * PARTS + i], grad_h, input_precision=PRECISION)
                summed = tl.load(first_sum + d, mask=inside_d, other=0.0)[None, :]
                h += tl.load(first_shift + step * HIDDEN + d, mask=inside_d, other=0.0)[None, :]
                h = (h - mean[:, None] * summed) * scale[:, None]
                active, slope = gelu_and_slope(h + tl.load(first_bias + d, mask=inside_d, other=0.0)[None, :])
                narrow = row[:, None] * HIDDEN + d[None, :]
                keep = inside[:, None] & inside_d[None, :]
                tl.store(activated + narrow, active.to(dtype), mask=keep)
                # Times ρ: what goes through W₁ and into its gradient.
                grad_h = grad_h * slope * scale[:, None]
                # The two means that the LayerNorm's gradient needs, from the hidden layer instead of the state.
                level += tl.sum(grad_h * summed, axis=1) / LATENT
                along += scale * tl.sum(grad_h * h, axis=1) / LATENT
                rounded = grad_h.to(dtype)
                tl.store(grad_hidden + narrow, rounded, mask=keep)
                hidden = hidden + (rounded,)
            tl.store(alongs + row, along, mask=inside)
            new = ()
            # What a chunk needs is loaded one chunk ahead.
            wanted = step > 0
            before = tl.where(wanted, at - samples, at)
            where = source + p[:, None] * LATENT + k[None, :]
            x_next, w_next = _load_decoder(
                grad_decoded, scaled, before, p, inside, points, wanted, 0, LATENT, WIDE, GROUPS, BLOCK_K, BLOCK_W
            )
            for j in tl.static_range(CHUNKS):
                c = j * BLOCK_K + k
                mask = inside[:, None] & (c < LATENT)[None, :]
                x, w = x_next, w_next
                z = tl.dot(zs[j], identity, input_precision=PRECISION)
                if j + 1 < CHUNKS:
                    x_next, w_next = _load_decoder(
                        grad_decoded,
                        scaled,
                        before,
                        p,
                        inside,
                        points,
                        wanted,
                        (j + 1) * BLOCK_K,
                        LATENT,
                        WIDE,
                        GROUPS,
                        BLOCK_K,
                        BLOCK_W,
                    )
                embedding = tl.load(embeddings + step * LATENT + c, mask=c < LATENT, other=0.0)[None, :]
                grad = unpack(carry[j], tl.float32) - level[:, None]
                grad -= (z + embedding - mean[:, None]) * along[:, None]
                for i in tl.static_range(PARTS):
                    grad = tl.dot(hidden[i], firsts[i * CHUNKS + j], grad, input_precision=PRECISION)
                grad = _add_decoder(grad, z, x, w, terms, before, c, measure, wanted, LATENT, PRECISION)
                tl.store(grads + where + j * BLOCK_K, grad.to(dtype), mask=mask)
                new = new + (pack(grad, dtype),)
            carry = new


class MarchingGradient(NamedTuple):
    """Of the states ``(1 + step, batch, point, latent)``, and of the hidden layer of each step.

    ``hidden`` is ``ρ ∂h`` before the activation and ``active`` the layer behind it; ``along`` is the factor of
    ``z + e - μ`` in the gradient of the LayerNorm.
    """

    states: Tensor
    hidden: Tensor
    active: Tensor
    along: Tensor


def march_backward(
    states: Tensor,
    rows: Tensor,
    network: Network,
    grad_decoded: Tensor,
    scaled: Tensor,
    terms: Tensor,
    weights: Tensor | None,
    groups: int,
) -> MarchingGradient:
    """``grad_decoded``, ``scaled`` and ``terms`` are ``∂h``, ``F`` and ``(α, β)`` of the decoder, of every sample."""
    slots, batch, points, latent = states.shape
    hidden, wide = network.first.shape[0], scaled.shape[1]
    tiles = triton.cdiv(points, TILE.points)
    grads = torch.empty_like(states)
    grad_hidden, activated = states.new_empty(2, slots - 1, batch, points, hidden).unbind(0)
    alongs = states.new_empty(slots - 1, batch, points, dtype=torch.float32)
    block, block_hidden = min(padded(latent), BLOCK_LATENT), min(padded(hidden), BLOCK_HIDDEN)
    _march_gradient_kernel[(min(MULTIPROCESSORS, tiles * batch),)](
        states,
        rows,
        grad_decoded,
        scaled,
        terms,
        weights if weights is not None else rows,
        network.embeddings,
        network.first,
        network.first_sum,
        network.first_shift,
        network.first_bias,
        network.second,
        grads,
        grad_hidden,
        activated,
        alongs,
        points,
        tiles,
        tiles * batch,
        slots - 1,
        LATENT=latent,
        HIDDEN=hidden,
        WIDE=wide,
        GROUPS=groups,
        HAS_WEIGHTS=weights is not None,
        PRECISION=precision(states.dtype),
        BLOCK_P=TILE.points,
        BLOCK_K=block,
        BLOCK_H=block_hidden,
        BLOCK_W=_window(latent, wide, groups, block),
        CHUNKS=triton.cdiv(latent, block),
        PARTS=triton.cdiv(hidden, block_hidden),
        num_warps=TILE.warps,
        num_stages=TILE.stages,
    )
    return MarchingGradient(grads, grad_hidden, activated, alongs)


def _window(latent: int, wide: int, groups: int, block: int) -> int:
    """How many outputs of the decoder's grouped layer the channels of one block reach, at most."""
    channels = latent // groups
    most = max(
        (min(start + block, latent) - 1) // channels - start // channels + 1 for start in range(0, latent, block)
    )
    return padded(most * (wide // groups))
