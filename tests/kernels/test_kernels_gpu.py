"""The fused path and its graphs on a GPU, against float64: ``pytest -m gpu tests/kernels/test_kernels_gpu.py``."""

import json
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from factformer import engine, metrics
from factformer.batch import Batch
from factformer.kernels._triton.limits import MEDIUM, SMALL
from factformer.kernels.graphs import StepGraphs

sys.path.insert(0, str(Path(__file__).parent))
import gpu_cases
from gpu_cases import CASES, errors_of, surrogate_for

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


RESTRICTED = ("plane", "box", "plane with a local branch", "box of patches", "patches around bodies")


def count_calls(monkeypatch):
    """How often each stage ran on its fused kernels, from now on."""
    counts = dict.fromkeys(engine.TABLE, 0)

    def counted(name, row):
        def call(*arguments, **options):
            counts[name] += 1
            return row.fused(*arguments, **options)

        return replace(row, fused=call)

    monkeypatch.setattr(engine, "TABLE", {name: counted(name, row) for name, row in engine.TABLE.items()})
    return counts


def assert_near(name, errors):
    """One part in a hundred. Gradients of a fit to noise nearly cancel: plain operations in bfloat16 are off by 2 to 7
    parts in a hundred there, and ours must not be far from them (docs/performance.md)."""
    (forward, gradient), (plain_forward, plain_gradient) = errors["fused"], errors["plain"]
    print(f"{name}: fused {forward:.1e} {gradient:.1e}, plain {plain_forward:.1e} {plain_gradient:.1e}")
    assert forward < max(1e-2, plain_forward)
    assert gradient < max(1e-2, 2 * plain_gradient)
    assert max(errors["single"]) < 1e-5


@pytest.mark.parametrize("name", CASES)
def test_stays_within_a_percent_of_float64(name, monkeypatch):
    counts = count_calls(monkeypatch)
    assert_near(name, errors_of(CASES[name]))
    expected = {"encoder", "positions", "attention", "march_decode"}
    expected |= {"local"} if CASES[name].model.get("model") == "factformer_plus" else set()
    expected |= {"modulation"} if "parameters" in CASES[name].parts else set()
    assert {stage for stage, calls in counts.items() if calls} == expected


@pytest.mark.parametrize("limits", [MEDIUM, SMALL], ids=["164 KB", "100 KB"])
@pytest.mark.parametrize("name", RESTRICTED)
def test_kernels_within_the_memory_of_other_cards(name, limits, monkeypatch):
    counts = count_calls(monkeypatch)
    assert_near(name, errors_of(CASES[name], limits))
    assert counts["attention"] > 0


@pytest.mark.parametrize("name", ["plane", "plane with a local branch"])
def test_compiled_stages_stay_near_float64(name):
    words = [sys.executable, gpu_cases.__file__, name]
    done = subprocess.run(words, capture_output=True, text=True, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert_near(name, found["errors"])
    assert not found["failed"]


def test_replayed_calls_follow_the_weights():
    case = CASES["plane"]
    surrogate, grid, batch = surrogate_for(case).eval(), case.grid, case.batch_size
    engine.attach(surrogate)
    # Without autocast's own cache, which holds on to the weights of the first call within one region.
    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
        for _ in range(4):
            frames = torch.randn(batch, 4, *grid.shape, 1, device="cuda")
            assert torch.equal(surrogate(frames), engine.predict(surrogate, Batch(frames), 3, grid))
            for parameter in surrogate.parameters():
                parameter.mul_(1.01)
    assert len(surrogate.implementation.graphs.records) == 1


def losses_of(surrogate, grid):
    def compute(frames, target, num_steps):
        with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
            prediction = engine.predict(surrogate, Batch(frames), num_steps, grid)
        loss = metrics.loss(prediction, target[:, :num_steps], surrogate.problem.state_slices)
        return loss, {"loss": loss.detach()}

    return compute


def test_replayed_steps_give_the_gradients_of_eager_ones():
    case = CASES["plane"]
    surrogate, grid, batch = surrogate_for(case), case.grid, case.batch_size
    engine.attach(surrogate)
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
