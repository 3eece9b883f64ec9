"""The receptive field of a block of dilated convolutions, and its padding at walls."""

import pytest
import torch

from factformer.grid import Grid
from factformer.models.dilated_resnet import Block, Config, Model
from factformer.problem import Field, Problem


def reach(block: Block, grid: Grid, axis: int) -> list[int]:
    """Offsets along ``axis`` from which the middle point receives anything."""
    with torch.no_grad():
        for convolution in block.convolutions:
            # Positive weights and inputs: no ReLU closes, no two paths cancel.
            convolution.weight.uniform_(0.1, 1)
            convolution.bias.zero_()
    z = torch.ones(1, *grid.shape, 2, dtype=torch.float64, requires_grad=True)
    middle = tuple(size // 2 for size in grid.shape)
    block.double()(z, grid)[(0, *middle, 0)].backward()
    others = [m for m in range(grid.num_axes + 1) if m != axis]
    touched = z.grad[0].abs().amax(others).nonzero().flatten() - middle[axis]
    return touched.tolist()


@pytest.mark.parametrize(
    ("dilations", "radius"), [((1, 3, 8, 3, 1), 16), ((1, 2, 4, 2, 1), 10), ((2,), 2), ((1, 1, 1), 3)]
)
@pytest.mark.parametrize("num_axes", [1, 2])
def test_the_receptive_field_is_the_sum_of_the_dilations(dilations, radius, num_axes):
    grid = Grid((2 * radius + 5,) * num_axes, 1.0, True)
    block = Block(2, 3, dilations, ("periodic",) * num_axes)
    offsets = reach(block, grid, num_axes - 1)
    assert block.receptive_radius == radius
    assert (min(offsets), max(offsets)) == (-radius, radius)


@pytest.mark.parametrize(("num_axes", "radius"), [(1, 16), (2, 16), (3, 10), (4, 10)])
def test_the_default_dilations_are_the_paper_s(num_axes, radius):
    problem = Problem("p", Grid((8,) * num_axes, 1.0, True), (Field("u"),))
    model = Model(Config(dim=8), problem)
    assert [block.receptive_radius for block in model.blocks] == [radius] * 3
    assert len(model.norms) == 2


@pytest.mark.parametrize(("boundary", "first"), [("zero", 2.0), ("reflect", 3.0)])
def test_walls_are_padded_as_the_problem_says(boundary, first):
    """A summing kernel on a field of ones counts the points it sees: beyond a wall none, or mirrors."""
    grid = Grid((6, 6), 1.0, (False, True))
    problem = Problem("channel", grid, (Field("u"),), boundary=boundary)
    block = Block(1, 3, (1,), problem.padding)
    with torch.no_grad():
        block.convolutions[0].weight.fill_(1 / 3)
        block.convolutions[0].bias.zero_()
    branch = block(torch.ones(1, 6, 6, 1), grid) - 1
    expected = torch.tensor([first, 3, 3, 3, 3, first])
    torch.testing.assert_close(branch[0, :, 0, 0], expected)
    torch.testing.assert_close(branch[0, 0, :, 0], torch.full((6,), first))
