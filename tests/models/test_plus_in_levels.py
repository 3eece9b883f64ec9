"""`factformer_plus` as a U of grids: a coarse level inside the backbone."""

import math
from itertools import pairwise

import pytest
import torch

from factformer import Field, Grid, Problem, build_surrogate
from factformer.errors import UserError
from factformer.nn.convolution import pad
from factformer.surrogate import model_config

SMALL = {"dim": 16, "heads": 2, "head_dim": 8, "kernel_dim": 8, "boundary_block": False}
SIZES = {**SMALL, "fourier_std": 1.0, "rotary_scale": 8.0}


def plus(grid, **options):
    torch.manual_seed(0)
    boundary = "periodic" if all(grid.periodic) else "reflect"
    problem = Problem("test", grid, (Field("u"),), num_context_frames=1, boundary=boundary)
    return build_surrogate(problem, "factformer_plus", marching_steps=1, **{**SIZES, **options})


def test_one_level_is_the_model_as_it_was():
    grid = Grid((8, 6), 1.0, True)
    one, two = plus(grid, depth=3), plus(grid, depth=3, levels=2)
    assert {name.split(".")[0] for name, _ in one.backbone.named_modules() if name} == {"layers"}
    added = set(two.state_dict()) - set(one.state_dict())
    assert {name.split(".")[1] for name in added} == {"descents", "ascents"}
    assert all(
        torch.equal(two.state_dict()[name], value)
        for name, value in one.backbone.layers.state_dict(prefix="backbone.layers.").items()
    ), "the same seed gives the layers the same weights"
    config = model_config("factformer_plus")
    assert config.fingerprint() == config.replace(levels=1).fingerprint() != config.replace(levels=2).fingerprint()


@pytest.mark.parametrize(
    ("depth", "levels", "expected"),
    [(4, 1, [0, 0, 0, 0]), (4, 2, [0, 1, 1, 0]), (6, 2, [0, 1, 1, 1, 1, 0]), (6, 3, [0, 1, 2, 2, 1, 0]), (1, 1, [0])],
)
def test_layers_in_the_middle_work_on_the_coarsest_level(depth, levels, expected):
    backbone = plus(Grid((16, 12), 1.0, True), depth=depth, levels=levels).backbone
    seen = []
    for layer in backbone.layers:
        layer.register_forward_pre_hook(lambda _, given: seen.append(given[1].shape))
    backbone(torch.randn(1, 16, 12, 16), Grid((16, 12), 1.0, True))
    assert seen == [(16 >> level, 12 >> level) for level in expected]


def test_too_few_layers_are_named():
    with pytest.raises(UserError, match=r"model\.levels=3 needs model\.depth=5 or more, it is 4"):
        plus(Grid(16, 1.0, True), depth=4, levels=3)


def by_hand(convolution, u, padding):
    """One weight after the other."""
    widths = [size // 2 for size in convolution.weight.shape[2:]]
    padded, total = pad(u, widths, padding), convolution.bias.expand_as(u).clone()
    for place in torch.cartesian_prod(*(torch.arange(2 * w + 1) for w in widths)).reshape(-1, len(widths)).tolist():
        part = padded
        for m, first in enumerate(place):
            part = part.narrow(m + 1, first, u.shape[m + 1])
        total = total + convolution.weight[(slice(None), 0, *place)] * part
    return total


@pytest.mark.parametrize(
    "grid",
    [
        Grid(9, 1.0, True),
        Grid((7, 6), (1.0, 2.0), (False, True)),
        Grid((3, 4, 5), 1.0, False, "cells"),
    ],
    ids=["odd line", "walled plane", "box of cells"],
)
def test_two_levels_are_what_the_formula_says(grid):
    """``z ← z + R layers( D z )`` between the first layer and the last, with ``D`` and ``R`` written out."""
    surrogate = plus(grid, depth=3, levels=2).double()
    backbone, padding = surrogate.backbone, surrogate.problem.padding
    z = torch.randn(2, *grid.shape, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    first, middle, last = backbone.layers
    fine = first(z, grid)
    down = by_hand(backbone.descents[0].convolution, fine, padding)
    for axis in range(1, grid.num_axes + 1):
        down = down.index_select(axis, torch.arange(0, down.shape[axis], 2))
    below = middle(backbone.descents[0].map(down), backbone.levels.of(grid)[1])
    for axis, size in enumerate(grid.shape, start=1):
        below = below.index_select(axis, torch.arange(size) // 2)
    up = backbone.ascents[0].map(by_hand(backbone.ascents[0].convolution, below, padding))
    torch.testing.assert_close(backbone(z, grid), last(fine + up, grid), rtol=1e-9, atol=1e-9)


@torch.no_grad()
def test_answers_converge_as_the_grid_is_refined():
    """At least first order: nearest points lead back from the coarse level."""
    home = Grid((24, 24), 1.0, True)
    surrogate = plus(home, depth=3, levels=2).double()
    answers = []
    for factor in (1, 2, 4):
        grid = home.resample(24 * factor)
        x, y = (2 * math.pi * grid.mesh()).unbind(-1)
        u = torch.sin(x + 0.3) * torch.cos(2 * y) + 0.5 * torch.cos(x - y)
        answers.append(surrogate(u[None, None, ..., None])[:, :, ::factor, ::factor])
    spread = (answers[-1] - answers[-1].mean()).norm()
    first, second = (float((b - a).norm() / spread) for a, b in pairwise(answers))
    assert first < 0.02
    assert second < 0.3 * first
