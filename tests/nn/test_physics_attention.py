"""Physics attention against the formula, and on refined grids."""

import math

import pytest
import torch

from factformer.grid import Grid
from factformer.nn.attention.physics import PhysicsAttention

GRIDS = [
    Grid(10, 1.0, True),
    Grid((5, 6), 1.0, (True, False)),
    Grid.from_axes([[0.0, 0.1, 0.3, 0.7, 1.0], torch.linspace(0, 1, 4)]),
    Grid((3, 4, 2), 1.0, False, "cells"),
]


def attention(grid: Grid, kernel_size: int = 3) -> PhysicsAttention:
    torch.manual_seed(0)
    padding = tuple("periodic" if wraps else "reflect" for wraps in grid.periodic)
    layer = PhysicsAttention(padding, 6, heads=2, head_dim=4, num_slices=3, kernel_size=kernel_size, home=grid)
    with torch.no_grad():
        layer.temperature.uniform_(0.3, 0.8)
    return layer.double()


def naive(layer: PhysicsAttention, u: torch.Tensor, grid: Grid, mask: torch.Tensor | None = None) -> torch.Tensor:
    """The formulas of the paper with the quadrature in place of the sums over points, one head after the other."""
    weights = torch.ones(1, dtype=torch.float64)
    for m in range(grid.num_axes):
        weights = (weights[:, None] * grid.weights(m)).flatten()
    if mask is not None:
        weights = weights * mask.flatten()
    points = layer.to_points(u, grid, mask).view(grid.num_points, layer.heads, -1)
    values = layer.to_values(u, grid, mask).view(grid.num_points, layer.heads, -1)
    query, key, value = layer.to_factors.weight.chunk(3)
    heads = []
    for head in range(layer.heads):
        p = (layer.to_slices(points[:, head]) / layer.temperature[head]).softmax(-1)
        tokens = torch.stack(
            [
                sum(weights[i] * p[i, g] * values[i, head] for i in range(grid.num_points)) / (weights @ p[:, g])
                for g in range(p.shape[1])
            ]
        )
        q, k, v = tokens @ query.T, tokens @ key.T, tokens @ value.T
        answers = (q @ k.T / math.sqrt(q.shape[-1])).softmax(-1) @ v
        heads.append(p @ answers)
    return layer.to_output(torch.cat(heads, dim=-1)).view(1, *grid.shape, -1)


@pytest.mark.parametrize("grid", GRIDS, ids=lambda grid: f"{grid.shape}")
@torch.no_grad()
def test_it_is_the_formula(grid):
    layer = attention(grid)
    u = torch.randn(1, *grid.shape, 6, dtype=torch.float64)
    torch.testing.assert_close(layer(u, grid), naive(layer, u, grid), rtol=1e-6, atol=1e-8)


@torch.no_grad()
def test_slices_are_means_over_the_domain_only():
    grid = GRIDS[1]
    layer = attention(grid)
    u = torch.randn(1, *grid.shape, 6, dtype=torch.float64)
    mask = torch.rand(1, *grid.shape) > 0.3
    torch.testing.assert_close(layer(u, grid, mask), naive(layer, u, grid, mask), rtol=1e-6, atol=1e-8)
    inside = mask.unsqueeze(-1)
    other = torch.where(inside, u, 9.0)
    torch.testing.assert_close(layer(other, grid, mask) * inside, layer(u, grid, mask) * inside)


@torch.no_grad()
def test_a_refined_grid_converges_at_second_order():
    """Node axes: trapezoid weights; a plain mean over the points would be first order."""
    layer = attention(Grid(9, 1.0, False), kernel_size=1)
    basis = torch.randn(3, 6, dtype=torch.float64)

    def answer(size: int) -> torch.Tensor:
        grid = Grid(size, 1.0, False)
        x = grid.axis(0)
        u = torch.stack([torch.sin(3 * x), x.square(), torch.exp(-x)], dim=-1) @ basis
        return layer(u[None], grid)[0, :: (size - 1) // 8]

    exact = answer(1025)
    errors = [(answer(size) - exact).norm() for size in (17, 33, 65)]
    assert math.log2(errors[0] / errors[1]) > 1.75
    assert math.log2(errors[1] / errors[2]) > 1.75
