"""The same weights on the same smooth function at S, 2S and 4S points: who gives the same answer.

Models whose layers are integrals over the domain converge, and convolutions that keep their reach in space; one over
neighbouring points means something else on another grid.
"""

import copy
import math
from itertools import pairwise

import pytest
import torch
from torch import nn

from factformer import catalog
from factformer.grid import Grid
from factformer.nn.convolution import Convolution
from factformer.problem import Field, Problem
from factformer.surrogate import Surrogate, build_surrogate

SIZES = {
    "dim": 32,
    "depth": 2,
    "heads": 2,
    "head_dim": 8,
    "kernel_dim": 16,
    "modes": 6,
    "fourier_std": 1.0,
    "rotary_scale": 8.0,  # resolved at the coarsest grid
    "num_slices": 8,
    "multipliers": (1, 2),
    "width": 16,
    "num_halvings": 1,
    "num_levels": 2,
    "layer_scale": 0.5,
}
PERIODIC = Problem("torus", Grid((24, 24), 1.0, True), (Field("u"),))
WALLS = Problem("box", Grid((24, 24), 1.0, False, "cells"), (Field("u"),), boundary="reflect")


def build(model: str, problem: Problem, **options) -> Surrogate:
    torch.manual_seed(0)
    known = catalog.find("models", model).Config.model_fields
    sizes = {key: value for key, value in SIZES.items() if key in known}
    return build_surrogate(problem, model, marching_steps=1, boundary_block=False, **sizes, **options)


def smooth(grid: Grid) -> torch.Tensor:
    x, y = grid.mesh(dtype=torch.float32).unbind(-1)
    wave = 2 * math.pi if all(grid.periodic) else 2.0
    u = torch.sin(wave * x + 0.3) * torch.cos(2 * wave * y) + 0.5 * torch.cos(wave * (x - y))
    return u[None, None, ..., None]


@torch.no_grad()
def changes(surrogate: Surrogate, ratio: int) -> tuple[float, float]:
    """How much the answer at the coarsest points changes from S to ``ratio``·S, and on to ``ratio``²·S.

    Cell centres of the coarse grid are among those of the fine one for an odd ratio.
    """
    answers = []
    for factor in (1, ratio, ratio**2):
        grid = surrogate.problem.grid.resample([24 * factor] * 2)
        first = 0 if all(grid.periodic) else factor // 2
        answers.append(surrogate(smooth(grid))[:, :, first::factor, first::factor])
    spread = (answers[-1] - answers[-1].mean()).norm()
    first, second = ((a - b).norm() / spread for a, b in pairwise(answers))
    return float(first), float(second)


@pytest.mark.parametrize(
    ("model", "limit"),
    [
        ("fno", 1e-4),
        ("ffno", 2e-3),
        ("galerkin_transformer", 2e-3),
        ("factformer", 0.05),
        ("linear_attention", 0.05),
        ("transolver", 0.05),
    ],
)
def test_integral_models_give_nearly_the_same_answer(model, limit):
    first, second = changes(build(model, PERIODIC), 2)
    assert first < limit
    # At least first order: the paper's rotary kernel jumps at the seam of a periodic axis.
    assert second < 0.6 * first + 1e-5


@pytest.mark.parametrize("model", ["factformer", "factformer_plus", "linear_attention", "axial_transformer"])
def test_attention_with_periodic_encodings_converges_spectrally(model):
    first, second = changes(build(model, PERIODIC, rotary="periodic", fourier="periodic"), 2)
    assert first < 1e-4
    assert second < 1e-4


@pytest.mark.parametrize("model", ["fno", "ffno", "galerkin_transformer", "factformer", "linear_attention"])
def test_so_they_do_between_walls(model):
    first, second = changes(build(model, WALLS), 3)
    assert first < 0.05
    assert second < 0.2 * first + 1e-5  # second order: a ninth


@pytest.mark.parametrize("size", [30, 36, 42])
def test_local_branches_keep_their_reach_between_the_points(size):
    """Grids without a common point but the first: both answers are held against that of the finest grid."""
    surrogate = build("factformer_plus", PERIODIC)
    kept, lost = copy.deepcopy(surrogate), copy.deepcopy(surrogate)
    for module in lost.modules():
        if isinstance(module, Convolution):
            module.home = None
    grid = PERIODIC.grid.resample(size)
    with torch.no_grad():
        fine = surrogate(smooth(PERIODIC.grid.resample(size * 4)))[:, :, ::4, ::4]
        errors = [float((s(smooth(grid)) - fine).norm() / fine.norm()) for s in (kept, lost)]
    assert errors[0] < 0.01
    assert errors[0] < 0.1 * errors[1]


@pytest.mark.parametrize("problem", [PERIODIC, WALLS], ids=["periodic", "walls"])
def test_the_dilated_network_does_not(problem):
    surrogate = build("dilated_resnet", problem)
    for module in surrogate.modules():
        if isinstance(module, Convolution):
            # Fresh weights are so small that the branch hardly acts; give them a signal's variance.
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
    first, _ = changes(surrogate, 3)
    assert first > 0.3


@pytest.mark.parametrize("model", ["unet", "convnext_unet", "swin_transformer"])
def test_nor_do_networks_of_levels(model):
    """Their layers count points, and a level is every second one."""
    first, _ = changes(build(model, PERIODIC), 3)
    assert first > 0.1
