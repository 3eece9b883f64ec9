"""Factorized attention with its positional encoding and residual add, on the fused kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from factformer.grid import Grid
from factformer.kernels._triton.domain import masked_domain
from factformer.kernels._triton.streams import side_by_side
from factformer.kernels._triton.weights import working
from factformer.kernels.attention.axis_kernel import axial_operators
from factformer.kernels.attention.contraction import contraction, project
from factformer.kernels.attention.output import output
from factformer.kernels.attention.prenorm import prenorm
from factformer.nn.attention.axial_kernel import axial_mean
from factformer.nn.grid_tables import axis_weights
from factformer.nn.norms import cached_domain_weights

if TYPE_CHECKING:
    from factformer.nn.attention import FactorizedAttention


def attention_block(
    layer: FactorizedAttention,
    field: Tensor,
    encoding: Tensor | None,
    grid: Grid,
    mask: Tensor | None,
    dtype: torch.dtype,
) -> Tensor:
    """``s + layer(s)`` with ``s = field + encoding``: what `FactorizedAttention.add_to` computes, in ``dtype``."""
    rest, last = layer.tables.get("sides", grid, 0, layer.norm.weight, lambda: _sides(grid))
    norm = layer.norm
    domain = None if mask is None else masked_domain(mask)
    inside = None if domain is None else domain.bytes
    total, normed, rows, column_parts = prenorm(
        field.to(dtype), encoding, norm.weight, norm.bias, rest, last, norm.eps, inside
    )
    steps: list[tuple[Tensor, int]] = []
    weights = [
        None if grid.equal_weights(axis) else axis_weights(layer.tables, grid, axis, rows)
        for axis in range(grid.num_axes - 1)
    ]
    kernels = layer.axes()
    # The kernels of the axes are small and know nothing of each other, nor the values of them.
    with side_by_side(field, 1 + len(kernels)) as (main, *lanes):
        for kernel, lane in zip(kernels, lanes, strict=True):
            with lane:
                if kernel.m == grid.num_axes - 1:
                    mean = column_parts.sum(1)
                else:
                    mean = axial_mean(rows.unflatten(1, grid.shape[:-1]), weights, kernel.m)
                matrices = axial_operators(kernel, mean, grid, dtype, domain, mask)
                steps += [(matrix, kernel.m) for matrix in matrices]
        with main, torch.no_grad():
            projected: Tensor | None = project(normed, working(layer.to_values.weight, dtype), layer.heads)
    points = domain.weights(layer.tables, grid) if domain else cached_domain_weights(layer.tables, grid, rows)
    values, statistics = normed, None
    for index, (matrix, axis) in enumerate(steps):
        final = index == len(steps) - 1
        values, statistics = contraction(
            matrix,
            values,
            axis,
            projection=layer.to_values.weight if index == 0 else None,
            projected=projected,
            heads=layer.heads,
            weights=points if final else None,
            eps=layer.norm_eps if final else None,
        )
        projected = None  # the largest tensor
    assert statistics is not None
    first, second = layer.to_output[0].weight, layer.to_output[2].weight
    assert isinstance(first, Tensor)
    assert isinstance(second, Tensor)
    return output(values, statistics, first, second, total, points, inside)


def _sides(grid: Grid) -> tuple[Tensor, Tensor]:
    """Quadrature weights of all axes but the last, flat, and of the last."""
    rest = torch.ones(1, dtype=torch.float64)
    for m in range(grid.num_axes - 1):
        rest = (rest[:, None] * grid.weights(m)).flatten()
    return rest, grid.weights(grid.num_axes - 1)
