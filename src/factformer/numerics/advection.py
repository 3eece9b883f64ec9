"""Semi-Lagrangian advection: values follow the flow back to where they came from.

Positions and displacements are in units of the grid spacing: point ``j`` of an axis sits at ``j``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

Scalar = Float[Tensor, "batch *points"]


def interpolate(field: Scalar, positions: Sequence[Float[Tensor, " batch *targets"]]) -> Tensor:
    """Multilinear interpolation of ``field`` at ``positions``, one tensor per axis, of any common shape.

    Beyond the ends of an axis the outermost value holds; a position that is NaN gives NaN.
    """
    batch, *grid = field.shape
    targets = positions[0].shape
    flat = field.flatten(1)
    base = torch.zeros(targets, dtype=torch.long, device=field.device)
    weights, strides = [], []
    for m, (position, size) in enumerate(zip(positions, grid, strict=True)):
        clamped = position.clamp(0, size - 1)
        cell = clamped.int().clamp_(0, max(size - 2, 0))  # as whole numbers, since NaN must not become an index
        stride = math.prod(grid[m + 1 :])
        base.add_(cell, alpha=stride)
        weights.append((clamped - cell).reshape(batch, -1))
        strides.append(stride if size > 1 else 0)
    base = base.reshape(batch, -1)
    return _corner_sum(flat, base, weights, strides).reshape(targets)


def _corner_sum(flat: Tensor, base: Tensor, weights: Sequence[Tensor], strides: Sequence[int]) -> Tensor:
    """Between two values along the first axis, each interpolated along the remaining ones."""
    if not weights:
        return flat.gather(1, base)
    low = _corner_sum(flat, base, weights[1:], strides[1:])
    high = _corner_sum(flat, base + strides[0], weights[1:], strides[1:])
    return torch.lerp(low, high, weights[0])


def trace_back(displacement: Sequence[Scalar], offset: float = 0.0) -> list[Tensor]:
    """Where the values at each point come from: index minus displacement along each axis, plus ``offset``."""
    shape = displacement[0].shape[1:]
    positions = []
    for m, shift in enumerate(displacement):
        view = [1] * len(shape)
        view[m] = shape[m]
        index = torch.arange(shape[m], dtype=shift.dtype, device=shift.device) + offset
        positions.append(index.reshape(view) - shift)
    return positions


def semi_lagrangian(field: Scalar, displacement: Sequence[Scalar]) -> Scalar:
    """``field`` carried along ``displacement``; what enters through the ends has the value found there."""
    return interpolate(field, trace_back(displacement))


def semi_lagrangian_zero_outside(field: Scalar, displacement: Sequence[Scalar]) -> Scalar:
    """As `semi_lagrangian`, with zeros one step beyond the ends and farther out."""
    padded = torch.nn.functional.pad(field, [1, 1] * (field.ndim - 1))
    return interpolate(padded, trace_back(displacement, offset=1.0))
