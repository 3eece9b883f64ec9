"""Semi-Lagrangian transport: exactness, bounds, and a rigid rotation."""

import itertools
import math

import pytest
import torch

from factformer.grid import Grid
from factformer.numerics.advection import interpolate, semi_lagrangian, semi_lagrangian_zero_outside


@pytest.mark.parametrize("shape", [(7,), (6, 5), (4, 5, 6)])
def test_interpolation_is_exact_for_multilinear_fields(shape: tuple[int, ...]) -> None:
    axes = [torch.arange(size, dtype=torch.float64) for size in shape]
    mesh = torch.meshgrid(*axes, indexing="ij")

    def field(x: tuple[torch.Tensor, ...]) -> torch.Tensor:
        result = torch.ones_like(x[0])
        for m, coordinate in enumerate(x):
            result = result * (1 + (m + 1) * coordinate)
        return result

    targets = [torch.rand(2, 9, dtype=torch.float64) * (size - 1) for size in shape]
    values = field(mesh).expand(2, *shape)
    torch.testing.assert_close(interpolate(values, targets), field(tuple(targets)))


def test_points_that_do_not_move_keep_their_values_exactly() -> None:
    values = torch.randn(2, 5, 6, 7)
    still = [torch.zeros_like(values)] * 3
    assert torch.equal(semi_lagrangian(values, still), values)
    assert torch.equal(semi_lagrangian_zero_outside(values, still), values)


def test_whole_steps_are_shifts_and_the_ends_hold() -> None:
    values = torch.arange(1.0, 7.0)[None]
    by_two = [torch.full_like(values, 2.0)]
    assert semi_lagrangian(values, by_two).tolist() == [[1.0, 1.0, 1.0, 2.0, 3.0, 4.0]]
    assert semi_lagrangian_zero_outside(values, by_two).tolist() == [[0.0, 0.0, 1.0, 2.0, 3.0, 4.0]]
    back = [torch.full_like(values, -1.5)]
    assert semi_lagrangian_zero_outside(values, back).tolist() == [[2.5, 3.5, 4.5, 5.5, 3.0, 0.0]]


@pytest.mark.parametrize("num_axes", [1, 2, 3])
def test_values_stay_between_their_extremes(num_axes: int) -> None:
    values = torch.rand(3, *[8] * num_axes)
    displacement = [3 * torch.randn_like(values) for _ in range(num_axes)]
    moved = semi_lagrangian(values, displacement)
    axes = tuple(range(1, num_axes + 1))
    assert (moved.amax(axes) <= values.amax(axes)).all()
    assert (moved.amin(axes) >= values.amin(axes)).all()


def test_rigid_rotation_of_a_blob_converges() -> None:
    """A quarter turn about the centre; with dt in proportion to h the error falls at first order at least."""
    errors = []
    for size in (32, 64, 128):
        grid = Grid((size, size), 1.0, periodic=False, points="cells")
        x = grid.mesh() - 0.5

        def blob(angle: float, x: torch.Tensor = x) -> torch.Tensor:
            centre = torch.tensor([0.2 * math.cos(angle), 0.2 * math.sin(angle)], dtype=torch.float64)
            return torch.exp(-(x - centre).square().sum(-1) / 0.02)[None]

        steps = size // 2
        turn = 0.5 * math.pi / steps * size
        displacement = [-turn * x[None, ..., 1], turn * x[None, ..., 0]]
        density = blob(0.0)
        for _ in range(steps):
            density = semi_lagrangian(density, displacement)
        errors.append(float((density - blob(0.5 * math.pi)).norm() / blob(0.0).norm()))
    assert errors[-1] < 0.08
    assert min(math.log2(a / b) for a, b in itertools.pairwise(errors)) > 0.75, errors


def test_a_position_that_is_no_number_gives_none_and_no_error() -> None:
    values = torch.arange(12.0).reshape(1, 3, 4)
    shift = torch.zeros(1, 3, 4)
    shift[0, 1, 2], shift[0, 2, 0] = torch.nan, torch.inf
    carried = semi_lagrangian(values, [shift, torch.zeros_like(shift)])
    assert carried.isnan().nonzero().tolist() == [[0, 1, 2]]
    assert carried[0, 2, 0] == values[0, 0, 0]
