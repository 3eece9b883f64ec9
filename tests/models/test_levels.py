"""The levels of U-shaped models: their grids, and the way from one to the next."""

import pytest
import torch

from factformer.grid import Grid
from factformer.models._levels import Levels, halved, halved_mask, merge, spread
from factformer.models.convnext_unet import Config, Model
from factformer.nn.conditions import UNCONDITIONED, Conditions
from factformer.nn.convolution import Convolution
from factformer.problem import Field, Problem

GRIDS = [
    Grid(8, 2.0, True),
    Grid(7, 2.0, True),
    Grid(9, 2.0, False),
    Grid(8, 2.0, False),
    Grid(3, 2.0, True),
    Grid.from_axes([[0.0, 0.1, 0.3, 0.7, 1.0, 1.1]]),
]


@pytest.mark.parametrize("grid", GRIDS, ids=lambda grid: f"{grid.shape} {grid.periodic}")
def test_a_level_has_every_second_point_of_the_one_above(grid):
    coarse = halved(grid)
    torch.testing.assert_close(coarse.axis(0), grid.axis(0)[::2])
    assert coarse.periodic == grid.periodic
    assert coarse.weights(0).sum() == pytest.approx(1)
    if grid.periodic[0]:
        assert coarse.extent == grid.extent


@pytest.mark.parametrize("size", [6, 7])
def test_cells_join_in_pairs(size):
    coarse = halved(Grid(size, 2.0, False, "cells"))
    assert coarse == Grid(-(-size // 2), 2.0, False, "cells")


def test_an_axis_of_two_points_stays():
    grid = Grid((2, 8), 1.0, (False, True))
    shapes = [level.shape for level in Levels(4).of(grid)]
    assert shapes == [(2, 8), (2, 4), (2, 2), (2, 2)]


@pytest.mark.parametrize("shape", [(8,), (7,), (6, 5), (2, 4), (3, 2, 5), (4, 3, 2, 2)])
def test_spreading_undoes_merging(shape):
    u = torch.randn(2, *shape, 3)
    merged = merge(u, ["periodic"] * len(shape))
    coarse = halved(Grid(shape, 1.0, True)).shape
    assert merged.shape == (2, *coarse, 3 * 2 ** len(shape))
    assert torch.equal(spread(merged, shape), u)


@pytest.mark.parametrize("kind", ["periodic", "zero", "reflect"])
def test_an_odd_axis_goes_on_as_its_boundary_says(kind):
    u = torch.arange(5.0).view(1, 5, 1)
    beyond = {"periodic": 0.0, "zero": 0.0, "reflect": 3.0}[kind]
    assert merge(u, [kind])[0].tolist() == [[0, 1], [2, 3], [4, beyond]]


def test_a_strided_convolution_and_a_level_agree_on_the_points():
    for size in (8, 7):
        convolution = Convolution(["periodic"], 1, 1, stride=2)
        assert convolution(torch.randn(1, size, 1)).shape[1:-1] == halved(Grid(size, 1.0, True)).shape


def test_a_coarse_point_is_inside_where_one_of_its_points_is():
    mask = torch.tensor([[True, False, False, False, True]])
    assert halved_mask(mask).tolist() == [[True, False, True]]
    levels = Levels(3)
    assert levels.conditions(UNCONDITIONED) == (UNCONDITIONED,) * 3
    assert [c.mask.shape[1] for c in levels.conditions(Conditions(mask=mask))] == [5, 3, 2]


@pytest.mark.parametrize("size", [16, 13, 2])
def test_a_block_of_small_scale_is_nearly_the_identity_at_first(size):
    """γ from 1e-6: the network starts as its linear maps between the levels."""
    torch.manual_seed(0)
    grid = Grid((size, size), 1.0, True)
    network = Model(Config(dim=8, width=4, num_halvings=2), Problem("p", grid, (Field("u"),)))
    z = torch.randn(1, size, size, 8)
    before = network(z, grid)
    with torch.no_grad():
        for block in [*network.down[0], *network.neck]:
            block.branch.convolution.weight.mul_(2)
    torch.testing.assert_close(network(z, grid), before, rtol=1e-4, atol=1e-4)
