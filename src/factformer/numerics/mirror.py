"""The modes of a real field in the order of ``fft``, and the symmetry between a mode and its mirror image.

A part of the modes is given by its ``ranges``: those with ``first ≤ |k_m| < end`` for each axis ``m``.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

Ranges = tuple[tuple[int, int], ...]


def signed_indices(first: int, end: int, *, last: bool) -> Tensor:
    """The indices with ``first ≤ |k| < end`` in the order of ``fft``; of the ``last`` axis those from 0 on."""
    positive = torch.arange(first, end)
    return positive if last or end <= first else torch.cat([positive, torch.arange(1 - end, 1 - max(first, 1))])


def shape_of(ranges: Ranges) -> tuple[int, ...]:
    """The shape of coefficients with ``first ≤ |k_m| < end`` for each axis."""
    *others, (first, end) = ranges
    return (*(2 * (b - a) - (a == 0 and b > 0) for a, b in others), end - first)


def whole_ranges(cutoff: Sequence[int]) -> Ranges:
    """All modes up to the cut."""
    return tuple((0, largest + 1) for largest in cutoff)


def mirror_modes(
    coefficients: Tensor, num_axes: int, *, average: bool, scale: float = 0.5, first: Sequence[int] | None = None
) -> Tensor:
    """Coefficients that stand for a real field, ``f̂_{-k} = conj f̂_k`` where both are stored (last index 0).

    ``average``: ``scale`` times the sum of a mode and its mirror image. Otherwise one of the two (the one
    whose first index that is not zero is positive) decides for both, which keeps its modulus.
    ``first`` is the least ``|k_m|`` of each axis where a part of the modes is given.
    """
    least = first or [0] * num_axes
    if least[-1] > 0 or not coefficients.numel():
        return coefficients
    plane = coefficients[..., 0]
    axes = tuple(range(-num_axes + 1, 0))
    mirrored = plane.conj()
    if axes:
        mirrored = mirrored.flip(axes)
        with_zero = tuple(axis for axis, begin in zip(axes, least, strict=False) if begin == 0)
        mirrored = mirrored.roll((1,) * len(with_zero), with_zero) if with_zero else mirrored
    result = coefficients.clone()
    if average:
        result[..., 0] = scale * (plane + mirrored)
        return result
    sign = torch.zeros((), dtype=torch.long)
    for axis, begin in zip(axes, least, strict=False):
        size = plane.shape[axis]
        index = torch.arange(size)
        index = torch.where(index >= size // 2 + (begin == 0), -1, (index + begin).sign())
        sign = torch.where(sign[..., None] == 0, index, sign[..., None])
    sign = sign.to(plane.device)
    result[..., 0] = torch.where(sign > 0, plane, torch.where(sign < 0, mirrored, plane.real + 0j))
    return result
