"""Grids: coordinates, quadrature, wavenumbers, and what is refused."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from factformer import Grid
from factformer.data.formats.well import grid_from_axes
from factformer.errors import UserError


def stretched(size):
    x = torch.linspace(0, 1, size, dtype=torch.float64)
    return (torch.exp(2 * x) - 1) / (math.e**2 - 1) * 1.7


def make(kind, size):
    if kind == "periodic":
        return Grid(size, 1.7, True)
    if kind in ("nodes", "cells"):
        return Grid(size, 1.7, False, kind)
    if kind == "stretched":
        return Grid.from_axes([stretched(size)])
    return Grid.from_axes([stretched(size + 1)[:-1]], True, 1.7)


KINDS = ["periodic", "nodes", "cells", "stretched", "stretched periodic"]


def test_coordinates_of_each_kind():
    assert Grid(4, 2.0, True).axis(0).tolist() == [0.0, 0.5, 1.0, 1.5]
    assert Grid(5, 2.0, False).axis(0).tolist() == [0.0, 0.5, 1.0, 1.5, 2.0]
    assert Grid(4, 2.0, False, "cells").axis(0).tolist() == [0.25, 0.75, 1.25, 1.75]
    assert Grid.from_axes([[1.0, 1.5, 3.0]]).axis(0).tolist() == [1.0, 1.5, 3.0]
    mesh = Grid((4, 3), (2.0, 1.0), (True, False)).mesh()
    assert mesh.shape == (4, 3, 2)
    assert mesh[1, 2].tolist() == [0.5, 1.0]


def test_spacing_is_the_distance_of_neighbours():
    for grid in (Grid(4, 2.0, True), Grid(5, 2.0, False), Grid(4, 2.0, False, "cells")):
        assert grid.spacing(0) == 0.5
    assert Grid.from_axes([[1.0, 1.5, 3.0]]).spacing(0) == 1.0


def test_given_coordinates_can_be_even():
    def even(axis, *period):
        return Grid.from_axes([axis], bool(period), *period).is_even(0)

    assert Grid(4, 2.0, False, "cells").is_even(0)
    assert even(torch.linspace(-1, 1, 2048))  # in float32, as files keep them
    assert not even(stretched(16))
    assert even([1.0, 2.0, 3.0], 3.0)
    far = np.float32(5e5 + 3.3 * np.arange(64))  # a metre in a map: float32 keeps 3 cm of it
    assert even(far) and even(far, 64 * 3.3)
    assert not even(5e5 + 3.3 * np.arange(64) + 0.1 * np.sin(np.arange(64)))
    assert not even(1e6 + np.linspace(0, 1, 64) ** 2)  # in float64, which keeps them apart
    assert not even([1.0, 2.0, 3.0], 4.0)  # two steps from the last point around to the first


@pytest.mark.parametrize("kind", KINDS)
def test_weights_are_exact_for_constants_and_second_order(kind):
    errors = []
    for size in (16, 32, 64):
        grid = make(kind, size)
        x, w = grid.axis(0), grid.weights(0)
        assert abs(float(w.sum()) - 1) < 1e-14
        assert (w > 0).all()
        if "periodic" in kind:
            function = torch.exp(torch.sin(2 * math.pi * x / 1.7))
            exact = 1.2660658777520084  # I_0(1)
        else:
            function = torch.exp(x) * torch.cos(2 * x)
            a = 1.7
            exact = ((math.exp(a) * (math.cos(2 * a) + 2 * math.sin(2 * a)) - 1) / 5) / a
        errors.append(abs(float((w * function).sum()) - exact))
    if kind == "periodic":
        assert errors[0] < 1e-12
    else:
        assert math.log2(errors[0] / errors[1]) > 1.8
        assert math.log2(errors[1] / errors[2]) > 1.8


def test_equal_weights_where_the_paper_takes_a_mean():
    for grid in (Grid(6, 1.0, True), Grid(6, 1.0, False, "cells")):
        assert torch.equal(grid.weights(0), torch.full((6,), 1 / 6, dtype=torch.float64))
        assert grid.equal_weights(0)
    assert not Grid(6, 1.0, False).equal_weights(0)


@given(st.lists(st.integers(2, 9), min_size=1, max_size=4), st.floats(0.1, 50))
@settings(max_examples=40, deadline=None)
def test_any_grid_round_trips_and_integrates_one(shape, length):
    grid = Grid(shape, length, [m % 2 == 0 for m in range(len(shape))])
    assert Grid.from_dict(grid.to_dict()) == grid
    assert hash(Grid.from_dict(grid.to_dict())) == hash(grid)
    assert all(abs(float(grid.weights(m).sum()) - 1) < 1e-12 for m in range(grid.num_axes))


def test_wavenumbers():
    grid = Grid((4, 5), (2 * math.pi, math.pi), True)
    assert grid.wavenumbers(0).tolist() == [0.0, 1.0, -2.0, -1.0]
    assert grid.wavenumbers(1, real=True).tolist() == pytest.approx([0.0, 2.0, 4.0])
    with pytest.raises(ValueError, match="no wavenumbers"):
        Grid(4, 1.0, False).wavenumbers(0)


def test_resample_keeps_the_box():
    grid = Grid((8, 9), (1.0, 2.0), (True, False)).resample((16, 17))
    assert grid.shape == (16, 17)
    assert grid.axis(1)[-1] == 2.0
    with pytest.raises(ValueError, match="uneven coordinates"):
        Grid.from_axes([[0.0, 0.1, 1.0]]).resample(5)


@pytest.mark.parametrize(
    ("make_grid", "words"),
    [
        (lambda: Grid((2,) * 5, 1.0, True), "1 to 4 axes"),
        (lambda: Grid((8, 8), (1.0,), True), "extent has 1 entries"),
        (lambda: Grid(8, -1.0, True), "positive length"),
        (lambda: Grid(1, 1.0, True), "at least 2 points"),
        (lambda: Grid(8, 1.0, False, "corners"), "points of axis 0"),
        (lambda: Grid.from_axes([[0.0, 1.0, 0.5]]), "strictly increasing"),
        (lambda: Grid.from_axes([[0.0, float("nan"), 1.0]]), "strictly increasing"),
        (lambda: Grid.from_axes([[3.0, 2.0, 1.0]]), "these decrease: turn them around"),
        (lambda: Grid(3, -2.0, False, coordinates=[[3.0, 2.0, 1.0]]), "these decrease: turn them around"),
        (lambda: Grid.from_axes([[0.0, 0.5]], True), "period"),
        (lambda: Grid.from_axes([[0.0, 0.5]], True, 0.5), "period"),
        (lambda: Grid.from_axes([[0.0, 1.0, 2.0]], extent=10), "extent says 10"),
    ],
)
def test_bad_grids_are_named(make_grid, words):
    with pytest.raises(ValueError, match=words):
        make_grid()


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (((10.5, 10), 1.0, True), {}, "whole number of points"),
        ((10, 1.0, "no"), {}, "true or false"),
        ((3, 1.0, False), {"coordinates": [[3.0, 2.0, 1.0]]}, "strictly increasing"),
        ((3, 1.0, False), {"coordinates": [[0.0, 1.0, float("inf")]]}, "finite numbers"),
        (((3, 3), 1.0, False), {"coordinates": [[0.0, 0.5, 1.0]]}, "coordinates has 1 entries"),
        ((3, 0.5, True), {"coordinates": [[0.0, 1.0, 2.0]]}, "larger than 2, got 0.5"),
        ((3, 10.0, False), {"coordinates": [[0.0, 1.0, 2.0]]}, "length of 2, but extent says 10"),
    ],
)
def test_what_is_no_grid_is_named(arguments, options, message):
    with pytest.raises(UserError, match=message):
        Grid(*arguments, **options)


def test_numbers_of_numpy_are_numbers():
    assert Grid(np.int64(10), np.float64(2.0), np.True_) == Grid(10, 2.0, True)


def test_every_other_point_is_a_grid_of_the_same_box():
    grid = Grid((13, 12), (1.0, 2.0), (False, True))
    coarse = grid.every(3)
    assert coarse == Grid((5, 4), (1.0, 2.0), (False, True))
    for m in range(2):
        torch.testing.assert_close(coarse.axis(m), grid.axis(m)[::3])
    assert grid.every(1) == grid
    for bad, step in ((grid, 5), (Grid(12, 1.0, False, "cells"), 2), (Grid.from_axes([[0.0, 0.2, 1.0]]), 2)):
        with pytest.raises(UserError, match="is no grid of the same box"):
            bad.every(step)


def test_even_axes_are_resampled_where_they_lie():
    grid = Grid.from_axes([torch.linspace(-1, 1, 16), [0.5, 1.0, 1.5, 2.0]], (False, True), (2.0, 2.0))
    fine = grid.resample((31, 8))
    torch.testing.assert_close(fine.axis(0), torch.linspace(-1, 1, 31, dtype=torch.float64))
    torch.testing.assert_close(fine.axis(1), 0.5 + 0.25 * torch.arange(8, dtype=torch.float64))
    assert fine.extent == grid.extent and grid.resample(grid.shape) == grid
    coarse = Grid.from_axes([torch.linspace(-1, 1, 16)]).every(3)
    torch.testing.assert_close(coarse.axis(0), torch.linspace(-1, 1, 16, dtype=torch.float64)[::3])


@pytest.mark.parametrize("periodic", [True, False])
def test_coordinates_of_a_file_that_decrease_are_named(periodic):
    with pytest.raises(UserError, match=r"axis 0 of flow\.hdf5 must be strictly increasing and these decrease"):
        grid_from_axes([np.linspace(1, 0, 8)], periodic, "flow.hdf5")
