"""The fused local branch under Triton's interpreter, held against the plain path."""

import pytest
import torch

import triton_interpreter  # noqa: F401
from factformer import engine
from factformer.grid import Grid
from factformer.nn.local_branch import LocalBranch
from small_models import moved

CASES = {
    "line": ((70,), ("periodic",), 5, 1, 1),
    "every eighth point of a line": ((70,), ("periodic",), 5, 8, 1),
    "wall on one side of a plane": ((9, 11), ("periodic", "zero"), 5, 1, 2),
    "every third point of a plane": ((9, 11), ("periodic", "zero"), 5, 3, 2),
    "smallest plane that holds its neighbours": ((3, 4), ("periodic", "periodic"), 5, 1, 1),
    "box": ((4, 3, 5), ("zero", "periodic", "periodic"), 3, 1, 2),
    "every second point of a box": ((4, 3, 5), ("zero", "periodic", "periodic"), 3, 2, 2),
    "four axes": ((3, 2, 4, 3), ("periodic", "zero", "periodic", "zero"), 3, 1, 1),
}


def relative(a, b):
    return float(((a.double() - b.double()).norm() / b.double().norm().clamp_min(1e-30)).detach())


def branch_for(kinds, kernel_size, dilation=1, dim=16, home=None):
    torch.manual_seed(0)
    return moved(LocalBranch(dim, kernel_size, 2, kinds, dilation, home))


def run(branch, u, mode, dtype, grid=None):
    engine.attach(branch, mode)
    branch, u = branch.to(dtype), u.to(dtype).requires_grad_()
    result = branch.add_to(u, grid)
    probe = torch.randn(result.shape, generator=torch.Generator().manual_seed(2)).to(dtype)
    return result, torch.autograd.grad((result * probe).sum(), [u, *branch.parameters()])


@pytest.mark.parametrize("name", CASES)
def test_agrees_with_the_plain_path_forward_and_backward(name):
    shape, kinds, kernel_size, dilation, batch = CASES[name]
    branch = branch_for(kinds, kernel_size, dilation)
    u = torch.randn(batch, *shape, 16, generator=torch.Generator().manual_seed(1)) + 0.5
    fused, fused_grads = run(branch, u, "force", torch.float32)
    plain, plain_grads = run(branch, u, "off", torch.float64)
    assert relative(fused, plain) < 1e-6
    for a, b in zip(fused_grads, plain_grads, strict=True):
        assert relative(a, b) < 1e-5


@pytest.mark.parametrize("shape", [(7, 9), (13, 17), (10, 13), (10, 15)])
def test_keeps_its_reach_on_other_grids(shape):
    """Twice the spacing, the own one, one between, and one without a kernel, which differs along the axes."""
    home = Grid((13, 17), 1.0, False, "nodes")
    branch, grid = branch_for(("zero", "zero"), 5, home=home), home.resample(shape)
    u = torch.randn(1, *shape, 16, generator=torch.Generator().manual_seed(1)) + 0.5
    fused, fused_grads = run(branch, u, "force", torch.float32, grid)
    plain, plain_grads = run(branch, u, "off", torch.float64, grid)
    assert relative(fused, plain) < 1e-6
    for a, b in zip(fused_grads, plain_grads, strict=True):
        assert relative(a, b) < 1e-5


def test_widths_that_do_not_fill_a_tile():
    branch = branch_for(("periodic", "zero"), 3, dim=12)
    u = torch.randn(1, 5, 7, 12, generator=torch.Generator().manual_seed(1))
    fused, _ = run(branch, u, "force", torch.float32)
    plain, _ = run(branch, u, "off", torch.float64)
    assert relative(fused, plain) < 1e-6


def test_a_bad_value_reaches_its_neighbours_and_no_further():
    branch = branch_for(("periodic", "zero"), 3)
    engine.attach(branch, "force")
    u = torch.randn(2, 12, 9, 16)
    u[1, 0, 4, 3] = float("nan")
    with torch.no_grad():
        bad = branch.add_to(u).isnan().all(-1)
    assert not bool(bad[0].any())
    reached = torch.zeros(12, 9, dtype=torch.bool)
    reached[[11, 0, 1], 3:6] = True
    assert torch.equal(bad[1], reached)


def test_mirrored_ends_take_the_plain_path():
    branch = branch_for(("reflect",), 3)
    u = torch.randn(1, 9, 16)
    fused, _ = run(branch, u, "force", torch.float32)
    plain, _ = run(branch, u, "off", torch.float32)
    assert torch.equal(fused, plain)
