"""The coarse grid of the Galerkin Transformer."""

import pytest
import torch

from factformer.grid import Grid
from factformer.models.galerkin_transformer import Config, Model
from factformer.problem import Field, Problem


def model(grid: Grid, **options) -> Model:
    boundary = "periodic" if all(grid.periodic) else "zero"
    return Model(Config(dim=16, heads=2, depth=2, **options), Problem("p", grid, (Field("u"),), boundary=boundary))


@pytest.mark.parametrize(
    ("shape", "coarsening", "shapes"),
    [
        ((64, 48), 4, [(32, 24), (16, 12)]),
        ((64, 48), 1, [(64, 48), (64, 48)]),
        ((85, 85), 4, [(42, 42), (21, 21)]),
        ((12, 6), 4, [(8, 6), (8, 6)]),
    ],
)
def test_it_follows_from_the_problem_s_grid(shape, coarsening, shapes):
    assert model(Grid(shape, 1.0, True), coarsening=coarsening).shapes == shapes


@pytest.mark.parametrize("sizes", [(5, 4), (16, 16), (31, 47)])
def test_attention_sees_the_same_number_of_points_at_any_resolution(sizes):
    network = model(Grid((32, 32), 1.0, False))
    seen = []
    network.layers[0].register_forward_pre_hook(lambda _, inputs: seen.append((inputs[0].shape, inputs[1].shape)))
    grid = Grid(sizes, 1.0, False)
    assert network(torch.randn(1, *sizes, 16), grid).shape == (1, *sizes, 16)
    assert seen == [((1, 8, 8, 16), (8, 8))]


def test_fine_detail_passes_by_the_coarse_grid():
    """What the coarse grid cannot hold reaches the output through the residual."""
    grid = Grid((32,), 1.0, True)
    network = model(grid)
    z = torch.randn(1, 32, 16)
    checkerboard = torch.tensor([1.0, -1.0]).repeat(16)[None, :, None].expand(1, 32, 16)
    difference = network(z + checkerboard, grid) - network(z, grid)
    torch.testing.assert_close(difference, checkerboard, rtol=0, atol=1e-5)
