"""On periodic grids the Fourier models and the dilated network know no place: shift in, shift out."""

import pytest
import torch

from factformer import catalog
from factformer.grid import Grid
from factformer.problem import Field, Problem
from factformer.surrogate import build_surrogate

GRIDS = [Grid(15, 6.28, True), Grid((12, 9), 6.28, True), Grid((6, 5, 8), 1.0, True)]


def backbone(model: str, problem: Problem, **switches):
    known = catalog.find("models", model).Config.model_fields
    sizes = {"dim": 16, "depth": 3, "modes": 4, "norm_groups": 4}
    options = {key: value for key, value in sizes.items() if key in known}
    return build_surrogate(problem, model, **options, **switches).backbone


@pytest.mark.parametrize("grid", GRIDS, ids=lambda grid: f"{grid.num_axes} axes")
@pytest.mark.parametrize("model", ["fno", "ffno", "dilated_resnet"])
def test_backbones_commute_with_shifts(model, grid):
    torch.manual_seed(0)
    layers = backbone(model, Problem("torus", grid, (Field("u"),)))
    z = torch.randn(2, *grid.shape, 16)
    shifts, axes = (2, -3, 1)[: grid.num_axes], tuple(range(1, grid.num_axes + 1))
    expected = layers(z, grid).roll(shifts, axes)
    moved = layers(z.roll(shifts, axes), grid)
    assert (expected - layers(z, grid)).abs().max() > 0.1
    torch.testing.assert_close(moved, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("model", ["fno", "ffno", "dilated_resnet"])
def test_told_where_points_lie_they_know_a_place(model):
    torch.manual_seed(0)
    grid = Grid((12, 9), 6.28, True)
    layers = backbone(model, Problem("torus", grid, (Field("u"),)), fourier="periodic")
    z = torch.randn(2, *grid.shape, 16)
    assert (layers(z.roll(2, 1), grid) - layers(z, grid).roll(2, 1)).abs().max() > 1e-3


@pytest.mark.parametrize("model", ["fno", "ffno", "dilated_resnet"])
def test_walls_break_the_symmetry(model):
    """The padding tells the network where the walls are: a shifted field meets them elsewhere."""
    torch.manual_seed(0)
    grid = Grid((12, 9), 1.0, (False, True))
    layers = backbone(model, Problem("channel", grid, (Field("u"),), boundary="zero"))
    z = torch.randn(2, *grid.shape, 16)
    along, across = (layers(z.roll(2, axis), grid) - layers(z, grid).roll(2, axis) for axis in (2, 1))
    assert along.abs().max() < 1e-5
    assert across.abs().max() > 1e-3
