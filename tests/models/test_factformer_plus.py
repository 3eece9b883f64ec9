"""Every addition to FactFormer is a switch; with all of them off, FactFormer is what remains."""

import math

import pytest
import torch

from factformer.grid import Grid
from factformer.problem import Field, Problem
from factformer.surrogate import Surrogate, build_surrogate

PROBLEM = Problem("torus", Grid((8, 9), 2 * math.pi, True), (Field("u"),), num_context_frames=2)
SMALL = {"dim": 16, "depth": 2, "heads": 2, "head_dim": 8, "kernel_dim": 8}
OFF = {"local_branch": False, "rotary": "paper", "fourier": "paper", "residual": False}


def plus(problem: Problem = PROBLEM, **options) -> Surrogate:
    torch.manual_seed(0)
    return build_surrogate(problem, "factformer_plus", **{**SMALL, **options})


def frames(problem: Problem = PROBLEM) -> torch.Tensor:
    shape = (2, problem.num_context_frames, *problem.grid.shape, 1)
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


def test_without_its_additions_it_is_factformer():
    bare = plus(**OFF)
    torch.manual_seed(0)
    plain = build_surrogate(PROBLEM, "factformer", **SMALL)
    assert bare.num_parameters == plain.num_parameters
    assert torch.equal(bare(frames()), plain(frames()))


@pytest.mark.parametrize(
    ("switch", "value"),
    [
        ("local_branch", False),
        ("local_kernel", 3),
        ("local_dilations", (2,)),
        ("feed_forward", 1),
        ("rotary", "paper"),
        ("fourier", "paper"),
        ("residual", False),
    ],
)
def test_every_switch_changes_the_prediction(switch, value):
    everything, without = plus(), plus(**{switch: value})
    shared = {
        name: tensor
        for name, tensor in everything.state_dict().items()
        if name in without.state_dict() and without.state_dict()[name].shape == tensor.shape
    }
    without.load_state_dict(shared, strict=False)
    difference = (everything(frames()) - without(frames())).norm() / everything(frames()).norm()
    assert difference > 1e-4


def test_the_local_branch_sees_neighbours_only():
    branch = plus(local_kernel=3).backbone.layers[0].local
    u = torch.randn(1, 8, 9, 16)
    changed = u.clone()
    changed[:, 4, 4] += 1 + torch.randn(16)
    touched = (branch(changed) - branch(u)).abs().amax((0, 3)) > 1e-6
    assert touched[3:6, 3:6].all()
    assert touched.sum() == 9


@pytest.mark.parametrize(("num_axes", "width"), [(1, 5), (2, 5), (3, 3)])
def test_the_kernel_is_five_wide_in_the_plane_and_three_in_space(num_axes, width):
    problem = Problem("torus", Grid((6,) * num_axes, 1.0, True), (Field("u"),))
    layer = plus(problem).backbone.layers[0]
    assert layer.local.convolution.weight.shape == (16, 1, *[width] * num_axes)


def test_dilations_go_from_layer_to_layer_and_start_again():
    layers = plus(depth=3, local_dilations=(1, 4)).backbone.layers
    assert [layer.local.convolution.dilation for layer in layers] == [1, 4, 1]


def test_increments_are_the_default_in_time_and_not_for_steady_problems():
    assert plus().residual is True
    grid, inputs = Grid((8, 8), 1.0, False), (Field("coefficient"),)
    steady = Problem("darcy", grid, (Field("solution"),), inputs, num_context_frames=0, boundary="zero")
    assert plus(steady).residual is False
    assert build_surrogate(PROBLEM, "factformer", **SMALL).residual is False


def test_a_zero_decoder_predicts_persistence():
    surrogate = plus()
    with torch.no_grad():
        surrogate.decoder.project.weight.zero_()
        surrogate.decoder.project.bias.zero_()
    context = frames()
    assert torch.equal(surrogate(context, 1), context[:, -1:])
