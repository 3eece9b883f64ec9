"""The fused marching and decoder kernels under Triton's interpreter, held against the plain path."""

import math
import sys
from pathlib import Path

import pytest
import torch

from factformer import Grid, build_surrogate, engine
from factformer.nn.marching import LatentMarching
from factformer.problem import Field, Problem
from small_models import moved

sys.path.insert(0, str(Path(__file__).parent))
import triton_interpreter  # noqa: F401, I001
import triton
import triton.language as tl
from factformer.kernels._triton.arithmetic import gelu, gelu_and_slope, gelu_slope, to_nearest

GRIDS = {
    "line": Grid(70, 2 * math.pi, True),
    "rectangle": Grid((9, 11), (1.0, 2.5), (True, False)),
    "box": Grid((3, 4, 5), 2 * math.pi, True),
}


@triton.jit
def _gelu_kernel(x, values, slopes, both_values, both_slopes, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    at = tl.load(x + i)
    value, slope = gelu_and_slope(at)
    tl.store(values + i, gelu(at))
    tl.store(slopes + i, gelu_slope(at))
    tl.store(both_values + i, value)
    tl.store(both_slopes + i, slope)


@triton.jit
def _nearest_kernel(x, result, PRECISION: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(result + i, to_nearest(tl.load(x + i), PRECISION))


def relative(a, b):
    return float(((a.double() - b.double()).norm() / b.double().norm().clamp_min(1e-30)).detach())


def surrogate_for(grid, dim=16):
    torch.manual_seed(0)
    boundary = "periodic" if all(grid.periodic) else "zero"
    problem = Problem("test", grid, (Field("a", 1), Field("b", 1)), num_context_frames=2, boundary=boundary)
    sizes = {"dim": dim, "depth": 1, "heads": 2, "head_dim": 4, "kernel_dim": 4}
    return moved(build_surrogate(problem, marching_steps=3, boundary_block=False, **sizes))


def run(surrogate, z, grid, num_steps, mode, dtype):
    engine.attach(surrogate, mode)
    surrogate = surrogate.to(dtype)
    z = z.to(dtype).requires_grad_()
    fields = surrogate.decode(z, num_steps, grid)
    probe = torch.randn(fields.shape, generator=torch.Generator().manual_seed(2)).to(dtype)
    parameters = [*surrogate.marching.parameters(), *surrogate.decoder.parameters()]
    return fields, torch.autograd.grad((fields * probe).sum(), [z, *parameters])


@pytest.mark.parametrize(
    ("name", "num_steps", "batch", "dim"),
    [("line", 1, 1, 16), ("rectangle", 3, 2, 16), ("box", 2, 2, 16), ("rectangle", 1, 2, 64), ("box", 3, 1, 64)],
)
def test_agrees_with_the_plain_path_forward_and_backward(name, num_steps, batch, dim):
    """Narrow networks are read by pointers, wide ones by TMA."""
    grid = GRIDS[name]
    surrogate = surrogate_for(grid, dim)
    z = torch.randn(batch, *grid.shape, dim, generator=torch.Generator().manual_seed(1)) + 0.5
    fused, fused_grads = run(surrogate, z, grid, num_steps, "force", torch.float32)
    plain, plain_grads = run(surrogate, z, grid, num_steps, "off", torch.float64)
    assert relative(fused, plain) < 1e-5
    for a, b in zip(fused_grads, plain_grads, strict=True):
        assert relative(a, b) < 3e-5


def test_agrees_where_groups_lie_across_chunks_and_points_across_tiles(monkeypatch):
    grid = Grid((5, 6, 7), 1.0, False)
    surrogate = surrogate_for(grid, dim=64)  # 96 channels in groups of 12
    z = torch.randn(2, *grid.shape, 64, generator=torch.Generator().manual_seed(1)) + 0.5
    fused, fused_grads = run(surrogate, z, grid, 2, "force", torch.float32)
    plain, plain_grads = run(surrogate, z, grid, 2, "off", torch.float64)
    assert relative(fused, plain) < 1e-5
    for a, b in zip(fused_grads, plain_grads, strict=True):
        assert relative(a, b) < 3e-5


def test_a_large_mean_of_the_state_costs_no_accuracy():
    """Statistics of groups are sums and sums of squares, merged tile by tile."""
    grid = GRIDS["line"]
    surrogate = surrogate_for(grid)
    with torch.no_grad():
        surrogate.marching.expand.bias.add_(30.0)
    z = torch.randn(1, *grid.shape, 16, generator=torch.Generator().manual_seed(1))
    fused, _ = run(surrogate, z, grid, 2, "force", torch.float32)
    plain, _ = run(surrogate, z, grid, 2, "off", torch.float64)
    assert relative(fused, plain) < 1e-4


def test_the_whole_surrogate_agrees(monkeypatch):
    grid = GRIDS["rectangle"]
    surrogate = surrogate_for(grid)
    frames = torch.randn(1, 2, *grid.shape, 2, generator=torch.Generator().manual_seed(1))
    engine.attach(surrogate)
    monkeypatch.setenv("FACTFORMER_FUSED", "force")
    with torch.no_grad():
        fused = surrogate(frames, 2)
        monkeypatch.setenv("FACTFORMER_FUSED", "off")
        plain = surrogate.double()(frames.double(), 2)
    assert relative(fused, plain) < 1e-5


def test_a_patched_surrogate_agrees_in_all_its_stages():
    """Patches are cut and joined outside of the kernels, which see more channels on fewer points."""
    shape = (8, 6)
    torch.manual_seed(0)
    problem = Problem("test", Grid(shape, 1.0, True), (Field("a", 1), Field("b", 2)), num_context_frames=2)
    sizes = {"dim": 16, "depth": 1, "heads": 2, "head_dim": 16, "kernel_dim": 16, "latent_expansion": 1.0}
    surrogate = build_surrogate(problem, "factformer_plus", marching_steps=2, patch=2, **sizes)
    frames = torch.randn(2, 2, *shape, 3, generator=torch.Generator().manual_seed(1))
    taken = engine.StageExecution("march_decode", "force").choice(
        surrogate.marching, torch.randn(1, *shape, 16), 2, surrogate.decoder, problem.grid
    )
    assert taken[0] == "fused" and engine.TABLE["encoder"].fits(surrogate.encoder, frames)
    engine.attach(surrogate, "force")
    with torch.no_grad():
        fused = surrogate(frames)
        engine.attach(surrogate, "off")
        plain = surrogate.double()(frames.double())
    assert relative(fused, plain) < 1e-5


def test_patches_with_more_channels_than_the_kernels_take_run_otherwise():
    problem = Problem("test", Grid((16, 16), 1.0, True), (Field("a", 5),), num_context_frames=2)
    surrogate = build_surrogate(problem, patch=4, dim=64, depth=1)
    z = torch.randn(1, 4, 4, 64)
    assert not engine.TABLE["encoder"].fits(surrogate.encoder, z)
    assert not engine.TABLE["march_decode"].fits(surrogate.marching, z, 1, surrogate.decoder, problem.grid)


def test_a_bad_value_spreads_over_its_sample_and_no_further():
    grid = GRIDS["rectangle"]
    surrogate = surrogate_for(grid)
    engine.attach(surrogate, "force")
    z = torch.randn(2, *grid.shape, 16)
    z[1, 3, 2, 0] = float("nan")
    with torch.no_grad():
        fields = surrogate.decode(z, 2, grid)
    assert bool(fields[0].isfinite().all())
    assert bool(fields[1].isnan().all())


def test_the_gelu_and_its_slope_are_exact_to_a_millionth():
    x = torch.cat([torch.linspace(-12, 12, 1020), torch.tensor([-1e6, 1e6, 0.0, float("nan")])])
    out = [torch.empty_like(x) for _ in range(4)]
    _gelu_kernel[(1,)](x, *out, BLOCK=1024)
    exact = x.double().requires_grad_()
    value = torch.nn.functional.gelu(exact)
    (slope,) = torch.autograd.grad(value.sum(), exact)
    value = value.detach()
    for got, wanted in zip(out, (value, slope, value, slope), strict=True):
        assert float((got - wanted)[:-1].abs().max()) < 1e-6
        assert bool(got[-1].isnan())


def test_factors_of_tf32_products_are_rounded_to_the_nearest():
    x = torch.randn(1024)
    x[:4] = torch.tensor([float("inf"), -float("inf"), float("nan"), 0.0])
    x[4:5].view(torch.int32).fill_(0x7FFFFFFF)  # the NaN that the device makes
    rounded, kept = torch.empty_like(x), torch.empty_like(x)
    _nearest_kernel[(1,)](x, rounded, PRECISION="tf32", BLOCK=1024)
    _nearest_kernel[(1,)](x, kept, PRECISION="ieee", BLOCK=1024)
    assert torch.equal(kept.nan_to_num(7.0), x.nan_to_num(7.0))
    cut = (rounded.view(torch.int32) & ~0x1FFF).view(torch.float32)  # what tensor cores read
    assert torch.equal(cut[:2], x[:2])
    assert bool(cut[2:5:2].isnan().all())
    exponent = torch.frexp(x[5:])[1]
    assert bool(((cut - x)[5:].abs() <= 2.0 ** (exponent - 12)).all())


@pytest.mark.parametrize(("name", "dim"), [("line", 16), ("rectangle", 64), ("box", 16)])
@pytest.mark.parametrize("masked", [False, True], ids=["whole", "masked"])
def test_forcing_drives_every_step(name, dim, masked):
    grid = GRIDS[name]
    torch.manual_seed(0)
    decoder = surrogate_for(grid, dim).decoder
    marching = LatentMarching(dim, dim, decoder.norm.weight.numel(), 3, num_forcing_channels=2)
    parts = torch.nn.ModuleList([marching, decoder])
    generator = torch.Generator().manual_seed(1)
    z, forcing = (torch.randn(2, *shape, generator=generator) for shape in ((*grid.shape, dim), (3, *grid.shape, 2)))
    mask = torch.rand(2, *grid.shape, generator=generator) > 0.3 if masked else None
    inside = torch.ones(2, *grid.shape, dtype=torch.bool) if mask is None else mask
    probe = torch.randn(2, 3, *grid.shape, 2, generator=generator) * inside[:, None, ..., None]
    found = {}
    for mode, dtype in (("force", torch.float32), ("off", torch.float64)):
        engine.attach(parts, mode)
        parts.to(dtype)
        inputs = [x.to(dtype).requires_grad_() for x in (z, forcing)]
        fields = marching.decoded(inputs[0], 3, decoder, grid, inputs[1], mask)
        grads = torch.autograd.grad((fields * probe.to(dtype)).sum(), [*inputs, *parts.parameters()])
        found[mode] = [fields * inside[:, None, ..., None], *grads]
    for a, b in zip(found["force"], found["off"], strict=True):
        assert relative(a, b) < 5e-5
