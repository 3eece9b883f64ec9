from __future__ import annotations

import numpy as np
import pytest

from factformer.errors import UserError
from factformer.grid import Grid
from factformer.problem import Field
from factformer.report.planes import Plane, cell_edges, color_limits, components, difference_limits, middle_planes


def test_components_name_scalars_plainly_and_vectors_by_axis():
    parts = components([Field("pressure"), Field("velocity", 3)])
    assert [p.label for p in parts] == ["pressure", "velocity₁", "velocity₂", "velocity₃"]
    assert [p.channel for p in parts] == [0, 1, 2, 3]
    assert {p.group for p in parts[1:]} == {"velocity"}


@pytest.mark.parametrize(("num_axes", "count"), [(1, 1), (2, 1), (3, 3), (4, 6)])
def test_middle_planes_of_every_pair(num_axes, count):
    planes = middle_planes((4, 5, 6, 7)[:num_axes])
    assert len(planes) == len(set(planes)) == count
    assert planes[0].axes == tuple(range(num_axes))[-2:]


def test_plane_cuts_the_middle_and_puts_the_first_axis_to_the_right():
    frames = np.random.default_rng(0).normal(size=(2, 4, 5, 6))
    plane = Plane((0, 2), ((1, 2),))
    picture = plane.take(frames)
    assert picture.shape == (2, 6, 4)
    assert picture[1, 5, 3] == frames[1, 3, 2, 5]
    assert plane.label() == "x₁–x₃ plane, x₂ = middle"
    assert plane.label([[0], [0, 0.5, 1.25], [0]]) == "x₁–x₃ plane, x₂ = 1.25"


def test_line_keeps_its_values():
    frames = np.arange(12.0).reshape(3, 4)
    np.testing.assert_array_equal(middle_planes((4,))[0].take(frames)[:, 0], frames)


@pytest.mark.parametrize(
    ("grid", "edges"),
    [
        (None, [0, 1, 2, 3, 4]),
        (Grid((4,), 2.0, True), [0, 0.5, 1, 1.5, 2]),
        (Grid((4,), 2.0, False, "cells"), [0, 0.5, 1, 1.5, 2]),
        (Grid.from_axes([[-1, 0, 1, 2]]), [-1, -0.25, 0.5, 1.25, 2]),
        (Grid.from_axes([[0, 1, 3, 7]]), [0, 0.5, 2, 5, 7]),
        (Grid.from_axes([[0, 1, 3, 6]], True, 7.0), [-0.5, 0.5, 2, 4.5, 6.5]),
        (Grid.from_axes([[0, 1, 2, 3]], True, 6.0), [-1.5, 0.5, 1.5, 2.5, 4.5]),
    ],
)
def test_cells_fill_the_box_and_uneven_points_lie_in_theirs(grid, edges):
    np.testing.assert_allclose(cell_edges(0, (4,), grid), edges)


def test_signed_fields_get_limits_about_zero_and_others_their_range():
    signed = color_limits(np.linspace(-1, 3, 1001))
    assert signed.signed
    assert signed.low == -signed.high
    assert signed.high == pytest.approx(3, abs=0.02)
    plain = color_limits(np.linspace(2, 3, 1001))
    assert not plain.signed
    assert (plain.low, plain.high) == pytest.approx((2, 3), abs=0.01)
    nearly = color_limits(np.linspace(-0.01, 3, 1001))
    assert not nearly.signed


def test_limits_ignore_what_is_not_finite_and_survive_constants():
    limits = color_limits(np.array([np.nan, np.inf, 1.0, 2.0]), percentile=100)
    assert (limits.low, limits.high) == (1, 2)
    flat = color_limits(np.full(5, 7.0))
    assert flat.high > flat.low
    zero = difference_limits(np.zeros(4))
    assert zero.high > 0 > zero.low
    with pytest.raises(UserError, match="no finite value"):
        color_limits(np.array([np.nan]))
