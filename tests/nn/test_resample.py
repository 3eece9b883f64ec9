"""Moving between grids: what interpolation and restriction keep exactly, and how fast they converge."""

import math

import pytest
import torch

from factformer.grid import Grid
from factformer.nn.resample import apply_matrices, interpolation_matrix, restriction_matrix

PAIRS = [
    (Grid(9, 1.0, False), Grid(20, 1.0, False)),
    (Grid(8, 1.0, False, "cells"), Grid(21, 1.0, False, "cells")),
    (Grid(7, 2.0, True), Grid(15, 2.0, True)),
    (Grid.from_axes([[0.0, 0.2, 0.3, 1.0]]), Grid(11, 1.0, False)),
]
NAMES = ["nodes", "cells", "periodic", "stretched"]


@pytest.mark.parametrize(("coarse", "fine"), PAIRS, ids=NAMES)
def test_constants_are_kept_both_ways(coarse, fine):
    for matrix in (interpolation_matrix(coarse, fine, 0), restriction_matrix(fine, coarse, 0)):
        torch.testing.assert_close(matrix.sum(1), torch.ones(len(matrix), dtype=torch.float64))


@pytest.mark.parametrize(("coarse", "fine"), [PAIRS[0], PAIRS[3]], ids=["nodes", "stretched"])
def test_interpolation_is_exact_for_linear_functions(coarse, fine):
    torch.testing.assert_close(interpolation_matrix(coarse, fine, 0) @ coarse.axis(0), fine.axis(0))


def test_periodic_interpolation_wraps_around():
    coarse, fine = Grid(4, 1.0, True), Grid(8, 1.0, True)
    values = torch.tensor([1.0, 2.0, 5.0, 9.0], dtype=torch.float64)
    expected = [1.0, 1.5, 2.0, 3.5, 5.0, 7.0, 9.0, 5.0]
    assert (interpolation_matrix(coarse, fine, 0) @ values).tolist() == expected


def test_restriction_is_the_adjoint_of_interpolation():
    coarse, fine = Grid(6, 1.0, True), Grid(18, 1.0, True)
    up, down = interpolation_matrix(coarse, fine, 0), restriction_matrix(fine, coarse, 0)
    torch.testing.assert_close(down / 6, up.T / 18)


def test_restriction_to_a_finer_grid_interpolates():
    coarse, fine = PAIRS[1]
    assert torch.equal(restriction_matrix(coarse, fine, 0), interpolation_matrix(coarse, fine, 0))


def test_there_and_back_converges_at_second_order():
    errors = []
    fine = Grid((96, 97), (2 * math.pi, 1.0), (True, False))
    mesh = fine.mesh()
    u = (torch.sin(mesh[..., 0]) * torch.cos(math.pi * mesh[..., 1]))[None, ..., None]
    for size in (8, 16, 32):
        coarse = fine.resample((size, size + 1))
        down = tuple(restriction_matrix(fine, coarse, m) for m in range(2))
        up = tuple(interpolation_matrix(coarse, fine, m) for m in range(2))
        errors.append((apply_matrices(apply_matrices(u, down), up) - u).square().mean().sqrt())
    assert errors[0] / errors[1] > 3
    assert errors[1] / errors[2] > 3
