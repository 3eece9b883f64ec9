"""Linear attention: both orders of the product, the sum over all pairs of points, and its rotary encoding."""

import math

import pytest
import torch

from factformer.errors import UserError
from factformer.grid import Grid
from factformer.nn.attention.linear import LinearAttention, kernel_integral

GRIDS = {
    "line": Grid(7, 1.0, False),
    "torus": Grid((5, 6), 2 * math.pi, True),
    "stretched": Grid.from_axes([[0.0, 0.1, 0.4, 1.0], [0.0, 0.7, 0.9, 1.5, 2.0]]),
    "channel": Grid((4, 3, 5), 1.0, (True, False, False)),
    "four": Grid((2, 3, 2, 3), 1.0, False, "cells"),
}


def attention(grid: Grid, **options) -> LinearAttention:
    torch.manual_seed(0)
    return LinearAttention(grid.num_axes, 8, heads=2, head_dim=5, kernel_dim=12, **options).double()


def field(grid: Grid, dim: int = 8) -> torch.Tensor:
    return torch.randn(2, *grid.shape, dim, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("grid", GRIDS.values(), ids=list(GRIDS))
def test_both_association_orders_agree(grid):
    linear, quadratic = attention(grid), attention(grid, explicit=True)
    u = field(grid)
    torch.testing.assert_close(linear(u, grid), quadratic(u, grid), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("rotary", ["paper", "off"])
@pytest.mark.parametrize("grid", [GRIDS["stretched"], GRIDS["channel"]], ids=["stretched", "channel"])
def test_it_is_the_sum_over_all_points(grid, rotary):
    """Written from the formula: each channel of K and V has zero mean and unit variance in the quadrature."""
    layer = attention(grid, rotary=rotary)
    u = field(grid)
    x = layer.norm(u).flatten(1, -2)
    weights = torch.ones((), dtype=torch.float64)
    for m in range(grid.num_axes):
        weights = (weights[..., None] * grid.weights(m)).flatten()
    positions = grid.mesh().flatten(0, -2)

    def normalized(columns: torch.Tensor) -> torch.Tensor:
        mean = (weights[:, None] * columns).sum(1, keepdim=True)
        variance = (weights[:, None] * (columns - mean).square()).sum(1, keepdim=True)
        return (columns - mean) / (variance + 1e-5).sqrt()

    queries = layer.to_queries(x).unflatten(-1, (2, 12))
    keys = normalized(layer.to_keys(x)).unflatten(-1, (2, 12))
    values = normalized(layer.to_values(x)).unflatten(-1, (2, 5))
    if rotary == "paper":
        angle, start = torch.zeros(len(positions), 6, dtype=torch.float64), 0
        for m, channels in enumerate(layer.axis_channels):
            for pair in range(channels // 2):
                angle[:, start + pair] = positions[:, m] * 64 * 10000 ** (-2 * pair / channels)
            start += channels // 2
        turn = torch.polar(torch.ones_like(angle), angle)[:, None]
        pairs = (torch.view_as_complex(part.unflatten(-1, (6, 2)).contiguous()) for part in (queries, keys))
        queries, keys = (torch.view_as_real(pair * turn).flatten(-2) for pair in pairs)
    expected = torch.zeros_like(values)
    for i in range(len(positions)):
        for j in range(len(positions)):
            kernel = (queries[:, i] * keys[:, j]).sum(-1, keepdim=True)
            expected[:, i] += weights[j] * kernel * values[:, j]
    expected = layer.to_output(expected.flatten(-2)).unflatten(1, grid.shape)
    torch.testing.assert_close(layer(u, grid), expected, rtol=1e-10, atol=1e-10)


def test_the_kernel_depends_on_coordinate_differences_for_constant_queries_and_keys():
    """Both axes are encoded: moving both points along an axis changes nothing, moving one of them does."""
    grid = Grid((5, 4), 2 * math.pi, True)
    layer = attention(grid)
    constants = torch.randn(2, 1, 1, 2, 12, dtype=torch.float64).expand(2, 1, 20, 2, 12)
    encoded = [layer._encoded(part, grid).transpose(1, 2) for part in constants]
    kernel = layer.matrix(*encoded, grid).reshape(2, 5, 4, 5, 4)
    torch.testing.assert_close(kernel[:, 1:, :, 1:, :], kernel[:, :-1, :, :-1, :])
    torch.testing.assert_close(kernel[:, :, 1:, :, 1:], kernel[:, :, :-1, :, :-1])
    assert (kernel[:, 0, 0, 1, 0] - kernel[:, 0, 0, 0, 0]).abs().min() > 1e-4
    assert (kernel[:, 0, 0, 0, 1] - kernel[:, 0, 0, 0, 0]).abs().min() > 1e-4


def test_sums_over_points_are_taken_in_float32():
    torch.manual_seed(0)
    queries, keys, values = torch.randn(3, 1, 4000, 4)
    exact = kernel_integral(queries.double(), keys.double(), values.double(), None)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = kernel_integral(queries, keys, values, None)
    torch.testing.assert_close(result.double(), exact, rtol=1e-4, atol=1e-6)


def test_kernel_dim_must_hold_a_pair_per_axis():
    with pytest.raises(UserError, match="at least 2 per axis"):
        LinearAttention(3, 8, heads=1, kernel_dim=4)
