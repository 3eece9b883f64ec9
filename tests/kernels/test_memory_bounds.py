"""No kernel of a network touches memory outside of its tensors: narrow networks above all."""

import math

import pytest
import torch
from memory_bounds import checked, meets_tma_rules
from triton.runtime.errors import InterpreterError
from triton.tools.tensor_descriptor import TensorDescriptor

import triton_interpreter  # noqa: F401
from factformer import Field, Grid, Problem, build_surrogate, engine
from factformer.kernels._triton.launching import launch

import triton  # isort: skip
import triton.language as tl  # isort: skip

NARROW = {"dim": 32, "depth": 1, "heads": 2, "head_dim": 16, "kernel_dim": 16}
POINTERS = {"dim": 24, "depth": 1, "heads": 3, "head_dim": 6, "kernel_dim": 6}
"""Rows of 24 bytes are too odd for TMA."""
CASES = {
    "plane": (Grid((3, 18), 2 * math.pi, True), 1, 1, NARROW),
    "bounded box": (Grid((3, 2, 5), 1.0, False), 1, 2, NARROW),
    "line in the low-rank order": (Grid(40, 2 * math.pi, True), 1, 1, NARROW),
    "plane without TMA": (Grid((5, 6), 2 * math.pi, True), 1, 3, POINTERS),
}


@triton.jit
def _beyond(x, SIZE: tl.constexpr):
    i = tl.arange(0, SIZE)
    tl.store(x + i, tl.load(x + i + 1))


def test_an_access_out_of_bounds_is_found(monkeypatch):
    x = torch.zeros(9)
    with checked(monkeypatch):
        launch(_beyond, (1,), x, SIZE=8)
        with pytest.raises(InterpreterError, match="_beyond reads 1 addresses"):
            launch(_beyond, (1,), x[:8], SIZE=8)


SWEEP = [(16, 8), (16, 16), (24, 8), (32, 8), (32, 32), (48, 16), (48, 64), (64, 16), (64, 32), (64, 64)]
"""Channels of a point and of a head."""


@pytest.mark.parametrize(("dim", "head_dim"), SWEEP)
def test_every_narrow_width_stays_within_its_tensors(dim, head_dim, monkeypatch):
    sizes = {"dim": dim, "depth": 1, "heads": 2, "head_dim": head_dim, "kernel_dim": head_dim}
    launches, moved = launches_of(Grid((3, 5), 2 * math.pi, True), 1, 1, sizes, monkeypatch)
    assert len({kernel for kernel, _ in launches}) > 20
    assert all(meets_tma_rules(descriptor, element) for descriptor in moved for element in (2, 4))


@pytest.mark.parametrize("name", CASES)
def test_narrow_networks_stay_within_their_tensors(name, monkeypatch):
    grid, batch, channels, sizes = CASES[name]
    launches, moved = launches_of(grid, batch, channels, sizes, monkeypatch)
    assert len({kernel for kernel, _ in launches}) > 20, "all stages ran on their kernels"
    assert all(meets_tma_rules(descriptor, 4) for descriptor in moved)
    if sizes is NARROW:  # the same layout in bfloat16, which the interpreter cannot run
        assert len(moved) > 50
        assert all(meets_tma_rules(descriptor, 2) for descriptor in moved)


def launches_of(grid, batch, channels, sizes, monkeypatch):
    """Checked launches of a call and its gradient, and the descriptors in them."""
    torch.manual_seed(0)
    boundary = "periodic" if all(grid.periodic) else "zero"
    problem = Problem("test", grid, (Field("a", channels),), num_context_frames=3, boundary=boundary)
    surrogate = build_surrogate(problem, "factformer_plus", marching_steps=2, boundary_block=False, **sizes)
    engine.attach(surrogate, "force")
    frames = torch.randn(batch, 3, *grid.shape, channels)
    with checked(monkeypatch) as launches:
        surrogate(frames, 2).square().sum().backward()
    return launches, [a for _, arguments in launches for a in arguments if isinstance(a, TensorDescriptor)]
