"""Moving fields between grids of the same box: linear interpolation and its adjoint, axis by axis.

Both are products with one small matrix per axis, so any sizes, odd ones, periodic axes and stretched ones
work alike, and a field keeps its place in physical coordinates.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from factformer.grid import Grid


def interpolation_matrix(source: Grid, target: Grid, m: int) -> Float[Tensor, "out points"]:
    """Linear interpolation along axis ``m`` from the points of ``source`` to those of ``target``.

    A periodic axis wraps around; beyond the first or last point of another axis the end value is kept.
    """
    points, wanted = source.axis(m), target.axis(m)
    if source.periodic[m]:
        length = source.extent[m]
        points = torch.cat([points, points[:1] + length])
        wanted = (wanted - points[0]) % length + points[0]
    left = (torch.searchsorted(points, wanted, right=True) - 1).clamp(0, len(points) - 2)
    fraction = ((wanted - points[left]) / (points[left + 1] - points[left])).clamp(0, 1)
    matrix = torch.zeros(len(wanted), len(points), dtype=torch.float64)
    rows = torch.arange(len(wanted))
    matrix[rows, left] = 1 - fraction
    matrix[rows, left + 1] += fraction
    if source.periodic[m]:
        matrix[:, 0] += matrix[:, -1]
        matrix = matrix[:, :-1]
    return matrix


def restriction_matrix(source: Grid, target: Grid, m: int) -> Float[Tensor, "out points"]:
    """Mean along axis ``m`` around each point of a coarser ``target``, weighted by its hat function.

    The adjoint of interpolation back to ``source`` in the grid's quadrature, with rows that sum to 1. Towards
    a finer axis it is the interpolation.
    """
    if target.shape[m] >= source.shape[m]:
        return interpolation_matrix(source, target, m)
    hats = interpolation_matrix(target, source, m).T * source.weights(m)
    return hats / hats.sum(1, keepdim=True)


def apply_matrices(
    u: Float[Tensor, "batch *grid dim"], matrices: tuple[Tensor, ...]
) -> Float[Tensor, "batch *target dim"]:
    """Multiply every grid axis by its matrix."""
    for axis, matrix in enumerate(matrices, start=1):
        u = (matrix.to(u.dtype) @ u.movedim(axis, -2)).movedim(-2, axis)
    return u
