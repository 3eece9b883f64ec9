"""The fused frame encoder under Triton's interpreter, held against the plain one."""

import sys
from pathlib import Path

import pytest
import torch

from factformer import engine
from factformer.nn.frame_encoder import FrameEncoder

sys.path.insert(0, str(Path(__file__).parent))
import triton_interpreter  # noqa: F401

CASES = {
    "line of one channel": (2, 10, (70,), 1, 16),
    "plane of one channel": (1, 4, (9, 11), 1, 24),
    "many frames": (1, 20, (5, 3), 1, 16),
    "box of four channels": (2, 3, (5, 4, 7), 4, 32),
    "many channels": (1, 2, (67,), 17, 16),
    "steady problem": (3, 1, (8, 9), 1, 16),
}


def relative(a, b):
    return float(((a.double() - b.double()).norm() / b.double().norm()).detach())


def run(encoder, frames, mode, statistics=None, onto=None):
    engine.attach(encoder, mode)
    frames = frames.clone().requires_grad_()
    given = [] if onto is None else [onto.to(frames.dtype).requires_grad_()]
    result = encoder(frames, statistics, None, None, *given)
    probe = torch.randn(result.shape, generator=torch.Generator().manual_seed(2)).to(result.dtype)
    return result, torch.autograd.grad((result * probe).sum(), [frames, *given, *encoder.parameters()])


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("normalized", [False, True])
def test_agrees_with_the_plain_encoder(name, normalized):
    batch, num_frames, shape, channels, dim = CASES[name]
    encoder = FrameEncoder(num_frames, channels, dim)
    frames = torch.randn(batch, num_frames, *shape, channels, generator=torch.Generator().manual_seed(1))
    statistics = torch.rand(2, channels) + 0.5 if normalized else None
    fused, fused_grads = run(encoder, frames, "force", statistics)
    exact = None if statistics is None else statistics.double()
    plain, plain_grads = run(encoder.double(), frames.double(), "off", exact)
    assert fused.shape == plain.shape
    assert relative(fused, plain) < 1e-5
    for a, b in zip(fused_grads, plain_grads, strict=True):
        assert a.shape == b.shape
        assert relative(a, b) < 1e-5


@pytest.mark.parametrize("name", ["plane of one channel", "box of four channels", "steady problem"])
@pytest.mark.parametrize("bias", [False, True])
def test_what_is_encoded_is_added_to_another_field(name, bias):
    batch, num_frames, shape, channels, dim = CASES[name]
    encoder = FrameEncoder(num_frames, channels, dim, bias=bias)
    frames, onto = torch.randn(batch, num_frames, *shape, channels), torch.randn(batch, *shape, dim)
    fused, fused_grads = run(encoder, frames, "force", onto=onto)
    plain, plain_grads = run(encoder.double(), frames.double(), "off", onto=onto.clone())
    for a, b in zip((fused, *fused_grads), (plain, *plain_grads), strict=True):
        assert a.shape == b.shape
        assert relative(a, b) < 1e-5


def test_lifting_a_few_samples_at_a_time_changes_nothing(monkeypatch):
    encoder, frames = FrameEncoder(3, 2, 16), torch.randn(5, 3, 7, 2)
    whole, grads = run(encoder, frames, "force")
    monkeypatch.setattr("factformer.kernels.encoder.op.PORTION", 2 * 7 * 3 * 16)
    result, portions = run(encoder, frames, "force")
    assert torch.allclose(result, whole)
    for a, b in zip(portions, grads, strict=True):
        assert torch.allclose(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("channels", [1, 3])
def test_frames_that_lie_apart_and_need_no_gradient(channels):
    encoder = FrameEncoder(4, channels, 16)
    frames = torch.randn(2, 7, 5, 6, channels)
    window = frames[:, 2:6]
    expected = encoder(window)
    wanted = torch.autograd.grad(expected.square().sum(), list(encoder.parameters()))
    engine.attach(encoder, "force")
    result = encoder(window)
    grads = torch.autograd.grad(result.square().sum(), list(encoder.parameters()))
    assert relative(result, expected) < 1e-5
    assert all(relative(a, b) < 1e-5 for a, b in zip(grads, wanted, strict=True))


@pytest.mark.parametrize("channels", [1, 2])
def test_a_bad_value_stays_at_its_point(channels):
    encoder = FrameEncoder(3, channels, 16)
    engine.attach(encoder, "force")
    frames = torch.randn(2, 3, 70, channels)
    frames[1, 2, 68, 0] = float("nan")
    with torch.no_grad():
        result = encoder(frames)
    assert bool(result[1, 68].isnan().all())
    result[1, 68] = 0.0
    assert bool(result.isfinite().all())
