# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# mypy: disable-error-code=assignment
# ruff: noqa: RUF005 - inside kernels tuples are joined by a sum, the compiler knows no unpacking
"""The gradients of the decoder's pointwise layers.

One pass makes the gradients of the layers, a second one those of the weights: gathering the weights' in the first pass
takes more registers than there are. Reference implementation: autograd through `factformer.nn.decoder.Decoder`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from factformer.kernels._triton.arithmetic import gelu, gelu_and_slope, gelu_slope, pieces, zeros
from factformer.kernels._triton.in_place import Places, in_patches
from factformer.kernels._triton.launching import launch
from factformer.kernels._triton.limits import chosen
from factformer.kernels._triton.tiles import Tile, load_tile, moved, store_tile
from factformer.kernels.march_decode.decoder_forward import Layers, first_layer

TILE = Tile(128, 4, 2)
SMALLER_TILE = Tile(64, 4, 2)
WEIGHTS_TILE = Tile(64, 8, 3)
SMALLER_WEIGHTS_TILE = Tile(32, 8, 2)


@triton.jit(do_not_specialize=["points", "tiles", "per_program", "batch", "num_steps"])
def _decode_gradient_kernel(
    grad,
    states,
    first,
    second,
    grad_first,
    grad_second,
    activated,
    first_bias,
    second_bias,
    third,
    parts,
    places,
    points,
    tiles,
    per_program,
    batch,
    num_steps,
    S: tl.constexpr,
):
    """Gradients before both activations, the first activated layer, and what the last matrix needs."""
    sample = tl.program_id(1)
    n, f = tl.arange(0, S.BLOCK_N), tl.arange(0, S.BLOCK_C)
    inside_n, inside_f = n < S.NARROW, f < S.CHANNELS
    w3 = tl.load(third + f[:, None] * S.NARROW + n[None, :], mask=inside_f[:, None] & inside_n[None, :], other=0.0)
    dtype: tl.constexpr = states.dtype if S.DESCRIBED else states.dtype.element_ty
    w3 = w3.to(dtype)
    at = sample + batch
    turned = ((sample % batch) * num_steps + sample // batch).to(tl.int64)
    of_third = zeros(S.BLOCK_N, S.BLOCK_C)
    sums_third = zeros(S.BLOCK_C)
    begin = tl.program_id(0) * per_program
    for tile in range(begin, min(tiles, begin + per_program)):
        p = tile * S.BLOCK_P
        h2 = zeros(S.BLOCK_P, S.BLOCK_N)
        for j in tl.range(0, S.CHUNKS, num_stages=S.STAGES):
            h = first_layer(states, first, first_bias, at, sample, p, j, points, S)
            active = gelu(h).to(dtype)
            q = j * (S.WIDE // S.CHUNKS)
            end = q + S.WIDE // S.CHUNKS
            store_tile(activated, active, sample, p, q, points, S.WIDE, S.DESCRIBED, S.BLOCK_P, S.BLOCK_W, end)
            w2 = load_tile(second, 0, 0, q, S.NARROW, S.WIDE, S.DESCRIBED, S.BLOCK_N, S.BLOCK_W, end)
            h2 = tl.dot(active, tl.trans(w2), h2, input_precision=S.PRECISION)
        r = p + tl.arange(0, S.BLOCK_P)
        inside = (r < points)[:, None] & inside_f[None, :]
        if S.AXES:
            at_grad = grad + turned * points * S.CHANNELS + in_patches(r, f, S.CHANNELS, places, S.AXES)
        else:
            at_grad = grad + (turned * points + r)[:, None] * S.CHANNELS + f[None, :]
        y = tl.load(at_grad, mask=inside, other=0.0)
        sums_third += tl.sum(y, axis=0)
        y = y.to(dtype)
        value, slope = gelu_and_slope(h2 + tl.load(second_bias + n, mask=inside_n, other=0.0)[None, :])
        grad2 = (tl.dot(y, w3, input_precision=S.PRECISION) * slope).to(dtype)
        store_tile(grad_second, grad2, sample, p, 0, points, S.NARROW, S.DESCRIBED, S.BLOCK_P, S.BLOCK_N)
        of_third = tl.dot(tl.trans(value.to(dtype)), y, of_third, input_precision=S.PRECISION)
        for j in tl.range(0, S.CHUNKS, num_stages=S.STAGES):
            # The layer once more: keeping it takes registers that are not there.
            h = first_layer(states, first, first_bias, at, sample, p, j, points, S)
            q = j * (S.WIDE // S.CHUNKS)
            end = q + S.WIDE // S.CHUNKS
            w2 = load_tile(second, 0, 0, q, S.NARROW, S.WIDE, S.DESCRIBED, S.BLOCK_N, S.BLOCK_W, end)
            grad1 = tl.dot(grad2, w2, input_precision=S.PRECISION) * gelu_slope(h)
            store_tile(grad_first, grad1, sample, p, q, points, S.WIDE, S.DESCRIBED, S.BLOCK_P, S.BLOCK_W, end)
    parts += (sample * tl.num_programs(0) + tl.program_id(0)) * S.CHANNELS * (S.NARROW + 1)
    tl.store(parts + f[None, :] * S.NARROW + n[:, None], of_third, mask=inside_n[:, None] & inside_f[None, :])
    tl.store(parts + S.CHANNELS * S.NARROW + f, sums_third, mask=inside_f)


@triton.jit(do_not_specialize=["points", "batch", "rows_per_program"])
def _decoder_weights_kernel(
    states,
    grad_first,
    grad_second,
    activated,
    first_parts,
    second_parts,
    points,
    batch,
    rows_per_program,
    S: tl.constexpr,
):
    """``zᵀ ∂h`` of each chunk of groups, the gradient of the second matrix, and sums over a program's points."""
    CHUNKS: tl.constexpr = S.CHUNKS
    sample = tl.program_id(1).to(tl.int64)
    k, o, n = tl.arange(0, S.BLOCK_K), tl.arange(0, S.BLOCK_W), tl.arange(0, S.BLOCK_N)
    inside_k, inside_o, inside_n = k < S.LATENT // CHUNKS, o < S.WIDE // CHUNKS, n < S.NARROW
    dtype = states.dtype.element_ty
    states += (sample + batch) * points * S.LATENT
    grad_first += sample * points * S.WIDE
    activated += sample * points * S.WIDE
    grad_second += sample * points * S.NARROW
    # Products with ones are sums; as many rows of them as the tensor cores take.
    rows_of_ones = tl.full((S.BLOCK_K, S.BLOCK_P), 1.0, dtype=tl.float32).to(dtype)
    columns_of_ones = tl.full((S.BLOCK_P, 16), 1.0, dtype=tl.float32).to(dtype)
    of_first, of_second, sums_first = (), (), ()
    for _ in tl.static_range(CHUNKS):
        of_first = of_first + (zeros(S.BLOCK_K, S.BLOCK_W),)
        of_second = of_second + (zeros(S.BLOCK_N, S.BLOCK_W),)
        sums_first = sums_first + (zeros(S.BLOCK_K, S.BLOCK_W),)
    sums_second = zeros(S.BLOCK_N, 16)
    begin = tl.program_id(0) * rows_per_program
    for start in tl.range(begin, min(points, begin + rows_per_program), S.BLOCK_P, num_stages=S.STAGES):
        p = start + tl.arange(0, S.BLOCK_P)
        inside = (p < points)[:, None]
        g = tl.load(grad_second + p[:, None] * S.NARROW + n[None, :], mask=inside & inside_n[None, :], other=0.0)
        sums_second = tl.dot(tl.trans(g), columns_of_ones, sums_second, input_precision=S.PRECISION)
        new_first, new_second, new_sums = (), (), ()
        for j in tl.static_range(CHUNKS):
            c, w = j * (S.LATENT // CHUNKS) + k, j * (S.WIDE // CHUNKS) + o
            mask = inside & inside_o[None, :]
            z = tl.load(states + p[:, None] * S.LATENT + c[None, :], mask=inside & inside_k[None, :], other=0.0)
            x = tl.load(grad_first + p[:, None] * S.WIDE + w[None, :], mask=mask, other=0.0)
            y = tl.load(activated + p[:, None] * S.WIDE + w[None, :], mask=mask, other=0.0)
            new_first = new_first + (tl.dot(tl.trans(z), x, of_first[j], input_precision=S.PRECISION),)
            new_second = new_second + (tl.dot(tl.trans(g), y, of_second[j], input_precision=S.PRECISION),)
            new_sums = new_sums + (tl.dot(rows_of_ones, x, sums_first[j], input_precision=S.PRECISION),)
        of_first, of_second, sums_first = new_first, new_second, new_sums
    program = sample * tl.num_programs(0) + tl.program_id(0)
    first_parts += program * (S.LATENT // CHUNKS + 1) * S.WIDE
    second_parts += program * S.NARROW * (S.WIDE + 1)
    top = (k == 0)[:, None]
    for j in tl.static_range(CHUNKS):
        column = j * (S.WIDE // CHUNKS) + o
        tl.store(
            first_parts + k[:, None] * S.WIDE + column[None, :], of_first[j], mask=inside_k[:, None] & inside_o[None, :]
        )
        last = first_parts + S.LATENT // CHUNKS * S.WIDE + column[None, :] + k[:, None] * 0
        tl.store(last, sums_first[j], mask=top & inside_o[None, :])
        tl.store(
            second_parts + n[:, None] * S.WIDE + column[None, :],
            of_second[j],
            mask=inside_n[:, None] & inside_o[None, :],
        )
    last = second_parts + S.NARROW * S.WIDE + n[:, None] + tl.arange(0, 16)[None, :] * 0
    tl.store(last, sums_second, mask=inside_n[:, None] & (tl.arange(0, 16) == 0)[None, :])


class DecoderGradient(NamedTuple):
    """Gradient before the first activation, and of the layers behind it.

    ``raw`` holds ``zᵀ ∂h`` of each chunk of groups and, as its last row, ``Σ ∂h``: ``(sample, channel + 1, output)``.
    """

    hidden: Tensor
    raw: Tensor
    second: Tensor
    second_bias: Tensor
    third: Tensor
    third_bias: Tensor


def decode_backward(grad: Tensor, states: Tensor, layers: Layers, places: Places | None = None) -> DecoderGradient:
    """From the gradient of the fields ``(batch, step, point, channel)`` in float32, in the order of `decode`."""
    slots, batch, points, latent = states.shape
    tile = chosen(TILE, SMALLER_TILE)
    weights_tile = chosen(WEIGHTS_TILE, SMALLER_WEIGHTS_TILE)
    samples, sizes = (slots - 1) * batch, layers.sizes(states, tile, places)
    wide, narrow, channels = sizes.WIDE, sizes.NARROW, sizes.CHANNELS
    tiles = triton.cdiv(points, tile.points)
    per_program = triton.cdiv(tiles, pieces(tiles, samples, waves=4))
    programs = triton.cdiv(tiles, per_program)
    hidden = states.new_empty(samples, points, wide)
    activated = torch.empty_like(hidden)
    grad_second = states.new_empty(samples, points, narrow)
    third_parts = states.new_empty(samples * programs, channels * (narrow + 1), dtype=torch.float32)
    launch(
        _decode_gradient_kernel,
        (programs, samples),
        grad,
        *layers.moved(states, sizes),
        moved(hidden, samples, tile.points, sizes.BLOCK_W, sizes.DESCRIBED),
        moved(grad_second, samples, tile.points, sizes.BLOCK_N, sizes.DESCRIBED),
        moved(activated, samples, tile.points, sizes.BLOCK_W, sizes.DESCRIBED),
        layers.first_bias,
        layers.second_bias,
        layers.third,
        third_parts,
        None if places is None else places.table,
        points,
        tiles,
        per_program,
        batch,
        slots - 1,
        S=sizes,
        num_warps=tile.warps,
    )
    third, third_bias = third_parts.sum(0).split([channels * narrow, channels])
    count = triton.cdiv(points, weights_tile.points)
    rows = triton.cdiv(count, pieces(count, samples, waves=1)) * weights_tile.points
    programs = triton.cdiv(points, rows)
    first_parts = states.new_empty(samples, programs, latent // sizes.CHUNKS + 1, wide, dtype=torch.float32)
    second_parts = states.new_empty(samples * programs, narrow * (wide + 1), dtype=torch.float32)
    launch(
        _decoder_weights_kernel,
        (programs, samples),
        states,
        hidden,
        grad_second,
        activated,
        first_parts,
        second_parts,
        points,
        batch,
        rows,
        S=layers.sizes(states, weights_tile),
        num_warps=weights_tile.warps,
        num_stages=weights_tile.stages,
    )
    second, second_bias = second_parts.sum(0).split([narrow * wide, narrow])
    return DecoderGradient(
        hidden, first_parts.sum(1), second.view(narrow, wide), second_bias, third.view(channels, narrow), third_bias
    )
