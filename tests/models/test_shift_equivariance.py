"""On periodic grids the convolutional models know no place: shift in, shift out; with levels, by whole points."""

import pytest
import torch

from factformer import catalog
from factformer.grid import Grid
from factformer.problem import Field, Problem
from factformer.surrogate import build_surrogate

GRIDS = [Grid(15, 6.28, True), Grid((12, 9), 6.28, True), Grid((6, 5, 8), 1.0, True)]


def backbone(model: str, problem: Problem, **switches):
    known = catalog.find("models", model).Config.model_fields
    sizes = {
        "dim": 16,
        "depth": 3,
        "modes": 4,
        "norm_groups": 4,
        "multipliers": (1, 2),
        "width": 8,
        "num_halvings": 2,
        "num_levels": 2,
        "window": 4,
        "layer_scale": 0.1,
    }
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


@pytest.mark.parametrize("grid", [Grid(32, 6.28, True), Grid((16, 8), 6.28, True)], ids=["1 axis", "2 axes"])
@pytest.mark.parametrize(("model", "step"), [("unet", 2), ("convnext_unet", 4), ("swin_transformer", 8)])
def test_networks_of_levels_commute_with_shifts_by_whole_points_of_the_coarsest(model, step, grid):
    """Of shifted windows, by whole windows of it: four points at half the resolution."""
    torch.manual_seed(0)
    layers = backbone(model, Problem("torus", grid, (Field("u"),)))
    z = torch.randn(2, *grid.shape, 16)
    expected = layers(z, grid).roll(step, 1)
    torch.testing.assert_close(layers(z.roll(step, 1), grid), expected, rtol=1e-5, atol=1e-5)
    assert (layers(z.roll(1, 1), grid) - layers(z, grid).roll(1, 1)).abs().max() > 1e-3


def test_slices_without_a_place_commute_with_shifts():
    torch.manual_seed(0)
    grid = Grid((12, 9), 6.28, True)
    layers = backbone("transolver", Problem("torus", grid, (Field("u"),)), fourier="off")
    z = torch.randn(2, *grid.shape, 16)
    moved, expected = layers(z.roll((2, -3), (1, 2)), grid), layers(z, grid).roll((2, -3), (1, 2))
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
