"""The fused path and its graphs on a GPU, against float64: ``pytest -m gpu tests/kernels/test_kernels_gpu.py``."""

import copy
import math
import threading
import time

import pytest
import torch

from factformer import Field, Grid, Problem, build_surrogate, metrics
from factformer.batch import Batch
from factformer.kernels.graphs import StepGraphs

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

CASES = {
    "line in the low-rank order": (Grid(300, 2 * math.pi, True), 3, {"heads": 4, "kernel_dim": 64}),
    "plane": (Grid((40, 36), 2 * math.pi, True), 2, {"heads": 8, "kernel_dim": 128}),
    "long plane in the low-rank order": (Grid((300, 60), 2 * math.pi, True), 1, {"heads": 4, "kernel_dim": 64}),
    "bounded plane": (Grid((33, 47), 1.0, False), 1, {"heads": 3, "kernel_dim": 128}),
    "box": (Grid((20, 17, 24), 2 * math.pi, True), 1, {"heads": 6, "kernel_dim": 192}),
    "plane with a local branch": (Grid((40, 36), 2 * math.pi, (True, False)), 2, {"model": "factformer_plus"}),
    "box with a local branch": (Grid((12, 17, 20), 2 * math.pi, True), 1, {"model": "factformer_plus", "heads": 6}),
}


def surrogate_for(grid, overrides):
    torch.manual_seed(0)
    boundary = "periodic" if all(grid.periodic) else "zero"
    problem = Problem("test", grid, (Field("a", 1),), num_context_frames=4, boundary=boundary)
    surrogate = build_surrogate(problem, depth=2, marching_steps=3, **overrides)
    with torch.no_grad():  # fresh kernels are tiny: make all parts count
        for parameter in surrogate.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    return surrogate.cuda()


def relative(a, b):
    return float(((a.double() - b.double()).norm() / b.double().norm()).detach())


def run(surrogate, frames, target, *, bf16):
    with torch.autocast("cuda", torch.bfloat16, enabled=bf16):
        prediction = surrogate(frames)
    loss = metrics.loss(prediction, target, surrogate.problem.state_slices)
    grads = torch.autograd.grad(loss, list(surrogate.parameters()), allow_unused=True)
    return prediction, torch.cat([g.double().flatten() for g in grads if g is not None])


@pytest.mark.parametrize("name", CASES)
def test_stays_within_a_percent_of_float64(name, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)  # torch's own products are exact by default, too
    grid, batch, overrides = CASES[name]
    surrogate = surrogate_for(grid, overrides)
    exact_surrogate = copy.deepcopy(surrogate).double()
    errors = {"fused": [], "plain": [], "single": []}
    for _ in range(3):
        frames = torch.randn(batch, 4, *grid.shape, 1, device="cuda")
        target = torch.randn(batch, 3, *grid.shape, 1, device="cuda")
        monkeypatch.setenv("FACTFORMER_FUSED", "off")
        exact = run(exact_surrogate, frames.double(), target.double(), bf16=False)
        for way, mode, bf16 in (("fused", "auto", True), ("plain", "off", True), ("single", "off", False)):
            monkeypatch.setenv("FACTFORMER_FUSED", mode)
            got = run(surrogate, frames, target, bf16=bf16)
            errors[way].append([relative(a, b) for a, b in zip(got, exact, strict=True)])
    (forward, gradient), (plain_forward, plain_gradient), single = (
        torch.tensor(errors[way]).mean(0).tolist() for way in errors
    )
    print(f"{name}: fused {forward:.1e} {gradient:.1e}, plain {plain_forward:.1e} {plain_gradient:.1e}")
    # One part in a hundred. Gradients of a fit to noise nearly cancel: plain operations in bfloat16 are off by 2 to 7
    # parts in a hundred there, and ours must not be far from them (docs/performance.md).
    assert forward < max(1e-2, plain_forward)
    assert gradient < max(1e-2, 2 * plain_gradient)
    assert max(single) < 1e-5


def test_replayed_calls_follow_the_weights():
    grid, batch, overrides = CASES["plane"]
    surrogate = surrogate_for(grid, overrides).eval()
    # Without autocast's own cache, which holds on to the weights of the first call within one region.
    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
        for _ in range(4):
            frames = torch.randn(batch, 4, *grid.shape, 1, device="cuda")
            assert torch.equal(surrogate(frames), surrogate.predict(Batch(frames), 3, grid))
            for parameter in surrogate.parameters():
                parameter.mul_(1.01)
    assert len(surrogate.graphs.records) == 1


def losses_of(surrogate, grid):
    def compute(frames, target, num_steps):
        with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
            prediction = surrogate.predict(Batch(frames), num_steps, grid)
        loss = metrics.loss(prediction, target[:, :num_steps], surrogate.problem.state_slices)
        return loss, {"loss": loss.detach()}

    return compute


def test_replayed_steps_give_the_gradients_of_eager_ones():
    grid, batch, overrides = CASES["plane"]
    surrogate = surrogate_for(grid, overrides)
    parameters, compute = list(surrogate.parameters()), losses_of(surrogate, grid)
    step = StepGraphs(compute, parameters)
    for _ in range(3):
        for num_steps in (1, 3):
            frames = torch.randn(batch, 4, *grid.shape, 1, device="cuda")
            target = torch.randn(batch, 3, *grid.shape, 1, device="cuda")
            loss, terms = step(num_steps, frames, target, num_steps=num_steps)
            got = [p.grad.clone() for p in parameters]
            expected_loss = compute(frames, target, num_steps)[0]
            expected = torch.autograd.grad(expected_loss, parameters)
            assert torch.equal(loss, expected_loss)
            assert torch.equal(terms["loss"], loss)
            assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))
            del expected_loss  # nodes that live on belong to the stream of this call and could not be recorded
    assert len(step.records) == 2


def test_after_a_refused_recording_all_goes_on_as_before():
    weight = torch.nn.Parameter(torch.ones(3, device="cuda"))

    def compute(x):
        loss = (weight * x).sum()
        if float(loss) < 0:  # asks the device, which a recording cannot
            loss = -loss
        return loss, {}

    step, stream = StepGraphs(compute, [weight]), torch.cuda.current_stream()
    before = torch.cuda.memory_reserved()
    for _ in range(4):
        x = torch.randn(3, device="cuda").abs()
        loss, _ = step("refused", x)
        assert torch.equal(weight.grad, x)
        assert torch.equal(loss, x.sum())
        assert torch.cuda.current_stream() == stream
    assert len(step.refused) == 1
    assert torch.cuda.memory_reserved() <= before + 2**24
    recordable = StepGraphs(lambda x: ((weight * x).sum(), {}), [weight])
    for _ in range(3):
        recordable("recorded", torch.rand(3, device="cuda"))
    assert len(recordable.records) == 1


def test_nodes_that_outlive_their_step_are_no_trouble():
    weight = torch.nn.Parameter(torch.ones(3, device="cuda"))
    step, kept = StepGraphs(lambda x: ((weight * x).sum(), {}), [weight]), []
    for _ in range(3):
        x = torch.randn(3, device="cuda")
        step("kept", x)
        assert torch.equal(weight.grad, x)
        kept.append((weight * x).sum())
    assert bool(torch.isfinite(torch.randn(3, device="cuda")).all())


def test_other_threads_may_pin_memory_during_a_recording():
    weight, done = torch.nn.Parameter(torch.ones(3, device="cuda")), threading.Event()

    def pin():
        size = 1
        while not done.is_set():
            size += 1000  # a new size each time: not from a cache
            torch.empty(size).pin_memory()

    def compute(x):
        time.sleep(0.2)
        return (weight * x).sum(), {}

    thread = threading.Thread(target=pin)
    thread.start()
    try:
        step = StepGraphs(compute, [weight])
        for _ in range(3):
            x = torch.randn(3, device="cuda")
            step("pinning", x)
            assert torch.equal(weight.grad, x)
    finally:
        done.set()
        thread.join()
    assert len(step.records) == 1
