# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""The gradient of latent marching, from the last step to the first in two kernels each.

The first takes the gradient of a state into the hidden layer, the second from there into the state before, and adds
what the decoder wants of that one. The gradients of the weights are left to `marching_weights_backward`.
Reference implementation: autograd through `factformer.nn.marching.LatentMarching`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from factformer.kernels._triton.arithmetic import gelu_and_slope, padded, zeros
from factformer.kernels._triton.launching import launch
from factformer.kernels._triton.tiles import Tile, can_move, load_tile, moved, row_of, store_tile
from factformer.kernels.march_decode.marching_forward import latent_block
from factformer.kernels.march_decode.network import Case, Forcing, Network, Sizes

HIDDEN_TILE = Tile(64, 8, 2)
STATE_TILE = Tile(64, 4, 2)


@triton.jit(do_not_specialize=["points", "step"])
def _hidden_gradient_kernel(
    states,
    grads,
    first,
    second,
    grad_hidden,
    activated,
    rows,
    first_sum,
    first_shift,
    first_bias,
    sums,
    points,
    step,
    S: tl.constexpr,
):
    """The hidden layer of one step behind its activation, and the gradient before it."""
    start, d = tl.program_id(0) * S.BLOCK_P, tl.arange(0, S.BLOCK_H)
    h = zeros(S.BLOCK_P, S.BLOCK_H)
    grad_h = zeros(S.BLOCK_P, S.BLOCK_H)
    for c in tl.range(0, S.LATENT, S.BLOCK_K, num_stages=S.STAGES):
        z = load_tile(states, step, start, c, points, S.LATENT, S.DESCRIBED, S.BLOCK_P, S.BLOCK_K)
        w1 = load_tile(first, 0, 0, c, S.HIDDEN, S.LATENT, S.DESCRIBED, S.BLOCK_H, S.BLOCK_K)
        h = tl.dot(z, tl.trans(w1), h, input_precision=S.PRECISION)
        grad = load_tile(grads, step + 1, start, c, points, S.LATENT, S.DESCRIBED, S.BLOCK_P, S.BLOCK_K)
        w2 = load_tile(second, 0, c, 0, S.LATENT, S.HIDDEN, S.DESCRIBED, S.BLOCK_K, S.BLOCK_H)
        grad_h = tl.dot(grad, w2, grad_h, input_precision=S.PRECISION)
    p = start + tl.arange(0, S.BLOCK_P)
    row = step.to(tl.int64) * points + p
    mean = tl.load(rows + row * 2, mask=p < points, other=0.0)
    scale = tl.load(rows + row * 2 + 1, mask=p < points, other=0.0)
    summed = tl.load(first_sum + d, mask=d < S.HIDDEN, other=0.0)[None, :]
    h += tl.load(first_shift + step * S.HIDDEN + d, mask=d < S.HIDDEN, other=0.0)[None, :]
    h = (h - mean[:, None] * summed) * scale[:, None]
    active, slope = gelu_and_slope(h + tl.load(first_bias + d, mask=d < S.HIDDEN, other=0.0)[None, :])
    store_tile(activated, active, step, start, 0, points, S.HIDDEN, S.DESCRIBED, S.BLOCK_P, S.BLOCK_H)
    # Times ρ: what goes through W₁ and into its gradient.
    grad_h = grad_h * slope * scale[:, None]
    store_tile(grad_hidden, grad_h, step, start, 0, points, S.HIDDEN, S.DESCRIBED, S.BLOCK_P, S.BLOCK_H)
    # The two means that the LayerNorm's gradient needs, from the hidden layer instead of the state.
    level = tl.sum(grad_h * summed, axis=1) / S.LATENT
    along = scale * tl.sum(grad_h * h, axis=1) / S.LATENT
    where = sums + row[:, None] * 2 + tl.arange(0, 2)[None, :]
    tl.store(where, tl.join(level, along), mask=(p < points)[:, None])


@triton.jit(do_not_specialize=["points", "batch", "num_steps", "slot"])
def _state_gradient_kernel(
    states,
    grads,
    result,
    entering,
    grad_entering,
    first,
    grad_hidden,
    grad_decoded,
    scaled,
    terms,
    rows,
    sums,
    embeddings,
    weights,
    points,
    batch,
    num_steps,
    slot,
    WIDE: tl.constexpr,
    GROUPS: tl.constexpr,
    BLOCK_W: tl.constexpr,
    S: tl.constexpr,
    CASE: tl.constexpr,
):
    """Of one state: what the step behind it wants of it and, ``∂h F + w (α + β z)``, the decoder.

    The last state has no step behind it, the first no decoder: tiles from beyond the field are zero and cost nothing.
    """
    start, sample = tl.program_id(0) * S.BLOCK_P, tl.program_id(1)
    marched, decoded = slot < num_steps, slot > 0
    step, at = tl.minimum(slot, num_steps - 1) * batch + sample, (tl.maximum(slot, 1) - 1) * batch + sample
    of_step, of_decoder = tl.where(marched, start, points), tl.where(decoded, start, points)
    p, k = start + tl.arange(0, S.BLOCK_P), tl.arange(0, S.BLOCK_K)
    row = step.to(tl.int64) * points + p
    inside = (p < points) & marched
    mean = tl.load(rows + row * 2, mask=inside, other=0.0)
    level = tl.load(sums + row * 2, mask=inside, other=0.0)
    along = tl.load(sums + row * 2 + 1, mask=inside, other=0.0)
    measure = tl.full((S.BLOCK_P,), 1.0, dtype=tl.float32)
    if CASE.OF_SAMPLES:
        weights += row_of(sample, points)
    if CASE.HAS_WEIGHTS:
        measure = tl.load(weights + p, mask=p < points, other=0.0)
    hidden = load_tile(grad_hidden, step, of_step, 0, points, S.HIDDEN, S.DESCRIBED, S.BLOCK_P, S.BLOCK_H)
    for start_c in tl.range(0, S.LATENT, S.BLOCK_K, num_stages=S.STAGES):
        c = start_c + k
        # Of the decoder's grouped layer only the rows of the groups that these channels belong to.
        r = start_c // (S.LATENT // GROUPS) * (WIDE // GROUPS)
        z = load_tile(
            states, slot * batch + sample, start, start_c, points, S.LATENT, S.DESCRIBED, S.BLOCK_P, S.BLOCK_K
        )
        grad = load_tile(grads, step + batch, of_step, start_c, points, S.LATENT, S.DESCRIBED, S.BLOCK_P, S.BLOCK_K)
        w = load_tile(first, 0, 0, start_c, S.HIDDEN, S.LATENT, S.DESCRIBED, S.BLOCK_H, S.BLOCK_K)
        x = load_tile(grad_decoded, at, of_decoder, r, points, WIDE, S.DESCRIBED, S.BLOCK_P, BLOCK_W)
        f = load_tile(scaled, at, r, start_c, WIDE, S.LATENT, S.DESCRIBED, BLOCK_W, S.BLOCK_K)
        z = z.to(tl.float32)
        e = tl.load(embeddings + step // batch * S.LATENT + c, mask=c < S.LATENT, other=0.0)[None, :]
        seen = z
        if CASE.FORCED:
            seen = load_tile(entering, step, of_step, start_c, points, S.LATENT, S.DESCRIBED, S.BLOCK_P, S.BLOCK_K)
            seen = seen.to(tl.float32)
        new = grad.to(tl.float32) - level[:, None] - (seen + e - mean[:, None]) * along[:, None]
        if CASE.FORCED:  # what the forcing gets is the gradient of the step alone
            new = tl.dot(hidden, w, new, input_precision=S.PRECISION)
            store_tile(grad_entering, new, step, of_step, start_c, points, S.LATENT, S.DESCRIBED, S.BLOCK_P, S.BLOCK_K)
        base, own = terms + at * 2 * S.LATENT + c, (c < S.LATENT) & decoded
        offset = tl.load(base, mask=own, other=0.0)[None, :]
        new += (offset + tl.load(base + S.LATENT, mask=own, other=0.0)[None, :] * z) * measure[:, None]
        if not CASE.FORCED:
            new = tl.dot(hidden, w, new, input_precision=S.PRECISION)
        new = tl.dot(x, f, new, input_precision=S.PRECISION)
        store_tile(
            result, new, slot * batch + sample, start, start_c, points, S.LATENT, S.DESCRIBED, S.BLOCK_P, S.BLOCK_K
        )


class MarchingGradient(NamedTuple):
    """Of the states ``(1 + step, batch, point, latent)``, and of the hidden layer of each step.

    ``hidden`` is ``ρ ∂h`` before the activation and ``active`` the layer behind it. Last in ``sums`` ``(step, batch,
    point, 2)`` is the factor of ``z + e - μ`` in the gradient of the LayerNorm. ``entering`` is the gradient of the
    states under a forcing.
    """

    states: Tensor
    hidden: Tensor
    active: Tensor
    sums: Tensor
    entering: Tensor | None = None


def march_backward(
    states: Tensor,
    rows: Tensor,
    network: Network,
    grad_decoded: Tensor,
    scaled: Tensor,
    terms: Tensor,
    weights: Tensor | None,
    groups: int,
    forcing: Forcing | None = None,
) -> MarchingGradient:
    """``grad_decoded``, ``scaled`` and ``terms`` are ``∂h``, ``F`` and ``(α, β)`` of the decoder, of every sample."""
    slots, batch, points, latent = states.shape
    steps, hidden, wide = slots - 1, network.first.shape[0], scaled.shape[1]
    grads = torch.empty_like(states)
    seen = states if forcing is None else forcing.states
    entering = None if forcing is None else torch.empty_like(forcing.states)
    grad_hidden, activated = states.new_empty(2, steps, batch, points, hidden).unbind(0)
    sums = states.new_empty(steps, batch, points, 2, dtype=torch.float32)
    block, block_hidden = latent_block(latent), padded(hidden)
    window = _window(latent, wide, groups, block)
    described = can_move(states, grad_hidden, grad_decoded, scaled, network.first, network.second)
    described &= can_move(grad_decoded, columns=wide // groups)
    case = Case.of(states, weights, forcing)
    of_hidden, of_states = (Sizes.of(states, hidden, block, tile, described) for tile in (HIDDEN_TILE, STATE_TILE))
    first = moved(network.first, 1, block_hidden, block, described)
    of_state = (
        *(moved(x, slots * batch, STATE_TILE.points, block, described) for x in (states, grads, grads)),
        *(
            None if forcing is None or x is None else moved(x, steps * batch, STATE_TILE.points, block, described)
            for x in (seen, entering)
        ),
        first,
        moved(grad_hidden, steps * batch, STATE_TILE.points, block_hidden, described),
        moved(grad_decoded, steps * batch, STATE_TILE.points, window, described),
        moved(scaled, steps * batch, window, block, described),
        terms,
        rows,
        sums,
        network.embeddings,
        weights if weights is not None else rows,
        points,
        batch,
        steps,
    )
    into_hidden = (
        *(moved(x, len(x), HIDDEN_TILE.points, block, described) for x in (seen, grads)),
        first,
        moved(network.second, 1, block, block_hidden, described),
        *(moved(x, steps, HIDDEN_TILE.points, block_hidden, described) for x in (grad_hidden, activated)),
        rows,
        network.first_sum,
        network.first_shift,
        network.first_bias,
        sums,
        batch * points,
    )
    for slot in reversed(range(slots)):
        if slot < steps:
            launch(
                _hidden_gradient_kernel,
                (triton.cdiv(batch * points, HIDDEN_TILE.points),),
                *into_hidden,
                slot,
                S=of_hidden,
                num_warps=HIDDEN_TILE.warps,
            )
        launch(
            _state_gradient_kernel,
            (triton.cdiv(points, STATE_TILE.points), batch),
            *of_state,
            slot,
            WIDE=wide,
            GROUPS=groups,
            BLOCK_W=window,
            S=of_states,
            CASE=case,
            num_warps=STATE_TILE.warps,
        )
    return MarchingGradient(grads, grad_hidden, activated, sums, entering)


def _window(latent: int, wide: int, groups: int, block: int) -> int:
    """How many outputs of the decoder's grouped layer the channels of one block reach, at most."""
    channels = latent // groups
    most = max(
        (min(start + block, latent) - 1) // channels - start // channels + 1 for start in range(0, latent, block)
    )
    return padded(most * (wide // groups))
