# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""The gradients of the marching network's weights, of all steps in one pass over what its layers hold.

The states are taken as they lie in memory: with ``q = ρ ∂h``,

    ∂W₁ = Σ q (z + e - μ)ᵀ = Σ q zᵀ + Σ q eᵀ - Σ q μ,     ∂W₂ = Σ ∂y gᵀ,     ∂b₁ = Σ q / ρ,     ∂b₂ = Σ ∂y

and the gradient of an embedding is the sum of ``∂y + W₁ᵀ q - level - (z + e - μ) along`` over all points. The sums are
products with a few columns more, the numbers in them in two parts, which keeps 16 bits.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from factformer.kernels._triton.arithmetic import padded, pieces, precision, zeros
from factformer.kernels._triton.launching import launch
from factformer.kernels._triton.limits import chosen
from factformer.kernels._triton.tiles import Tile
from factformer.kernels.march_decode.marching_backward import MarchingGradient
from factformer.kernels.march_decode.network import Network, Weights

TILE = Tile(64, 4, 3)
SMALLER_TILE = Tile(64, 8, 3)
BLOCK_COLUMNS = 128
FINISH_COLUMNS = 16


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """What the kernel of the products is made for: tiles of rows (R), hidden (H) and latent channels (C)."""

    LATENT: int
    HIDDEN: int
    PRECISION: str
    BLOCK_R: int
    BLOCK_H: int
    BLOCK_C: int
    CHUNKS: int
    STAGES: int


@triton.jit
def _column(values, at, x, HIGH: tl.constexpr):
    """Puts ``x`` into the columns ``HIGH`` and ``HIGH + 1``, what the first one rounds off into the second."""
    high = x.to(values.dtype)
    low = (x - high.to(tl.float32)).to(values.dtype)
    return tl.where(at == HIGH, high[:, None], tl.where(at == HIGH + 1, low[:, None], values))


@triton.jit(do_not_specialize=["points", "batch", "rows_per_program"])
def _march_weights_kernel(
    states,
    grads,
    grad_hidden,
    activated,
    row_statistics,
    sums,
    parts,
    vectors,
    points,
    batch,
    rows_per_program,
    S: tl.constexpr,
):
    is_second, block = tl.program_id(0) // S.CHUNKS, tl.program_id(0) % S.CHUNKS
    part, sample = tl.program_id(1), tl.program_id(2).to(tl.int64)
    d, c, column = tl.arange(0, S.BLOCK_H), block * S.BLOCK_C + tl.arange(0, S.BLOCK_C), tl.arange(0, 16)[None, :]
    inside_d, inside_c = d < S.HIDDEN, c < S.LATENT
    left, right = grad_hidden, states
    if is_second == 1:
        left, right = activated, grads + batch.to(tl.int64) * points * S.LATENT
    left += sample * points * S.HIDDEN
    right += sample * points * S.LATENT
    total = zeros(S.BLOCK_H, S.BLOCK_C)
    of_left = zeros(S.BLOCK_H, 16)
    of_right = zeros(S.BLOCK_C, 16)
    of_rows = zeros(S.BLOCK_R, 2)
    first = part * rows_per_program
    for start in tl.range(first, min(points, first + rows_per_program), S.BLOCK_R, num_stages=S.STAGES):
        r = start + tl.arange(0, S.BLOCK_R)
        inside = r < points
        x = tl.load(left + r[:, None] * S.HIDDEN + d[None, :], mask=inside[:, None] & inside_d[None, :], other=0.0)
        y = tl.load(right + r[:, None] * S.LATENT + c[None, :], mask=inside[:, None] & inside_c[None, :], other=0.0)
        row = sample * points + r
        mean = tl.load(row_statistics + row * 2, mask=inside, other=0.0)
        scale = tl.load(row_statistics + row * 2 + 1, mask=inside, other=1.0)
        along = tl.load(sums + row * 2 + 1, mask=inside, other=0.0)
        v = tl.full((S.BLOCK_R, 16), 0.0, dtype=x.dtype)
        v = tl.where(column == 0, tl.full((S.BLOCK_R, 16), 1.0, dtype=x.dtype), v)
        v = _column(v, column, mean, 1)
        v = _column(v, column, 1.0 / scale, 3)
        v = _column(v, column, along, 5)
        total = tl.dot(tl.trans(x), y, total, input_precision=S.PRECISION)
        of_left = tl.dot(tl.trans(x), v, of_left, input_precision=S.PRECISION)
        of_right = tl.dot(tl.trans(y), v, of_right, input_precision=S.PRECISION)
        of_rows += tl.where(tl.arange(0, 2)[None, :] == 0, along[:, None], (along * mean)[:, None])
    number = sample * tl.num_programs(1) + part
    base = parts + (is_second * tl.num_programs(2) * tl.num_programs(1) + number) * S.HIDDEN * S.LATENT
    tl.store(base + d[:, None] * S.LATENT + c[None, :], total, mask=inside_d[:, None] & inside_c[None, :])
    base = vectors + number * (3 * S.HIDDEN + 2 * S.LATENT + 2)
    own = inside_d & (tl.program_id(0) == 0)
    tl.store(base + d, tl.sum(tl.where(column == 0, of_left, 0.0), axis=1), mask=own)
    tl.store(base + S.HIDDEN + d, tl.sum(tl.where((column == 1) | (column == 2), of_left, 0.0), axis=1), mask=own)
    tl.store(base + 2 * S.HIDDEN + d, tl.sum(tl.where((column == 3) | (column == 4), of_left, 0.0), axis=1), mask=own)
    wanted = tl.where(is_second == 1, column == 0, (column == 5) | (column == 6))
    base += 3 * S.HIDDEN
    tl.store(base + is_second * S.LATENT + c, tl.sum(tl.where(wanted, of_right, 0.0), axis=1), mask=inside_c)
    base += 2 * S.LATENT
    tl.store(base + tl.arange(0, 2), tl.sum(of_rows, axis=0), mask=(tl.arange(0, 2) < 2) & (tl.program_id(0) == 0))


@triton.jit(do_not_specialize=["num_steps", "all_steps"])
def _finish_kernel(
    products,
    vectors,
    embeddings,
    folded,
    folded_sum,
    gain,
    bias,
    first,
    grads,
    num_steps,
    all_steps,
    LATENT: tl.constexpr,
    HIDDEN: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_H: tl.constexpr,
):
    """What the sums over all points mean for the parameters, for a few channels of the state."""
    c, d = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C), tl.arange(0, BLOCK_H)
    inside_c, inside_d = c < LATENT, d < HIDDEN
    mask = inside_d[:, None] & inside_c[None, :]
    where = d[:, None] * LATENT + c[None, :]
    grad = tl.load(products + where, mask=mask, other=0.0)
    w = tl.load(folded + where, mask=mask, other=0.0).to(tl.float32)
    w -= tl.where(inside_c[None, :], tl.load(folded_sum + d, mask=inside_d, other=0.0)[:, None] / LATENT, 0.0)
    of_bias = tl.zeros((BLOCK_H,), dtype=tl.float32)
    of_second_bias = tl.zeros((BLOCK_C,), dtype=tl.float32)
    for step in range(all_steps):
        used = step < num_steps
        row = vectors + step * (3 * HIDDEN + 2 * LATENT + 2)
        ones = tl.load(row + d, mask=inside_d & used, other=0.0)
        means = tl.load(row + HIDDEN + d, mask=inside_d & used, other=0.0)
        of_bias += tl.load(row + 2 * HIDDEN + d, mask=inside_d & used, other=0.0)
        with_along = tl.load(row + 3 * HIDDEN + c, mask=inside_c & used, other=0.0)
        of_state = tl.load(row + 3 * HIDDEN + LATENT + c, mask=inside_c & used, other=0.0)
        row += 3 * HIDDEN + 2 * LATENT
        along = tl.load(row, mask=used, other=0.0)
        along_mean = tl.load(row + 1, mask=used, other=0.0)
        e = tl.load(embeddings + step * LATENT + c, mask=inside_c & used, other=0.0)
        grad += ones[:, None] * e[None, :] - means[:, None]
        of_second_bias += of_state
        through = tl.sum(ones[:, None] * w, axis=0)
        tl.store(
            grads.steps + step * LATENT + c, of_state + through - with_along - e * along + along_mean, mask=inside_c
        )
    v = tl.load(first + where, mask=mask, other=0.0)
    tl.store(grads.gain + c, tl.sum(tl.where(mask, grad, 0.0) * v, axis=0), mask=inside_c)
    tl.store(grads.bias + c, tl.sum(of_bias[:, None] * v, axis=0), mask=inside_c)
    factor = tl.load(gain + c, mask=inside_c, other=0.0)[None, :]
    moved = tl.load(bias + c, mask=inside_c, other=0.0)[None, :]
    tl.store(grads.first + where, grad * factor + of_bias[:, None] * moved, mask=mask)
    tl.store(grads.first_bias + d, of_bias, mask=inside_d & (tl.program_id(0) == 0))
    other = tl.load(products + HIDDEN * LATENT + where, mask=mask, other=0.0)
    tl.store(grads.second + c[None, :] * HIDDEN + d[:, None], other, mask=mask)
    tl.store(grads.second_bias + c, of_second_bias, mask=inside_c)


def march_weights_backward(
    states: Tensor, rows: Tensor, grads: MarchingGradient, network: Network, parameters: Weights
) -> Weights:
    """Gradients of ``parameters`` from those of the states and hidden layers; ``states`` are those that steps see."""
    slots, batch, points, latent = grads.states.shape
    tile = chosen(TILE, SMALLER_TILE)
    hidden, samples = network.first.shape[0], (slots - 1) * batch
    block = min(padded(latent), BLOCK_COLUMNS)
    chunks = triton.cdiv(latent, block)
    count = triton.cdiv(points, tile.points)
    per_program = triton.cdiv(count, pieces(count, 2 * chunks * samples, waves=4)) * tile.points
    number = triton.cdiv(points, per_program)
    parts = states.new_empty(2, samples * number, hidden, latent, dtype=torch.float32)
    vectors = states.new_empty(slots - 1, batch * number, 3 * hidden + 2 * latent + 2, dtype=torch.float32)
    launch(
        _march_weights_kernel,
        (2 * chunks, number, samples),
        states,
        grads.states,
        grads.hidden,
        grads.active,
        rows,
        grads.sums,
        parts,
        vectors,
        points,
        batch,
        per_program,
        S=Sizes(
            LATENT=latent,
            HIDDEN=hidden,
            PRECISION=precision(states.dtype),
            BLOCK_R=tile.points,
            BLOCK_H=padded(hidden),
            BLOCK_C=block,
            CHUNKS=chunks,
            STAGES=tile.stages,
        ),
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    steps = torch.empty_like(parameters.steps)
    gain, bias, second_bias = steps.new_empty(3, latent).unbind(0)
    first, second = torch.empty_like(parameters.first), torch.empty_like(parameters.second)
    result = Weights(steps, gain, bias, first, torch.empty_like(parameters.first_bias), second, second_bias)
    launch(
        _finish_kernel,
        (triton.cdiv(latent, FINISH_COLUMNS),),
        parts.sum(1),
        vectors.sum(1),
        network.embeddings,
        network.first,
        network.first_sum,
        parameters.gain,
        parameters.bias,
        parameters.first,
        result,
        slots - 1,
        len(steps),
        LATENT=latent,
        HIDDEN=hidden,
        BLOCK_C=FINISH_COLUMNS,
        BLOCK_H=padded(hidden),
    )
    return result
