"""The kernels within the shared memory of other cards and without TMA, under Triton's interpreter."""

import math
import sys
from pathlib import Path

import pytest
import torch
from triton.tools.tensor_descriptor import TensorDescriptor

from factformer import Field, Grid, Problem, build_surrogate, engine
from factformer.kernels._triton.limits import FULL, MEDIUM, SMALL, limits, restricted

sys.path.insert(0, str(Path(__file__).parents[1]))
import triton_interpreter  # noqa: F401, I001
from memory_bounds import checked

SIZES = {"dim": 32, "depth": 1, "heads": 2, "head_dim": 16, "kernel_dim": 16}
GRIDS = {
    "plane": Grid((5, 18), 2 * math.pi, True),
    "bounded box": Grid((3, 2, 5), 1.0, False),
    "long line": Grid(300, 2 * math.pi, True),
    "line of two tiles": Grid(150, 2 * math.pi, True),
}


def call(surrogate, frames, mode, **options):
    engine.attach(surrogate, mode, **options)
    surrogate.zero_grad()
    values = surrogate(frames)
    values.square().mean().backward()
    return values.detach(), [p.grad.clone() for p in surrogate.parameters() if p.grad is not None]


def relative(a, b):
    return float((a - b).norm() / b.norm().clamp_min(1e-6))


@pytest.mark.parametrize("name", GRIDS)
@pytest.mark.parametrize("to", [SMALL, MEDIUM], ids=["small", "medium"])
def test_smaller_tiles_compute_the_same_without_tma(name, to, monkeypatch):
    grid = GRIDS[name]
    torch.manual_seed(0)
    boundary = "periodic" if all(grid.periodic) else "zero"
    problem = Problem("test", grid, (Field("a"),), num_context_frames=2, boundary=boundary)
    sizes = {**SIZES, "kernel_dim": 160 if "line" in name else 16}  # in the dense order
    surrogate = build_surrogate(problem, "factformer_plus", marching_steps=2, boundary_block=False, **sizes)
    frames = torch.randn(1, 2, *grid.shape, 1)
    plain, plain_grads = call(surrogate, frames, "off")
    with checked(monkeypatch) as launches:
        fused, fused_grads = call(surrogate, frames, "force", limits=to)
    assert not any(isinstance(a, TensorDescriptor) for _, arguments in launches for a in arguments)
    assert relative(fused, plain) < 1e-4
    for a, b in zip(fused_grads, plain_grads, strict=True):
        assert relative(a, b) < 2e-3


def test_tiles_of_the_backward_pass_are_those_of_the_forward_pass():
    seen = []

    class Probe(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            seen.append(limits())
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            seen.append(limits())
            return grad * 2

    from factformer.kernels._triton.limits import within_limits

    x = torch.ones(1, requires_grad=True)
    with restricted(SMALL):
        y = within_limits(Probe).apply(x)
    y.backward()
    assert seen == [SMALL, SMALL]
    assert limits() == FULL


@pytest.mark.parametrize(
    ("major", "room", "expected"),
    [
        (9, 232448, FULL),
        (10, 232448, FULL),
        (8, 166912, MEDIUM),
        (8, 101376, SMALL),
        (12, 101376, SMALL),
        (7, 98304, None),
    ],
)
def test_the_device_says_which_tiles(major, room, expected, monkeypatch):
    from types import SimpleNamespace

    properties = SimpleNamespace(major=major, shared_memory_per_block_optin=room)
    monkeypatch.setattr(engine, "_has_triton", lambda device: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    engine.device_limits.cache_clear()
    assert engine.device_limits(torch.device("cuda", 0)) == expected
    engine.device_limits.cache_clear()
