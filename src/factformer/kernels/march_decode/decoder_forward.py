# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""The pointwise layers of the decoder in one pass.

    fields = W₃ gelu( W₂ gelu( F z + f ) + b₂ ) + b₃

``F`` and ``f`` of each sample hold the group norm and the grouped matrix
(`factformer.kernels._triton.normalized_weights`). Two groups of channels are taken at a time, so of ``F`` only blocks
on its diagonal are read.
Reference implementation: `factformer.nn.decoder.Decoder`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from factformer.kernels._triton.arithmetic import gelu, padded, precision
from factformer.kernels._triton.in_place import Places, in_patches
from factformer.kernels._triton.launching import launch
from factformer.kernels._triton.limits import chosen
from factformer.kernels._triton.tiles import Tile, can_move, load_tile, moved

TILE = Tile(128, 4, 2)
SMALLER_TILE = Tile(64, 4, 2)
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

    def can_move(self, states: Tensor) -> bool:
        """Whether TMA serves: its tiles must end where the chunks of groups do."""
        sizes = self.sizes()
        if sizes["BLOCK_W"] * sizes["CHUNKS"] != sizes["WIDE"] or sizes["BLOCK_N"] != sizes["NARROW"]:
            return False
        return can_move(states, self.first, self.second, columns=sizes["LATENT"] // sizes["CHUNKS"])

    def moved(self, states: Tensor, points: int, described: bool) -> tuple[Tensor | TensorDescriptor, ...]:
        """Arguments of `load_tile` for the states and for the first two matrices."""
        sizes = self.sizes()
        block_k, block_w, block_n = (sizes[f"BLOCK_{letter}"] for letter in "KWN")
        return (
            moved(states, states.shape[0] * states.shape[1], points, block_k, described),
            moved(self.first, self.first.shape[0], block_w, block_k, described),
            moved(self.second, 1, block_n, block_w, described),
        )


@triton.jit
def first_layer(
    states,
    first,
    first_bias,
    at,
    sample,
    p,
    j,
    points,
    LATENT: tl.constexpr,
    WIDE: tl.constexpr,
    CHUNKS: tl.constexpr,
    DESCRIBED: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_W: tl.constexpr,
):
    """The first layer of a chunk of groups before its activation; what it does not see of the state has weight zero."""
    c, q = j * (LATENT // CHUNKS), j * (WIDE // CHUNKS)
    z = load_tile(states, at, p, c, points, LATENT, DESCRIBED, BLOCK_P, BLOCK_K)
    w = load_tile(first, sample, q, c, WIDE, LATENT, DESCRIBED, BLOCK_W, BLOCK_K)
    h = tl.dot(z, tl.trans(w), input_precision=PRECISION)
    o = q + tl.arange(0, BLOCK_W)
    return h + tl.load(first_bias + sample * WIDE + o, mask=o < WIDE, other=0.0)[None, :]


@triton.jit(do_not_specialize=["points", "batch", "num_steps"])
def _decode_kernel(
    states,
    first,
    second,
    first_bias,
    second_bias,
    third,
    third_bias,
    result,
    places,
    points,
    batch,
    num_steps,
    AXES: tl.constexpr,
    LATENT: tl.constexpr,
    WIDE: tl.constexpr,
    NARROW: tl.constexpr,
    CHANNELS: tl.constexpr,
    CHUNKS: tl.constexpr,
    DESCRIBED: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_W: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_C: tl.constexpr,
    STAGES: tl.constexpr,
):
    p, sample = tl.program_id(0) * BLOCK_P, tl.program_id(1)
    n, f = tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_C)
    dtype: tl.constexpr = states.dtype if DESCRIBED else states.dtype.element_ty
    h2 = tl.zeros((BLOCK_P, BLOCK_N), dtype=tl.float32)
    for j in tl.range(0, CHUNKS, num_stages=STAGES):
        # The first slot of the states is where the marching starts from.
        h = first_layer(
            states,
            first,
            first_bias,
            sample + batch,
            sample,
            p,
            j,
            points,
            LATENT,
            WIDE,
            CHUNKS,
            DESCRIBED,
            PRECISION,
            BLOCK_P,
            BLOCK_K,
            BLOCK_W,
        )
        q = j * (WIDE // CHUNKS)
        w2 = load_tile(second, 0, 0, q, NARROW, WIDE, DESCRIBED, BLOCK_N, BLOCK_W, q + WIDE // CHUNKS)
        h2 = tl.dot(gelu(h).to(dtype), tl.trans(w2), h2, input_precision=PRECISION)
    h2 += tl.load(second_bias + n, mask=n < NARROW, other=0.0)[None, :]
    mask = (f < CHANNELS)[:, None] & (n < NARROW)[None, :]
    w3 = tl.load(third + f[:, None] * NARROW + n[None, :], mask=mask, other=0.0).to(dtype)
    fields = tl.dot(gelu(h2).to(dtype), tl.trans(w3), input_precision=PRECISION)
    fields += tl.load(third_bias + f, mask=f < CHANNELS, other=0.0)[None, :]
    # Fields lie sample by sample.
    r = p + tl.arange(0, BLOCK_P)
    turned = ((sample % batch) * num_steps + sample // batch).to(tl.int64)
    row = turned * points + r
    mask = (r < points)[:, None] & (f < CHANNELS)[None, :]
    if AXES:
        result += turned * points * CHANNELS
        tl.store(result + in_patches(r, f, CHANNELS, places, AXES), fields, mask=mask)
    else:
        tl.store(result + row[:, None] * CHANNELS + f[None, :], fields, mask=mask)


def decode(states: Tensor, layers: Layers, places: Places | None = None) -> Tensor:
    """Fields ``(batch, step, point, channel)`` in float32 of states ``(1 + step, batch, point, latent)``.

    With ``places`` the numbers of a frame lie in the order of the fine grid.
    """
    slots, batch, points, _ = states.shape
    tile = chosen(TILE, SMALLER_TILE)
    samples = (slots - 1) * batch
    result = states.new_empty(batch, slots - 1, points, layers.third.shape[0], dtype=torch.float32)
    sizes = layers.sizes()
    described = layers.can_move(states)
    launch(
        _decode_kernel,
        (triton.cdiv(points, tile.points), samples),
        *layers.moved(states, tile.points, described),
        layers.first_bias,
        layers.second_bias,
        layers.third,
        layers.third_bias,
        result,
        None if places is None else places.table,
        points,
        batch,
        slots - 1,
        AXES=0 if places is None else places.axes,
        DESCRIBED=described,
        PRECISION=precision(states.dtype),
        BLOCK_P=tile.points,
        STAGES=tile.stages,
        num_warps=tile.warps,
        **sizes,
    )
    return result
