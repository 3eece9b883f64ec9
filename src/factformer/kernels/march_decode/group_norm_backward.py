# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""The gradient through the decoder's group norm and the grouped matrix behind it, per sample and group."""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from factformer.kernels._triton.arithmetic import padded, zeros
from factformer.kernels._triton.launching import launch
from factformer.kernels._triton.normalized_weights import Grouped


@triton.jit
def _group_norm_kernel(
    raw, statistics, grouped, gain, shift, terms, result, measure, AT_A_TIME: tl.constexpr, S: tl.constexpr
):
    group, sample = tl.program_id(0), tl.program_id(1).to(tl.int64)
    c, o = tl.arange(0, S.BLOCK_K), tl.arange(0, S.BLOCK_R)
    inside_c, inside_o = c < S.CHANNELS, o < S.OUTPUTS
    mask = inside_c[:, None] & inside_o[None, :]
    raw += sample * (AT_A_TIME * S.CHANNELS + 1) * S.GROUPS * S.OUTPUTS + group * S.OUTPUTS
    row = (group % AT_A_TIME) * S.CHANNELS + c
    product = tl.load(raw + row[:, None] * S.GROUPS * S.OUTPUTS + o[None, :], mask=mask, other=0.0)
    sums = tl.load(raw + AT_A_TIME * S.CHANNELS * S.GROUPS * S.OUTPUTS + o, mask=inside_o, other=0.0)
    mean = tl.load(statistics + (sample * S.GROUPS + group) * 2)
    scale = tl.load(statistics + (sample * S.GROUPS + group) * 2 + 1)
    w = tl.load(grouped + (group * S.CHANNELS + c)[:, None] * S.OUTPUTS + o[None, :], mask=mask, other=0.0)
    factor = tl.load(gain + group * S.CHANNELS + c, mask=inside_c, other=0.0)[:, None]
    moved = tl.load(shift + group * S.CHANNELS + c, mask=inside_c, other=0.0)[:, None]
    # Of the matrix on the normalised state, before gain and shift.
    grad = (product - sums[None, :] * mean) * scale
    along = tl.sum(tl.sum(grad * w * factor, axis=1), axis=0)
    level = tl.sum(tl.sum(sums[None, :] * w * factor, axis=1), axis=0)
    slope = -scale * scale * along * measure / S.CHANNELS
    result += sample * S.GROUPS * (S.CHANNELS * (S.OUTPUTS + 2) + S.OUTPUTS)
    at = group * S.CHANNELS + c
    offset = -scale * level * measure / S.CHANNELS - slope * mean
    terms += sample * 2 * S.GROUPS * S.CHANNELS + at
    tl.store(terms, zeros(S.BLOCK_K) + offset, mask=inside_c)
    tl.store(terms + S.GROUPS * S.CHANNELS, zeros(S.BLOCK_K) + slope, mask=inside_c)
    tl.store(result + at[:, None] * S.OUTPUTS + o[None, :], grad * factor + sums[None, :] * moved, mask=mask)
    result += S.GROUPS * S.CHANNELS * S.OUTPUTS
    tl.store(result + at, tl.sum(grad * w, axis=1), mask=inside_c)
    result += S.GROUPS * S.CHANNELS
    tl.store(result + at, tl.sum(sums[None, :] * w, axis=1), mask=inside_c)
    result += S.GROUPS * S.CHANNELS
    tl.store(result + group * S.OUTPUTS + o, sums, mask=inside_o)


class GroupNormGradient(NamedTuple):
    """Of the grouped matrix, of gain and shift of the norm, and of the matrix' bias.

    The gradient of the states is ``∂h F + w (α + β z)``, with ``(α, β)`` in ``terms`` ``(sample, 2, channel)``.
    """

    terms: Tensor
    grouped: Tensor
    gain: Tensor
    shift: Tensor
    bias: Tensor


def group_norm_backward(
    raw: Tensor, statistics: Tensor, grouped: Tensor, gain: Tensor, shift: Tensor, measure: float
) -> GroupNormGradient:
    """From ``zᵀ ∂h`` of each chunk of groups with ``Σ ∂h`` as last row, ``(sample, channel + 1, output)``.

    ``statistics`` holds ``μ, ρ`` as ``(sample, group, 2)`` and ``measure`` is the weight of a point.
    """
    groups, channels, outputs = grouped.shape
    samples = raw.shape[0]
    terms = raw.new_empty(samples, 2, groups * channels)
    result = raw.new_empty(samples, groups * (channels * (outputs + 2) + outputs))
    launch(
        _group_norm_kernel,
        (groups, samples),
        raw,
        statistics,
        grouped,
        gain,
        shift,
        terms,
        result,
        measure,
        AT_A_TIME=(raw.shape[1] - 1) // channels,
        S=Grouped(GROUPS=groups, CHANNELS=channels, OUTPUTS=outputs, BLOCK_K=padded(channels), BLOCK_R=padded(outputs)),
    )
    latent = groups * channels
    split = result.sum(0).split([latent * outputs, latent, latent, groups * outputs])
    return GroupNormGradient(terms, split[0].view_as(grouped), *split[1:])
