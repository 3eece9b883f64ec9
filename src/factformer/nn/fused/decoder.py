# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""The pointwise layers of the decoder in one pass.

    fields = W₃ gelu( W₂ gelu( F z + f ) + b₂ ) + b₃

``F`` and ``f`` of each sample hold the group norm and the grouped matrix (`factformer.nn.fused.fold`). Two groups of
channels are taken at a time, so of ``F`` only blocks on its diagonal are read.
Plain twin: `factformer.nn.decoder.Decoder`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from factformer.nn.fused._common import gelu, padded, pieces, precision
from factformer.nn.fused.resident import Tile, column_blocks, grouped_blocks

TILE = Tile(64, 4, 2)
GROUPS_AT_A_TIME = 2


class Layers(NamedTuple):
    """The decoder: ``F`` and ``f`` of every sample ``(step * batch, …)``, and the parameters behind them."""

    first: Tensor
    first_bias: Tensor
    second: Tensor
    second_bias: Tensor
    third: Tensor
    third_bias: Tensor
    num_groups: int

    def sizes(self) -> dict[str, int]:
        """The sizes that the kernels are made for."""
        chunks = max(1, self.num_groups // GROUPS_AT_A_TIME)
        (wide, latent), (channels, narrow) = self.first.shape[1:], self.third.shape
        return {
            "LATENT": latent,
            "WIDE": wide,
            "NARROW": narrow,
            "CHANNELS": channels,
            "CHUNKS": chunks,
            "BLOCK_K": padded(latent // chunks),
            "BLOCK_W": padded(wide // chunks),
            "BLOCK_N": padded(narrow),
            "BLOCK_C": padded(channels),
        }


@triton.jit(do_not_specialize=["points", "tiles", "per_program", "batch", "num_steps"])
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
    tiles,
    per_program,
    batch,
    num_steps,
    LATENT: tl.constexpr,
    WIDE: tl.constexpr,
    NARROW: tl.constexpr,
    CHANNELS: tl.constexpr,
    CHUNKS: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_W: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_C: tl.constexpr,
    STAGES: tl.constexpr,
):
    sample = tl.program_id(1).to(tl.int64)
    k, o, n, f = tl.arange(0, BLOCK_K), tl.arange(0, BLOCK_W), tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_C)
    inside_k, inside_o = k < LATENT // CHUNKS, o < WIDE // CHUNKS
    firsts = grouped_blocks(first + sample * WIDE * LATENT, WIDE, LATENT, CHUNKS, BLOCK_W, BLOCK_K)
    dtype = states.dtype.element_ty
    seconds = column_blocks(second, dtype, NARROW, WIDE, CHUNKS, BLOCK_N, BLOCK_W)
    w3 = tl.load(
        third + f[:, None] * NARROW + n[None, :], mask=(f < CHANNELS)[:, None] & (n < NARROW)[None, :], other=0.0
    ).to(dtype)
    # The first slot of the states is where the marching starts from; fields lie sample by sample.
    states += (sample + batch) * points * LATENT
    turned = (sample % batch) * num_steps + sample // batch
    begin = tl.program_id(0) * per_program
    for tile in tl.range(begin, min(tiles, begin + per_program), num_stages=STAGES):
        p = tile * BLOCK_P + tl.arange(0, BLOCK_P)
        inside = (p < points)[:, None]
        h2 = tl.zeros((BLOCK_P, BLOCK_N), dtype=tl.float32)
        for j in tl.static_range(CHUNKS):
            c = j * (LATENT // CHUNKS) + k
            z = tl.load(states + p[:, None] * LATENT + c[None, :], mask=inside & inside_k[None, :], other=0.0)
            h = tl.dot(z, tl.trans(firsts[j]), input_precision=PRECISION)
            bias = first_bias + sample * WIDE + j * (WIDE // CHUNKS) + o
            h += tl.load(bias, mask=inside_o, other=0.0)[None, :]
            h2 = tl.dot(gelu(h).to(dtype), tl.trans(seconds[j]), h2, input_precision=PRECISION)
        h2 += tl.load(second_bias + n, mask=n < NARROW, other=0.0)[None, :]
        fields = tl.dot(gelu(h2).to(dtype), tl.trans(w3), input_precision=PRECISION)
        fields += tl.load(third_bias + f, mask=f < CHANNELS, other=0.0)[None, :]
        row = turned * points + p
        tl.store(result + row[:, None] * CHANNELS + f[None, :], fields, mask=inside & (f < CHANNELS)[None, :])


def decode(states: Tensor, layers: Layers) -> Tensor:
    """Fields ``(batch, step, point, channel)`` in float32 of states ``(1 + step, batch, point, latent)``."""
    slots, batch, points, _ = states.shape
    samples = (slots - 1) * batch
    result = states.new_empty(batch, slots - 1, points, layers.third.shape[0], dtype=torch.float32)
    tiles = triton.cdiv(points, TILE.points)
    per_program = triton.cdiv(tiles, pieces(tiles, samples, waves=4))
    _decode_kernel[(triton.cdiv(tiles, per_program), samples)](
        states,
        *layers[:6],
        result,
        points,
        tiles,
        per_program,
        batch,
        slots - 1,
        PRECISION=precision(states.dtype),
        BLOCK_P=TILE.points,
        STAGES=TILE.stages,
        num_warps=TILE.warps,
        num_stages=TILE.stages,
        **layers.sizes(),
    )
    return result
