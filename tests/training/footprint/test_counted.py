"""An update counted before it is run: against formulas, PyTorch's own allocator, and itself under changes."""

import itertools
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from factformer import Field, Grid, Problem, build_surrogate, recipes
from factformer.errors import UserError
from factformer.evaluation.baselines import BOX
from factformer.protocols import build_protocol
from factformer.training.experiment.definition import Experiment
from factformer.training.footprint import checking
from factformer.training.footprint.advice import fits, largest_batch, suggestions
from factformer.training.footprint.counted import blank_window, count
from factformer.training.footprint.live_memory import BLOCK
from factformer.training.footprint.sharing import Share
from factformer.training.launch import described_problem
from factformer.training.loop.objective import Objective

PROBLEM = Problem("waves", Grid((24, 20), 1.0, True), (Field("u", 2),), num_context_frames=3, horizon=8)
SIZES = {"name": "factformer", "dim": 16, "depth": 2, "heads": 2, "head_dim": 8, "kernel_dim": 12}


def experiment(model=SIZES, **training):
    marching = {"name": "latent_marching", "marching_steps": 2, "pushforward": 1}
    return Experiment.parse(
        {"problem": "waves", "model": model, "protocol": marching, "training": {"batch_size": 4, **training}}
    )


def up(size):
    return (size + BLOCK - 1) // BLOCK * BLOCK


@pytest.mark.parametrize(("optimizer", "ema"), [("adamw", None), ("adam", 0.9)])
def test_weights_and_optimiser_are_exact(optimizer, ema):
    found = count(experiment(optimizer=optimizer, ema_decay=ema), PROBLEM)
    surrogate = build_surrogate(PROBLEM, experiment().model, marching_steps=2)
    sizes = [4 * p.numel() for p in surrogate.parameters()]
    assert found.parameters == sum(sizes) // 4
    assert found.optimizer == sum(2 * up(size) + BLOCK + (up(size) if ema else 0) for size in sizes)
    assert sum(map(up, sizes)) <= found.weights <= sum(map(up, sizes)) + 40 * BLOCK  # statistics of the data


def test_the_batch_is_its_frames():
    found = count(experiment(), PROBLEM)
    assert found.batch == up(4 * 4 * (3 + 2 * 2) * 24 * 20 * 2)
    assert (found.part, found.windows, found.sent, found.exchange) == ((24, 20), 4, {}, 0)


@pytest.mark.parametrize(
    "model",
    [SIZES, {"name": "factformer_plus", "dim": 16, "depth": 2}, {"name": "dilated_resnet", "dim": 16, "depth": 1}],
    ids=lambda model: model["name"],
)
def test_activations_are_those_that_the_allocator_of_the_cpu_gives_out(model):
    wanted = experiment(model)
    problem = PROBLEM.with_grid(Grid((48, 40), 1.0, True))
    protocol = build_protocol(wanted.protocol, problem)
    surrogate = build_surrogate(problem, wanted.model, marching_steps=2).train()
    objective = Objective(surrogate, protocol)
    window = blank_window(problem, 4, protocol.window_length)
    window = window._replace(frames=torch.randn(window.frames.shape))
    plan = protocol.whole_plan(0, 1.0)
    objective(window, plan)[0].backward()  # tables of the grid are made in the first call
    objective.zero_grad()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        objective(window, plan)[0].backward()
    events = [event for event in record.profiler.kineto_results.events() if event.name() == "[memory]"]
    changes = [event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]
    peak = max(itertools.accumulate(changes))
    assert len(changes) > 100
    # What an operation needs inside itself, such as a convolution, is not seen.
    assert 0.9 * peak <= count(wanted, problem).activations <= 1.02 * peak


def test_accumulation_and_checkpointing_save_activations():
    whole = count(experiment(), PROBLEM)
    parts = count(experiment(accumulate=4), PROBLEM)
    again = count(experiment(SIZES | {"checkpointing": True}), PROBLEM)
    assert parts.activations < 0.35 * whole.activations
    assert whole.flops <= parts.flops < 1.1 * whole.flops  # what is made of weights alone is made for each part
    assert again.activations < whole.activations
    assert again.flops > whole.flops


def test_processes_share_samples_weights_or_the_grid():
    alone = count(experiment(), PROBLEM)
    copies, shards, cut = (count(experiment(), PROBLEM, Share(4, *more)) for more in ((1,), (1, "fsdp"), (2,)))
    weights = 4 * alone.parameters
    assert copies.sent == {"gradients": weights}
    assert copies.exchange == weights
    assert copies.windows == 1
    assert shards.optimizer == alone.optimizer // 4
    assert shards.sent["gradients"] == weights
    assert weights / 4 < shards.sent["weights"] < 2 * weights / 4
    assert (cut.windows, cut.part) == (2, (12, 20))
    assert cut.activations < 0.7 * count(experiment(batch_size=2), PROBLEM).activations
    assert cut.batch == up(4 * 2 * (3 + 2 * 2) * 12 * 20 * 2)  # no more of the frames is read
    moved = count(experiment(augment=True), PROBLEM, Share(4, 2))
    assert moved.batch == up(4 * 2 * (3 + 2 * 2) * 24 * 20 * 2)  # symmetries take whole frames
    assert cut.inference < 0.7 * alone.inference
    twice = count(experiment(batch_size=8), PROBLEM, Share(4, 2))
    assert twice.sent["reduce"] == pytest.approx(2 * cut.sent["reduce"], rel=0.01)
    assert not torch.distributed.is_initialized()


@pytest.mark.parametrize(
    ("name", "processes"),
    [
        ("factformer", 2),
        pytest.param("factformer", 4, marks=pytest.mark.slow),
        ("factformer_plus", 2),
        ("dilated_resnet", 2),
    ],
)
def test_bytes_sent_over_a_cut_are_those_of_real_processes(name, processes):
    model = SIZES if name == "factformer" else {"name": name, "dim": 16, "depth": 1}
    wanted = experiment(model, batch_size=2)
    task = {"experiment": wanted.model_dump(mode="json"), "problem": PROBLEM.to_dict(), "processes": processes}
    script = [sys.executable, str(Path(__file__).with_name("cut_update.py"))]
    done = subprocess.run(script, input=json.dumps(task), capture_output=True, text=True, check=True, timeout=120)
    counted = count(wanted, PROBLEM, Share(processes, processes)).sent
    del counted["gradients"]
    assert counted in json.loads(done.stdout.splitlines()[-1])


def test_the_largest_part_of_an_uneven_cut_is_counted():
    problem = PROBLEM.with_grid(Grid((26, 20), 1.0, True))
    assert count(experiment(), problem, Share(2, 2)).part == (14, 20)


def test_counting_draws_no_random_number():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    count(experiment(), PROBLEM)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("recipe", ["darcy", "smoke", "obstacle", "kolmogorov_reynolds", "turbulence"])
def test_every_kind_of_problem_is_counted(recipe):
    from factformer.training.launch import described_problem

    wanted = recipes.build(recipe, "small", ["training.batch_size=2"])
    found = count(wanted, described_problem(wanted), Share(2, 2))
    assert found.plain > found.weights > 0
    assert found.inference > 0
    assert found.sent["reduce"] > 0


def test_counted_peaks_in_bfloat16_are_those_measured_on_an_h200():
    stored = Path(__file__).parents[3] / "results" / "speed" / "memory_h200.json"
    rows = json.loads(stored.read_text(encoding="utf-8"))["rows"]
    measured = {row["way"]: row["train_gb"] for row in rows if row["grid"] == [64, 64, 64] and row["patch"] == 1}
    sizes = [f"model.{key}={value}" for key, value in BOX.items()]
    settings = ["training.batch_size=1", "training.precision=bf16-mixed", "protocol.pushforward=0"]
    boxes = recipes.build("turbulence", "paper", [*sizes, *settings, "training.ema_decay=null"])
    found = count(boxes, described_problem(boxes, (64,)))
    assert 0.9 < found.plain / 1e9 / measured["plain"] < 1.1
    assert 0.9 < found.fused / 1e9 / measured["fused"] < 1.1


def test_the_largest_batch_fits_and_the_next_does_not():
    memory = 40e6
    largest = largest_batch(experiment(), PROBLEM, Share(), memory)
    sizes = [count(experiment(batch_size=size), PROBLEM).training for size in (largest, largest + 1)]
    assert [fits(size, memory) for size in sizes] == [True, False]
    assert largest_batch(experiment(), PROBLEM, Share(), 1e5) == 0


def test_suggestions_fit_or_say_how_far_away_they_are():
    whole = count(experiment(), PROBLEM).training
    helpful = suggestions(experiment(), PROBLEM, Share(), 0.8 * whole)
    assert "--set training.accumulate=4" in [change.options for change in helpful]
    assert all(fits(change.footprint.training, 0.8 * whole) for change in helpful)
    (far,) = suggestions(experiment(), PROBLEM, Share(), 1e4)
    assert far.footprint.training < whole
    assert "training.accumulate=4" in far.options
    assert "model.patch=2" in far.options


@pytest.mark.parametrize(("groups", "domain"), [(1, 1), (1, 2), (2, 2)])
def test_an_update_that_cannot_fit_is_refused_before_it_begins(monkeypatch, groups, domain):
    wanted = experiment()
    protocol = build_protocol(wanted.protocol, PROBLEM)
    peak = count(wanted.override([f"training.batch_size={4 // groups}"]), PROBLEM).plain / domain
    for room, refused in ((2 * peak, False), (0.5 * peak, True)):
        monkeypatch.setattr("factformer._support.limits.available_memory", lambda room=room: room)
        monkeypatch.setattr(checking, "available_memory", lambda room=room: room)
        if not refused:
            checking.check_memory(wanted, protocol, groups, domain, on_cpu=True)
            continue
        with pytest.raises(UserError, match="an update with a batch of"):
            checking.check_memory(wanted, protocol, groups, domain, on_cpu=True)
        checking.check_memory(wanted, protocol, groups, domain, on_cpu=False)
