"""The fused marching and decoder kernels under Triton's interpreter, held against the plain path."""

import math
import sys
from pathlib import Path

import pytest
import torch

from factformer import Grid, build_surrogate
from factformer.problem import Field, Problem

sys.path.insert(0, str(Path(__file__).parent))
import triton_interpreter  # noqa: F401

GRIDS = {
    "line": Grid(70, 2 * math.pi, True),
    "rectangle": Grid((9, 11), (1.0, 2.5), (True, False)),
    "box": Grid((3, 4, 5), 2 * math.pi, True),
}


def relative(a, b):
    return float(((a.double() - b.double()).norm() / b.double().norm().clamp_min(1e-30)).detach())


def surrogate_for(grid):
    torch.manual_seed(0)
    boundary = "periodic" if all(grid.periodic) else "zero"
    problem = Problem("test", grid, (Field("a", 1), Field("b", 1)), num_context_frames=2, boundary=boundary)
    sizes = {"dim": 16, "depth": 1, "heads": 2, "head_dim": 4, "kernel_dim": 4}
    surrogate = build_surrogate(problem, marching_steps=3, boundary_block=False, **sizes)
    with torch.no_grad():
        for parameter in surrogate.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return surrogate


def run(surrogate, z, grid, num_steps, mode, monkeypatch, dtype):
    monkeypatch.setenv("FACTFORMER_FUSED", mode)
    surrogate = surrogate.to(dtype)
    z = z.to(dtype).requires_grad_()
    fields = surrogate.decode(z, num_steps, grid)
    probe = torch.randn(fields.shape, generator=torch.Generator().manual_seed(2)).to(dtype)
    parameters = [*surrogate.marching.parameters(), *surrogate.decoder.parameters()]
    return fields, torch.autograd.grad((fields * probe).sum(), [z, *parameters])


@pytest.mark.parametrize(("name", "num_steps", "batch"), [("line", 1, 1), ("rectangle", 3, 2), ("box", 2, 2)])
def test_agrees_with_the_plain_path_forward_and_backward(name, num_steps, batch, monkeypatch):
    grid = GRIDS[name]
    surrogate = surrogate_for(grid)
    z = torch.randn(batch, *grid.shape, 16, generator=torch.Generator().manual_seed(1)) + 0.5
    fused, fused_grads = run(surrogate, z, grid, num_steps, "force", monkeypatch, torch.float32)
    plain, plain_grads = run(surrogate, z, grid, num_steps, "off", monkeypatch, torch.float64)
    assert relative(fused, plain) < 1e-5
    for a, b in zip(fused_grads, plain_grads, strict=True):
        assert relative(a, b) < 3e-5


def test_the_whole_surrogate_agrees(monkeypatch):
    grid = GRIDS["rectangle"]
    surrogate = surrogate_for(grid)
    frames = torch.randn(1, 2, *grid.shape, 2, generator=torch.Generator().manual_seed(1))
    monkeypatch.setenv("FACTFORMER_FUSED", "force")
    with torch.no_grad():
        fused = surrogate(frames, 2)
        monkeypatch.setenv("FACTFORMER_FUSED", "off")
        plain = surrogate.double()(frames.double(), 2)
    assert relative(fused, plain) < 1e-5


def test_a_bad_value_spreads_over_its_sample_and_no_further(monkeypatch):
    monkeypatch.setenv("FACTFORMER_FUSED", "force")
    grid = GRIDS["rectangle"]
    z = torch.randn(2, *grid.shape, 16)
    z[1, 3, 2, 0] = float("nan")
    with torch.no_grad():
        fields = surrogate_for(grid).decode(z, 2, grid)
    assert bool(fields[0].isfinite().all())
    assert bool(fields[1].isnan().all())
