"""Kernels that address patches where they lie, under Triton's interpreter, held against the plain path with copies."""

import math

import pytest
import torch
from memory_bounds import checked

import triton_interpreter  # noqa: F401
from factformer import Field, Grid, Problem, build_surrogate, engine
from factformer.kernels._triton import in_place
from small_models import moved

CASES = {
    "line": (Grid(12, 2 * math.pi, True), 4, 1),
    "plane": (Grid((9, 8), (1.0, 2.5), (True, False)), (3, 2), 2),
    "one axis cut": (Grid((6, 5), 1.0, True), (2, 1), 3),
    "box": (Grid((4, 6, 4), 2 * math.pi, True), 2, 1),
    "four axes": (Grid((4, 3, 2, 4), 1.0, (True, False, False, True)), (2, 1, 1, 2), 1),
}
SIZES = {"dim": 16, "depth": 1, "heads": 2, "head_dim": 4, "kernel_dim": 4, "boundary_block": False}


def surrogate_for(grid, patch, channels):
    torch.manual_seed(0)
    boundary = "periodic" if all(grid.periodic) else "zero"
    problem = Problem("test", grid, (Field("a", channels),), num_context_frames=2, boundary=boundary)
    return moved(build_surrogate(problem, marching_steps=2, patch=patch, **SIZES))


def run(surrogate, frames, z, grid, mode, dtype):
    """Latent field and fields of encoder and decoder alone, with all gradients."""
    engine.attach(surrogate, mode)
    surrogate = surrogate.to(dtype)
    frames, z = (x.to(dtype).requires_grad_() for x in (frames, z))
    latent = surrogate.encoder(frames, surrogate.encoder_statistics().to(dtype), surrogate.patches, grid)
    fields = surrogate.decode(z, 2, surrogate.latent_grid(grid), fine=grid)
    generator = torch.Generator().manual_seed(2)
    probes = [torch.randn(x.shape, generator=generator).to(dtype) for x in (latent, fields)]
    loss = sum((x * probe).sum() for x, probe in zip((latent, fields), probes, strict=True))
    parts = (surrogate.encoder, surrogate.marching, surrogate.decoder)
    return [latent, fields, *torch.autograd.grad(loss, [frames, z, *(p for part in parts for p in part.parameters())])]


def compared(surrogate, grid, channels, monkeypatch):
    generator = torch.Generator().manual_seed(1)
    frames = torch.randn(2, 2, *grid.shape, channels, generator=generator) + 0.5
    z = torch.randn(2, *surrogate.latent_grid(grid).shape, 16, generator=generator)
    with checked(monkeypatch) as launches:
        fused = run(surrogate, frames, z, grid, "force", torch.float32)
    plain = run(surrogate, frames, z, grid, "off", torch.float64)
    for a, b in zip(fused, plain, strict=True):
        assert a.shape == b.shape
        assert float((a.double() - b).detach().norm()) < 3e-5 * float(b.detach().norm())
    return [name for name, _ in launches]


@pytest.mark.parametrize("name", CASES)
def test_agrees_with_the_copies_without_making_any(name, monkeypatch):
    grid, patch, channels = CASES[name]
    surrogate = surrogate_for(grid, patch, channels)
    monkeypatch.setattr(in_place, "IN_PLACE", True)
    made = count_copies(surrogate, monkeypatch)
    launched = compared(surrogate, grid, channels, monkeypatch)
    assert {"lift_kernel", "lift_gradient_kernel", "_decode_kernel", "_decode_gradient_kernel"} <= set(launched)
    assert made == ["split", "join"], "by the plain path alone"


@pytest.mark.parametrize(
    ("grid", "home"),
    [
        (Grid((7, 8), 1.0, False), None),  # the last patch reaches beyond the end
        (Grid((12, 16), 1.0, True), Grid((6, 8), 1.0, True)),  # values between the points
    ],
)
def test_patches_that_are_no_rearrangement_are_copied(grid, home, monkeypatch):
    surrogate = surrogate_for(home or grid, 2, 1)
    monkeypatch.setattr(in_place, "IN_PLACE", True)
    made = count_copies(surrogate, monkeypatch)
    compared(surrogate, grid, 1, monkeypatch)
    assert made == ["split", "join"] * 2


def test_copies_are_the_default(monkeypatch):
    grid, patch, channels = CASES["line"]
    surrogate = surrogate_for(grid, patch, channels)
    made = count_copies(surrogate, monkeypatch)
    compared(surrogate, grid, channels, monkeypatch)
    assert made == ["split", "join"] * 2


def test_a_whole_call_and_its_gradient_agree(monkeypatch):
    grid, patch, channels = CASES["one axis cut"]
    surrogate = surrogate_for(grid, patch, channels)
    frames = torch.randn(1, 2, *grid.shape, channels, generator=torch.Generator().manual_seed(1))
    found = []
    for there in (False, True):
        monkeypatch.setattr(in_place, "IN_PLACE", there)
        engine.attach(surrogate, "force")
        prediction = surrogate(frames, 2)
        found.append([prediction, *torch.autograd.grad(prediction.square().sum(), list(surrogate.parameters()))])
    for a, b in zip(*found, strict=True):
        assert torch.equal(a, b), "the same numbers in the same order of operations"


def count_copies(surrogate, monkeypatch):
    made = []
    for way in ("split", "join"):
        original = getattr(surrogate.patches, way)
        counted = lambda *given, way=way, original=original: (made.append(way), original(*given))[1]  # noqa: E731
        monkeypatch.setattr(surrogate.patches, way, counted, raising=False)
    return made
