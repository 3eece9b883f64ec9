# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""The pointwise layers of the decoder in one pass.

    fields = W₃ gelu( W₂ gelu( F z + f ) + b₂ ) + b₃

``F`` and ``f`` of each sample hold the group norm and the grouped matrix
(`factformer.kernels._triton.normalized_weights`). Two groups of channels are taken at a time, so of ``F`` only blocks
on its diagonal are read.
Reference implementation: `factformer.nn.decoder.Decoder`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from factformer.kernels._triton.arithmetic import gelu, padded, precision, zeros
from factformer.kernels._triton.in_place import Places, in_patches
from factformer.kernels._triton.launching import launch
from factformer.kernels._triton.limits import chosen
from factformer.kernels._triton.tiles import Tile, can_move, load_tile, moved

TILE = Tile(128, 4, 2)
SMALLER_TILE = Tile(64, 4, 2)
GROUPS_AT_A_TIME = 2


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """What the kernels of the decoder are made for: its layers, tiles of points (P) and of each layer's channels.

    ``CHUNKS`` of groups are taken one by one. ``AXES`` are those of patches that lie in place, or 0.
    """

    LATENT: int
    WIDE: int
    NARROW: int
    CHANNELS: int
    CHUNKS: int
    AXES: int
    DESCRIBED: bool
    PRECISION: str
    BLOCK_P: int
    BLOCK_K: int
    BLOCK_W: int
    BLOCK_N: int
    BLOCK_C: int
    STAGES: int


class Layers(NamedTuple):
    """The decoder: ``F`` and ``f`` of every sample ``(step * batch, …)``, and the parameters behind them."""

    first: Tensor
    first_bias: Tensor
    second: Tensor
    second_bias: Tensor
    third: Tensor
    third_bias: Tensor
    num_groups: int

    def sizes(self, states: Tensor, tile: Tile, places: Places | None = None) -> Sizes:
        """With tiles that TMA moves where it can: they must end where the chunks of groups do."""
        chunks = max(1, self.num_groups // GROUPS_AT_A_TIME)
        (wide, latent), (channels, narrow) = self.first.shape[1:], self.third.shape
        block_wide, block_narrow = padded(wide // chunks), padded(narrow)
        whole = block_wide * chunks == wide and block_narrow == narrow
        return Sizes(
            LATENT=latent,
            WIDE=wide,
            NARROW=narrow,
            CHANNELS=channels,
            CHUNKS=chunks,
            AXES=0 if places is None else places.axes,
            DESCRIBED=whole and can_move(states, self.first, self.second, columns=latent // chunks),
            PRECISION=precision(states.dtype),
            BLOCK_P=tile.points,
            BLOCK_K=padded(latent // chunks),
            BLOCK_W=block_wide,
            BLOCK_N=block_narrow,
            BLOCK_C=padded(channels),
            STAGES=tile.stages,
        )

    def moved(self, states: Tensor, sizes: Sizes) -> tuple[Tensor | TensorDescriptor, ...]:
        """Arguments of `load_tile` for the states and for the first two matrices."""
        samples, described = states.shape[0] * states.shape[1], sizes.DESCRIBED
        return (
            moved(states, samples, sizes.BLOCK_P, sizes.BLOCK_K, described),
            moved(self.first, self.first.shape[0], sizes.BLOCK_W, sizes.BLOCK_K, described),
            moved(self.second, 1, sizes.BLOCK_N, sizes.BLOCK_W, described),
        )


@triton.jit
def first_layer(states, first, first_bias, at, sample, p, j, points, S: tl.constexpr):
    """The first layer of a chunk of groups before its activation; what it does not see of the state has weight zero."""
    c, q = j * (S.LATENT // S.CHUNKS), j * (S.WIDE // S.CHUNKS)
    z = load_tile(states, at, p, c, points, S.LATENT, S.DESCRIBED, S.BLOCK_P, S.BLOCK_K)
    w = load_tile(first, sample, q, c, S.WIDE, S.LATENT, S.DESCRIBED, S.BLOCK_W, S.BLOCK_K)
    h = tl.dot(z, tl.trans(w), input_precision=S.PRECISION)
    o = q + tl.arange(0, S.BLOCK_W)
    return h + tl.load(first_bias + sample * S.WIDE + o, mask=o < S.WIDE, other=0.0)[None, :]


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
    S: tl.constexpr,
):
    p, sample = tl.program_id(0) * S.BLOCK_P, tl.program_id(1)
    n, f = tl.arange(0, S.BLOCK_N), tl.arange(0, S.BLOCK_C)
    dtype: tl.constexpr = states.dtype if S.DESCRIBED else states.dtype.element_ty
    h2 = zeros(S.BLOCK_P, S.BLOCK_N)
    for j in tl.range(0, S.CHUNKS, num_stages=S.STAGES):
        # The first slot of the states is where the marching starts from.
        h = first_layer(states, first, first_bias, sample + batch, sample, p, j, points, S)
        q = j * (S.WIDE // S.CHUNKS)
        w2 = load_tile(second, 0, 0, q, S.NARROW, S.WIDE, S.DESCRIBED, S.BLOCK_N, S.BLOCK_W, q + S.WIDE // S.CHUNKS)
        h2 = tl.dot(gelu(h).to(dtype), tl.trans(w2), h2, input_precision=S.PRECISION)
    h2 += tl.load(second_bias + n, mask=n < S.NARROW, other=0.0)[None, :]
    mask = (f < S.CHANNELS)[:, None] & (n < S.NARROW)[None, :]
    w3 = tl.load(third + f[:, None] * S.NARROW + n[None, :], mask=mask, other=0.0).to(dtype)
    fields = tl.dot(gelu(h2).to(dtype), tl.trans(w3), input_precision=S.PRECISION)
    fields += tl.load(third_bias + f, mask=f < S.CHANNELS, other=0.0)[None, :]
    # Fields lie sample by sample.
    r = p + tl.arange(0, S.BLOCK_P)
    turned = ((sample % batch) * num_steps + sample // batch).to(tl.int64)
    row = turned * points + r
    mask = (r < points)[:, None] & (f < S.CHANNELS)[None, :]
    if S.AXES:
        result += turned * points * S.CHANNELS
        tl.store(result + in_patches(r, f, S.CHANNELS, places, S.AXES), fields, mask=mask)
    else:
        tl.store(result + row[:, None] * S.CHANNELS + f[None, :], fields, mask=mask)


def decode(states: Tensor, layers: Layers, places: Places | None = None) -> Tensor:
    """Fields ``(batch, step, point, channel)`` in float32 of states ``(1 + step, batch, point, latent)``.

    With ``places`` the numbers of a frame lie in the order of the fine grid.
    """
    slots, batch, points, _ = states.shape
    tile = chosen(TILE, SMALLER_TILE)
    samples = (slots - 1) * batch
    result = states.new_empty(batch, slots - 1, points, layers.third.shape[0], dtype=torch.float32)
    sizes = layers.sizes(states, tile, places)
    launch(
        _decode_kernel,
        (triton.cdiv(points, tile.points), samples),
        *layers.moved(states, sizes),
        layers.first_bias,
        layers.second_bias,
        layers.third,
        layers.third_bias,
        result,
        None if places is None else places.table,
        points,
        batch,
        slots - 1,
        S=sizes,
        num_warps=tile.warps,
    )
    return result
