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

from factformer.kernels._triton.arithmetic import gelu, gelu_and_slope, gelu_slope, pieces, precision
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
    """Gradients before both activations, the first activated layer, and what the last matrix needs."""
    sample = tl.program_id(1)
    n, f = tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_C)
    inside_n, inside_f = n < NARROW, f < CHANNELS
    w3 = tl.load(third + f[:, None] * NARROW + n[None, :], mask=inside_f[:, None] & inside_n[None, :], other=0.0)
    dtype: tl.constexpr = states.dtype if DESCRIBED else states.dtype.element_ty
    w3 = w3.to(dtype)
    at = sample + batch
    turned = ((sample % batch) * num_steps + sample // batch).to(tl.int64)
    of_third = tl.zeros((BLOCK_N, BLOCK_C), dtype=tl.float32)
    sums_third = tl.zeros((BLOCK_C,), dtype=tl.float32)
    begin = tl.program_id(0) * per_program
    for tile in range(begin, min(tiles, begin + per_program)):
        p = tile * BLOCK_P
        h2 = tl.zeros((BLOCK_P, BLOCK_N), dtype=tl.float32)
        for j in tl.range(0, CHUNKS, num_stages=STAGES):
            h = first_layer(
                states,
                first,
                first_bias,
                at,
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
            active = gelu(h).to(dtype)
            q = j * (WIDE // CHUNKS)
            end = q + WIDE // CHUNKS
            store_tile(activated, active, sample, p, q, points, WIDE, DESCRIBED, BLOCK_P, BLOCK_W, end)
            w2 = load_tile(second, 0, 0, q, NARROW, WIDE, DESCRIBED, BLOCK_N, BLOCK_W, end)
            h2 = tl.dot(active, tl.trans(w2), h2, input_precision=PRECISION)
        r = p + tl.arange(0, BLOCK_P)
        inside = (r < points)[:, None] & inside_f[None, :]
        if AXES:
            at_grad = grad + turned * points * CHANNELS + in_patches(r, f, CHANNELS, places, AXES)
        else:
            at_grad = grad + (turned * points + r)[:, None] * CHANNELS + f[None, :]
        y = tl.load(at_grad, mask=inside, other=0.0)
        sums_third += tl.sum(y, axis=0)
        y = y.to(dtype)
        value, slope = gelu_and_slope(h2 + tl.load(second_bias + n, mask=inside_n, other=0.0)[None, :])
        grad2 = (tl.dot(y, w3, input_precision=PRECISION) * slope).to(dtype)
        store_tile(grad_second, grad2, sample, p, 0, points, NARROW, DESCRIBED, BLOCK_P, BLOCK_N)
        of_third = tl.dot(tl.trans(value.to(dtype)), y, of_third, input_precision=PRECISION)
        for j in tl.range(0, CHUNKS, num_stages=STAGES):
            # The layer once more: keeping it takes registers that are not there.
            h = first_layer(
                states,
                first,
                first_bias,
                at,
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
            end = q + WIDE // CHUNKS
            w2 = load_tile(second, 0, 0, q, NARROW, WIDE, DESCRIBED, BLOCK_N, BLOCK_W, end)
            grad1 = tl.dot(grad2, w2, input_precision=PRECISION) * gelu_slope(h)
            store_tile(grad_first, grad1, sample, p, q, points, WIDE, DESCRIBED, BLOCK_P, BLOCK_W, end)
    parts += (sample * tl.num_programs(0) + tl.program_id(0)) * CHANNELS * (NARROW + 1)
    tl.store(parts + f[None, :] * NARROW + n[:, None], of_third, mask=inside_n[:, None] & inside_f[None, :])
    tl.store(parts + CHANNELS * NARROW + f, sums_third, mask=inside_f)


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
    LATENT: tl.constexpr,
    WIDE: tl.constexpr,
    NARROW: tl.constexpr,
    CHUNKS: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_W: tl.constexpr,
    BLOCK_N: tl.constexpr,
    STAGES: tl.constexpr,
):
    """``zᵀ ∂h`` of each chunk of groups, the gradient of the second matrix, and sums over a program's points."""
    sample = tl.program_id(1).to(tl.int64)
    k, o, n = tl.arange(0, BLOCK_K), tl.arange(0, BLOCK_W), tl.arange(0, BLOCK_N)
    inside_k, inside_o, inside_n = k < LATENT // CHUNKS, o < WIDE // CHUNKS, n < NARROW
    dtype = states.dtype.element_ty
    states += (sample + batch) * points * LATENT
    grad_first += sample * points * WIDE
    activated += sample * points * WIDE
    grad_second += sample * points * NARROW
    # Products with ones are sums; as many rows of them as the tensor cores take.
    rows_of_ones = tl.full((BLOCK_K, BLOCK_P), 1.0, dtype=tl.float32).to(dtype)
    columns_of_ones = tl.full((BLOCK_P, 16), 1.0, dtype=tl.float32).to(dtype)
    of_first, of_second, sums_first = (), (), ()
    for _ in tl.static_range(CHUNKS):
        of_first = of_first + (tl.zeros((BLOCK_K, BLOCK_W), dtype=tl.float32),)
        of_second = of_second + (tl.zeros((BLOCK_N, BLOCK_W), dtype=tl.float32),)
        sums_first = sums_first + (tl.zeros((BLOCK_K, BLOCK_W), dtype=tl.float32),)
    sums_second = tl.zeros((BLOCK_N, 16), dtype=tl.float32)
    begin = tl.program_id(0) * rows_per_program
    for start in tl.range(begin, min(points, begin + rows_per_program), BLOCK_P, num_stages=STAGES):
        p = start + tl.arange(0, BLOCK_P)
        inside = (p < points)[:, None]
        g = tl.load(grad_second + p[:, None] * NARROW + n[None, :], mask=inside & inside_n[None, :], other=0.0)
        sums_second = tl.dot(tl.trans(g), columns_of_ones, sums_second, input_precision=PRECISION)
        new_first, new_second, new_sums = (), (), ()
        for j in tl.static_range(CHUNKS):
            c, w = j * (LATENT // CHUNKS) + k, j * (WIDE // CHUNKS) + o
            mask = inside & inside_o[None, :]
            z = tl.load(states + p[:, None] * LATENT + c[None, :], mask=inside & inside_k[None, :], other=0.0)
            x = tl.load(grad_first + p[:, None] * WIDE + w[None, :], mask=mask, other=0.0)
            y = tl.load(activated + p[:, None] * WIDE + w[None, :], mask=mask, other=0.0)
            new_first = new_first + (tl.dot(tl.trans(z), x, of_first[j], input_precision=PRECISION),)
            new_second = new_second + (tl.dot(tl.trans(g), y, of_second[j], input_precision=PRECISION),)
            new_sums = new_sums + (tl.dot(rows_of_ones, x, sums_first[j], input_precision=PRECISION),)
        of_first, of_second, sums_first = new_first, new_second, new_sums
    program = sample * tl.num_programs(0) + tl.program_id(0)
    first_parts += program * (LATENT // CHUNKS + 1) * WIDE
    second_parts += program * NARROW * (WIDE + 1)
    top = (k == 0)[:, None]
    for j in tl.static_range(CHUNKS):
        column = j * (WIDE // CHUNKS) + o
        tl.store(
            first_parts + k[:, None] * WIDE + column[None, :], of_first[j], mask=inside_k[:, None] & inside_o[None, :]
        )
        last = first_parts + LATENT // CHUNKS * WIDE + column[None, :] + k[:, None] * 0
        tl.store(last, sums_first[j], mask=top & inside_o[None, :])
        tl.store(
            second_parts + n[:, None] * WIDE + column[None, :], of_second[j], mask=inside_n[:, None] & inside_o[None, :]
        )
    last = second_parts + NARROW * WIDE + n[:, None] + tl.arange(0, 16)[None, :] * 0
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
    samples, sizes = (slots - 1) * batch, layers.sizes()
    wide, narrow, channels = sizes["WIDE"], sizes["NARROW"], sizes["CHANNELS"]
    tiles = triton.cdiv(points, tile.points)
    per_program = triton.cdiv(tiles, pieces(tiles, samples, waves=4))
    programs = triton.cdiv(tiles, per_program)
    hidden = states.new_empty(samples, points, wide)
    activated = torch.empty_like(hidden)
    grad_second = states.new_empty(samples, points, narrow)
    third_parts = states.new_empty(samples * programs, channels * (narrow + 1), dtype=torch.float32)
    described = layers.can_move(states)
    launch(
        _decode_gradient_kernel,
        (programs, samples),
        grad,
        *layers.moved(states, tile.points, described),
        moved(hidden, samples, tile.points, sizes["BLOCK_W"], described),
        moved(grad_second, samples, tile.points, sizes["BLOCK_N"], described),
        moved(activated, samples, tile.points, sizes["BLOCK_W"], described),
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
        AXES=0 if places is None else places.axes,
        DESCRIBED=described,
        PRECISION=precision(states.dtype),
        BLOCK_P=tile.points,
        STAGES=tile.stages,
        num_warps=tile.warps,
        **sizes,
    )
    third, third_bias = third_parts.sum(0).split([channels * narrow, channels])
    count = triton.cdiv(points, weights_tile.points)
    rows = triton.cdiv(count, pieces(count, samples, waves=1)) * weights_tile.points
    programs = triton.cdiv(points, rows)
    first_parts = states.new_empty(samples, programs, latent // sizes["CHUNKS"] + 1, wide, dtype=torch.float32)
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
        PRECISION=precision(states.dtype),
        BLOCK_P=weights_tile.points,
        STAGES=weights_tile.stages,
        num_warps=weights_tile.warps,
        num_stages=weights_tile.stages,
        **{name: size for name, size in sizes.items() if name not in ("CHANNELS", "BLOCK_C")},
    )
    second, second_bias = second_parts.sum(0).split([narrow * wide, narrow])
    return DecoderGradient(
        hidden, first_parts.sum(1), second.view(narrow, wide), second_bias, third.view(channels, narrow), third_bias
    )
