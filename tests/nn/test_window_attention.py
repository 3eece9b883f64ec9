"""Window attention against the formula, point by point."""

import math

import pytest
import torch

from factformer.grid import Grid
from factformer.nn.attention.window import AxisWindows, WindowAttention, from_windows, to_windows

GRIDS = [
    Grid(12, 1.0, True),
    Grid(11, 1.0, True),
    Grid(13, 1.0, False),
    Grid((6, 9), 1.0, (True, False)),
    Grid((3, 7), 1.0, False),
    Grid((5, 4, 6), 1.0, (False, True, True)),
]
EVERY_GRID = pytest.mark.parametrize("grid", GRIDS, ids=lambda grid: f"{grid.shape} {grid.periodic}")


def window_of(grid: Grid, m: int, point: int, width: int, shift: int) -> list[int]:
    """The places of the window that holds a point; on a periodic axis they go on beyond the ends."""
    size = grid.shape[m]
    start = (point + shift) // width * width - shift
    if grid.periodic[m]:
        place = (point + shift) % size  # windows are counted from the shifted start
        start = place // width * width - shift
    places = range(start, start + width)
    return [place for place in places if grid.periodic[m] or 0 <= place < size]


def naive(layer: WindowAttention, u: torch.Tensor, grid: Grid, mask: torch.Tensor | None = None) -> torch.Tensor:
    """``Σ_j softmax_j(τ cos(q_i, k_j) + 16 sigmoid B(i - j)) v_j`` with loops over all pairs of points."""
    sizes = grid.shape
    widths = [min(layer.window, size) for size in sizes]
    shifts = [width // 2 if layer.shifted and size > width else 0 for size, width in zip(sizes, widths, strict=True)]
    queries, keys, values = layer.to_factors(u).chunk(3, dim=-1)
    queries, values = queries + layer.query_bias, values + layer.value_bias
    result = torch.zeros_like(queries)
    head_dim = queries.shape[-1] // layer.heads
    for point in torch.cartesian_prod(*[torch.arange(size) for size in sizes]).view(-1, len(sizes)).tolist():
        reach = [
            window_of(grid, m, place, width, shift)
            for m, (place, width, shift) in enumerate(zip(point, widths, shifts, strict=True))
        ]
        own = []
        for m, place in enumerate(point):
            shifted = (place + shifts[m]) % sizes[m] - shifts[m] if grid.periodic[m] else place
            own.append(shifted)
        pairs = torch.cartesian_prod(*[torch.tensor(places) for places in reach]).view(-1, len(sizes)).tolist()
        for head in range(layer.heads):
            channels = slice(head * head_dim, (head + 1) * head_dim)
            query = queries[(0, *point)][channels]
            logits, seen = [], []
            for other in pairs:
                source = tuple(place % size for place, size in zip(other, sizes, strict=True))
                if mask is not None and not mask[(0, *source)]:
                    continue
                key = keys[(0, *source)][channels]
                share = [(a - b) / max(1, w - 1) for a, b, w in zip(own, other, widths, strict=True)]
                log = [math.copysign(math.log2(1 + 8 * abs(x)) / 3, x) for x in share]
                bias = 16 * layer.distance_bias(torch.tensor(log, dtype=torch.float64))[head].sigmoid()
                cosine = query @ key / (query.norm() * key.norm())
                logits.append(layer.sharpness[head].exp().squeeze() * cosine + bias)
                seen.append(values[(0, *source)][channels])
            weights = torch.stack(logits).softmax(0)
            result[(0, *point)][channels] = (weights[:, None] * torch.stack(seen)).sum(0)
    return layer.to_output(result)


@EVERY_GRID
@pytest.mark.parametrize("shifted", [False, True])
@torch.no_grad()
def test_it_is_the_formula(grid, shifted):
    torch.manual_seed(0)
    layer = WindowAttention(grid.num_axes, 6, heads=2, head_dim=3, window=4, shifted=shifted).double()
    layer.query_bias.normal_()
    layer.value_bias.normal_()
    u = torch.randn(1, *grid.shape, 6, dtype=torch.float64)
    torch.testing.assert_close(layer(u, grid), naive(layer, u, grid), rtol=1e-9, atol=1e-9)


@torch.no_grad()
def test_points_outside_the_domain_are_not_seen():
    torch.manual_seed(0)
    grid = Grid((6, 5), 1.0, (True, False))
    layer = WindowAttention(2, 6, heads=2, head_dim=3, window=4, shifted=True).double()
    mask = torch.ones(1, *grid.shape, dtype=torch.bool)
    mask[:, 2:4, 1:3] = False
    u = torch.randn(1, *grid.shape, 6, dtype=torch.float64)
    inside = mask.unsqueeze(-1)
    expected = naive(layer, u, grid, mask)
    torch.testing.assert_close(layer(u, grid, mask) * inside, expected * inside, rtol=1e-9, atol=1e-9)
    other = torch.where(inside, u, 7.0)
    torch.testing.assert_close(layer(other, grid, mask) * inside, expected * inside, rtol=1e-9, atol=1e-9)


@EVERY_GRID
@pytest.mark.parametrize("shifted", [False, True])
def test_windows_can_be_put_back(grid, shifted):
    u = torch.arange(grid.num_points, dtype=torch.float32).view(1, *grid.shape, 1)
    axes = [AxisWindows.along(grid, m, 4, shifted) for m in range(grid.num_axes)]
    assert torch.equal(from_windows(to_windows(u, axes), axes), u)


def test_shifted_windows_meet_across_a_periodic_end_and_not_across_a_wall():
    u = torch.arange(8.0).view(1, 8, 1)
    wraps, ends = (
        to_windows(u, [AxisWindows.along(Grid(8, 1.0, periodic), 0, 4, True)])[0, :, :, 0] for periodic in (True, False)
    )
    assert wraps.tolist() == [[6, 7, 0, 1], [2, 3, 4, 5]]
    assert ends.tolist() == [[0, 0, 0, 1], [2, 3, 4, 5], [6, 7, 0, 0]]  # zeros lie behind the walls
