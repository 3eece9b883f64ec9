"""The predicted time of an update: against steps measured on an H200, an update on this CPU, and formulas."""

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from factformer import Field, Grid, Problem, build_surrogate
from factformer.config import assignment
from factformer.evaluation.baselines import BOX, EAGER, OURS, PLANE, SETTINGS, Setting, runner_of
from factformer.protocols import build_protocol
from factformer.training.experiment.definition import Experiment
from factformer.training.footprint.counted import blank_window, count, fused_work_of
from factformer.training.footprint.devices import GPUS, find_device, probe
from factformer.training.footprint.operations import CountOperations
from factformer.training.footprint.predicted import fused_seconds, plain_seconds, predict_update, sent_bytes
from factformer.training.footprint.sharing import Share
from factformer.training.loop.objective import Objective
from factformer.training.loop.state import build_optimizer

SPEED = Path(__file__).parents[3] / "results" / "speed"
H200 = GPUS["h200"]
TF32 = 0.5 * H200.rates["bf16-mixed"]
PLUS = {"model": "factformer_plus"}
CASES = {
    **SETTINGS,
    "plus": Setting("factformer_plus, 128² × 4", (128, 128), 4, 4, {**PLANE, **PLUS}),
    "plus-box": Setting("factformer_plus, 64³ × 1, 4 channels", (64, 64, 64), 1, 2, {**BOX, **PLUS}, channels=4),
}
PROBLEM = Problem("waves", Grid((64, 64), 1.0, True), (Field("u"),), num_context_frames=4, horizon=8)


def measured(name, way):
    stored = "model_h200_first_tiles.json" if name.startswith("plus") else "model_h200.json"
    rows = json.loads((SPEED / stored).read_text(encoding="utf-8"))["rows"]
    (row,) = (row for row in rows if row["label"] == CASES[name].name)
    return row[way]["train_ms"] / 1e3


def experiment(**changes):
    model = {"name": "factformer", "dim": 48, "depth": 2, "heads": 4, "head_dim": 16, "kernel_dim": 32}
    marching = {"name": "latent_marching", "marching_steps": 2, "pushforward": 0}
    wanted = {"problem": "waves", "model": model, "protocol": marching, "training": {"batch_size": 4}}
    return Experiment.parse(wanted).override([assignment(key, value) for key, value in changes.items()])


@pytest.mark.parametrize("name", list(CASES))
def test_fused_training_steps_within_a_fifth_of_those_measured_on_an_h200(name):
    case = CASES[name]
    work = fused_work_of(case.surrogate("cpu"), case.batch, {"marching_steps": case.steps}, 1)
    predicted = fused_seconds(work, H200, H200.rates["bf16-mixed"])
    assert 0.85 <= predicted / measured(name, OURS) <= 1.2


@pytest.mark.parametrize("name", ["128", "256", "box"])
def test_eager_training_steps_within_a_fifth_of_those_measured_on_an_h200(name, monkeypatch):
    monkeypatch.setattr(nn.Module, "to", lambda module, *_: module)  # fake weights cannot be moved
    with FakeTensorMode(allow_non_fake_inputs=True):
        runner = runner_of(EAGER, SETTINGS[name], "cpu")
        runner.train()
        with CountOperations() as done:
            runner.train()
    predicted = plain_seconds(done.found, H200, TF32, recorded=False)
    assert 0.8 <= predicted / measured(name, EAGER) <= 1.2


def test_an_update_on_this_cpu_within_a_factor_of_three():
    wanted = experiment()
    protocol = build_protocol(wanted.protocol, PROBLEM)
    surrogate = build_surrogate(PROBLEM, wanted.model, marching_steps=2).train()
    objective, optimizer = Objective(surrogate, protocol), build_optimizer(surrogate, wanted.training)
    window, plan = blank_window(PROBLEM, 4, protocol.window_length), protocol.whole_plan(0, 1.0)
    window = window._replace(frames=torch.randn(window.frames.shape))
    found = []
    for _ in range(3):
        began = time.process_time()
        objective(window, plan)[0].backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append((time.process_time() - began) / torch.get_num_threads())
    predicted = predict_update(count(wanted, PROBLEM), find_device("cpu"), "32-true")
    assert predicted.way == "plain"
    assert 1 / 3 <= predicted.total / min(found) <= 3


def test_operations_have_the_arithmetic_of_the_update():
    found = count(experiment(), PROBLEM)
    assert sum(flops * number for (_, flops), number in found.operations.items()) == found.flops
    parts = count(experiment(**{"training.accumulate": 4}), PROBLEM)
    assert sum(flops * number for (_, flops), number in parts.operations.items()) == pytest.approx(parts.flops)


def test_bytes_of_single_operations():
    x = torch.ones(1000)
    with CountOperations() as done:
        x[:500].view(10, 50)  # moves nothing
        x + x
        x.expand(5, 1000).sum()
        x.zero_()
    assert dict(done.found) == {(12_000, 0): 1, (4_004, 0): 1, (8_000, 0): 1}
    with CountOperations() as done:
        torch.ones(20, 30) @ torch.ones(30, 40)
    assert done.found[4 * (600 + 1200 + 800), 2 * 20 * 30 * 40] == 1


def test_exchanges_take_the_bytes_that_leave_a_device():
    assert sent_bytes("gradients", 800.0, 4, "ddp") == 1200
    assert sent_bytes("gradients", 800.0, 4, "fsdp") == 600
    assert sent_bytes("weights", 100.0, 4, "fsdp") == 300
    assert sent_bytes("halo", 100.0, 4, "ddp") == 100
    footprint = count(experiment(**{"training.batch_size": 8}), PROBLEM, Share(4, 2))
    near, far = (predict_update(footprint, H200, "32-true", devices) for devices in (4, 2))
    assert near.exchange["gradients"] == pytest.approx(1.5 * footprint.sent["gradients"] / H200.link)
    assert near.exchange["halo" if "halo" in near.exchange else "reduce"] == pytest.approx(
        footprint.sent["reduce"] / H200.link  # of two parts an all-reduce moves what is given
    )
    assert far.exchange["reduce"] == near.exchange["reduce"]
    assert far.exchange["gradients"] / near.exchange["gradients"] == pytest.approx(H200.link / H200.network)
    assert near.total == near.work + sum(near.exchange.values())


def test_faster_devices_are_faster():
    footprint = count(experiment(), PROBLEM)
    twice = replace(H200, bandwidth=2 * H200.bandwidth)
    times = [predict_update(footprint, device, "32-true").total for device in (twice, H200, GPUS["a100"])]
    assert times == sorted(times)


def test_the_probe_finds_sensible_numbers():
    found = probe(rounds=1)
    assert 1e8 < found.bandwidth < 1e12
    assert 1e8 < found.rates["32-true"] < 1e13
    assert 1e-8 < found.launch["eager"] < 1e-3
