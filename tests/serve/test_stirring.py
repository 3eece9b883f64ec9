"""Disturbances: where they are, how large, and what they leave alone."""

from __future__ import annotations

import pytest
import torch
from serve_bundles import everything, flow, small_surrogate

from factformer import Field, Grid, Problem
from factformer.report.planes import components, middle_planes
from factformer.serve.stirring import Bell, Stroke, disturbance


def box(periodic):
    grid = Grid((16, 20, 12), (1.0, 2.0, 1.0), periodic, "nodes" if periodic else "cells")
    boundary = "periodic" if periodic else "zero"
    return Problem("box", grid, (Field("velocity", 3),), num_context_frames=1, boundary=boundary)


@pytest.mark.parametrize("along", [(), (1.0, 0.5)])
@pytest.mark.parametrize("plane", [0, 1, 2])
def test_a_stirred_velocity_has_no_divergence(plane, along):
    surrogate = small_surrogate(box(True))
    grid = surrogate.problem.grid
    stroke = Stroke((0.1, 0.9), along, 0.1, 2.0)
    shown = middle_planes(grid.shape)[plane]
    velocity = disturbance(surrogate, grid, components(surrogate.problem.state)[0], shown, stroke)
    divergence = sum(
        (velocity[..., m].roll(-1, m) - velocity[..., m].roll(1, m)) / (2 * grid.extent[m] / grid.shape[m])
        for m in range(3)
    )
    assert float(divergence.abs().max()) < 1e-4 * float(velocity.abs().max())
    assert float(velocity.norm(dim=-1).max()) == pytest.approx(2.0)


def test_a_jet_points_along_its_stroke_and_rests_at_walls():
    surrogate = small_surrogate(box(False))
    grid = surrogate.problem.grid
    plane = middle_planes(grid.shape)[0]  # of the axes 1 and 2
    stroke = Stroke((0.5, 0.5), (3.0, 4.0), 0.25)
    velocity = disturbance(surrogate, grid, components(surrogate.problem.state)[0], plane, stroke)
    at = velocity[8, 9:11, 5:7].mean((0, 1))
    assert at[0] == 0
    assert float(at[2] / at[1]) == pytest.approx(4 / 3, rel=0.05)
    fine = Grid((64, 64), 1.0, False, "cells")
    right, up = Bell(fine, middle_planes(fine.shape)[0], Stroke((0.5, 0.02), (1.0, 0.0), 0.1)).flow()
    assert float(right[:, 0].abs().max()) < 0.2 and float(up[:, 0].abs().max()) < 0.02


def test_scalars_of_zero_mean_keep_their_mean():
    surrogate = flow()
    grid = surrogate.problem.grid
    component, plane = components(surrogate.problem.state)[0], middle_planes(grid.shape)[0]
    pair = disturbance(surrogate, grid, component, plane, Stroke((0.5, 0.5), (1.0, 0.0), 0.1))
    assert abs(float(pair.mean())) < 1e-7
    # A push to the right: it turns clockwise above and against the clock below; vorticity is ∂u₂/∂x₁ - ∂u₁/∂x₂.
    assert float(pair[12, 15, 0]) > 0.5 and float(pair[12, 9, 0]) < -0.5
    swirl = disturbance(surrogate, grid, component, plane, Stroke((0.5, 0.5), (), 0.1, -1.0))
    assert float(swirl[12, 12, 0]) == pytest.approx(-1, abs=0.15)


def test_other_scalars_get_a_bump():
    surrogate = everything()
    surrogate.normalizer.state_mean[2] = 5.0
    grid = surrogate.problem.grid
    part, plane = components(surrogate.problem.state)[2], middle_planes(grid.shape)[0]
    bump = disturbance(surrogate, grid, part, plane, Stroke((0.5, 0.5), (1.0, 1.0), 0.2))
    assert float(bump[..., 2].min()) >= 0 and float(bump[..., 2].max()) > 0.8
    assert float(bump[..., :2].abs().max()) == 0


def test_a_stroke_goes_the_short_way_round():
    grid = Grid((32,), 4.0, periodic=True)
    bell = Bell(grid, middle_planes((32,))[0], Stroke((0.0,), (), 0.1)).values
    assert torch.allclose(bell, bell.flip(0), atol=1e-6)  # the edge lies between two points
