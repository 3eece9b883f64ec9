"""Blocked stages on a CPU: the numbers of the plain layers for every kind of call, and when they are taken."""

import subprocess
import sys

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from factformer import Field, Grid, Problem, build_surrogate, engine
from factformer.evaluation.cost import random_batch
from factformer.kernels.blocked import attention, positions, products
from factformer.nn import FactorizedAttention
from factformer.rollout import rollout

SIZES = {"dim": 16, "depth": 2, "heads": 3, "head_dim": 8, "kernel_dim": 8}
SQUARE = Grid((12, 10), (1.0, 2.0), (True, True))


def problem(grid=SQUARE, boundary="periodic", **options):
    return Problem("test", grid, (Field("a"), Field("b")), num_context_frames=2, boundary=boundary, **options)


CASES = {
    "one axis": (problem(Grid((33,), (1.0,), (True,))), {}),
    "two axes": (problem(), {}),
    "walls": (problem(Grid((9, 14), (1.0, 2.5), (True, False)), "zero"), {}),
    "three axes": (problem(Grid((6, 7, 5), (1.0, 1.0, 2.0), (True, False, True)), "zero"), {}),
    "four axes": (problem(Grid((4, 3, 5, 4), (1.0,) * 4, (True,) * 4)), {"local_kernel": 3}),
    "one field": (Problem("test", SQUARE, (Field("a"),), num_context_frames=3), {}),
    "low rank": (problem(), {"kernel_dim": 2}),
    "softmax": (problem(), {"softmax": True}),
    "axes added": (problem(), {"contraction": "parallel"}),
    "no positions": (problem(), {"fourier": "off"}),
    "patches": (problem(), {"patch": 2}),
    "forcing": (problem(forcing=(Field("f"),)), {}),
    "parameters": (problem(parameters=("viscosity",)), {}),
    "mask": (problem(masked=True), {}),
    "mask and walls": (problem(Grid((9, 14), (1.0, 2.5), (False, False)), "zero", masked=True), {}),
    "the paper's": (problem(), {"name": "factformer"}),
}


def case(name, dtype=torch.float32):
    torch.manual_seed(0)
    task, options = CASES[name]
    options = {**SIZES, **options}
    surrogate = build_surrogate(task, options.pop("name", "factformer_plus"), marching_steps=2, **options).eval()
    generator = torch.Generator().manual_seed(1)
    batch = random_batch(surrogate, 2, 2, generator)
    if batch.mask is not None:
        mask = torch.rand(batch.mask.shape, generator=generator) > 0.3
        mask[:, 3] = False  # a line without any point inside
        batch = batch._replace(mask=mask)
    if batch.parameters is not None:
        batch = batch._replace(parameters=batch.parameters.abs() + 0.1)
        for layer in surrogate.backbone.modules():
            if type(layer).__name__ == "Modulation":
                torch.nn.init.normal_(layer.weight, std=0.1, generator=generator)
    return surrogate.to(dtype), batch.to(dtype)


@torch.no_grad()
def called(surrogate, batch, mode):
    engine.attach(surrogate, mode)
    return surrogate(batch, 2)


def difference(a, b):
    return float((a - b).norm() / b.norm())


@pytest.fixture(params=["onednn", "torch"])
def library(request):
    """Products by oneDNN, and where this PyTorch has none."""
    with torch.backends.mkldnn.flags(enabled=request.param == "onednn"):
        yield request.param


@pytest.mark.parametrize("name", CASES)
def test_blocked_calls_are_as_near_the_exact_answer_as_plain_ones(name, library, monkeypatch):
    monkeypatch.setattr(products, "POINTS", 50)  # several blocks, the last one smaller
    monkeypatch.setattr(attention, "PIECE", 600)  # heads in pieces
    monkeypatch.setattr(attention, "COLUMNS", 64)
    exact = called(*case(name, torch.float64), "off")
    surrogate, batch = case(name)
    plain, blocked = called(surrogate, batch, "off"), called(surrogate, batch, "blocked")
    assert blocked.dtype == plain.dtype
    assert difference(blocked, exact) < max(2e-6, 3 * difference(plain, exact))
    if batch.mask is not None:
        assert not blocked[~batch.mask.unsqueeze(1).expand(-1, 2, *batch.mask.shape[1:])].any()


@pytest.mark.parametrize("name", ["two axes", "three axes", "mask", "forcing"])
def test_under_autocast_they_err_as_bfloat16_does(name):
    if products.number_format(torch.zeros(1, dtype=torch.bfloat16)) is None:
        pytest.skip("no bfloat16 products here")
    surrogate, batch = case(name)
    exact = called(surrogate, batch, "off")
    with torch.autocast("cpu", torch.bfloat16):
        plain, blocked = called(surrogate, batch, "off"), called(surrogate, batch, "blocked")
    assert blocked.dtype == plain.dtype
    assert difference(blocked, exact) < 2 * difference(plain, exact)


def test_every_stage_of_a_call_is_blocked(monkeypatch):
    taken = []
    for name, row in engine.TABLE.items():
        if row.blocked is None:
            continue
        run = row.blocked.run
        monkeypatch.setattr(row.blocked, "run", lambda *a, run=run, name=name, **o: taken.append(name) or run(*a, **o))
    called(*case("two axes"), "blocked")
    assert taken == ["encoder", *["positions", "attention", "local"] * 2, "march_decode"]


def way(layer, mode=None, points=(64, 64), dtype=torch.float32):
    grid = Grid(points, (1.0, 1.0), (True, True))
    return engine.StageExecution("attention", mode).choice(layer, torch.zeros(1, *points, 128, dtype=dtype), None, grid)


def test_when_a_stage_is_blocked():
    layer = FactorizedAttention(2, 128, 2).eval()
    with torch.no_grad():
        assert way(layer) == ("blocked", torch.float32)
        assert way(layer, points=(60, 64))[0] == "plain", "so little stays in the cache"
        assert way(layer, "blocked", (8, 8))[0] == "blocked"
        assert way(layer, "off")[0] == "plain"
        assert way(layer, dtype=torch.float64)[0] == "plain"
        assert way(layer.train())[0] == "plain", "pushing forward in training keeps its bits"
        layer.eval()
        with FlopCounterMode(display=False):
            assert way(layer)[0] == "plain", "a counter sees the operations it knows"
        layer.to_values.register_forward_hook(lambda *_: None)
        assert way(layer)[0] == "plain", "whoever hooks a layer wants it called"
        assert way(FactorizedAttention(2, 128, 2, parallel=True).eval())[0] == "plain"
    assert way(FactorizedAttention(2, 128, 2).eval())[0] == "plain", "a gradient is wanted"


def test_transforms_and_gradients_see_the_plain_layers():
    surrogate, batch = case("two axes")
    engine.attach(surrogate, "blocked")
    with torch.no_grad():
        derivative = torch.func.jvp(lambda x: surrogate(x, 1), (batch.context,), (batch.context,))[1]
    engine.attach(surrogate, "off")
    with torch.no_grad():
        assert torch.equal(derivative, torch.func.jvp(lambda x: surrogate(x, 1), (batch.context,), (batch.context,))[1])


def test_kept_positions_follow_the_weights():
    surrogate, batch = case("two axes")
    first = called(surrogate, batch, "blocked")
    assert torch.equal(called(surrogate, batch, "blocked"), first), "the same bits again"
    layer = surrogate.backbone.layers[0].attention.positions
    kept = positions._kept[layer].encoding
    with torch.no_grad():
        assert positions.run(layer, SQUARE, dtype=torch.float32) is kept
    layer.linear.weight.data.mul_(2.0)  # which no version counter notices
    changed = called(surrogate, batch, "blocked")
    assert difference(changed, called(surrogate, batch, "off")) < 2e-6 < difference(changed, first)


def test_a_roll_out_in_inference_mode():
    surrogate, batch = case("two axes")
    engine.attach(surrogate, "blocked")
    with torch.inference_mode():
        inside = torch.stack(list(rollout(surrogate, batch.context, 5)))
    with torch.no_grad():
        assert torch.equal(torch.stack(list(rollout(surrogate, batch.context, 5))), inside)


KEEPING = """
import resource, sys
from factformer._support.freed_memory import keep_freed_memory

if sys.argv[1] == "keep":
    assert keep_freed_memory()
before = 0
for turn in range(5):
    if turn == 2:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    len(b"x" * (40_000_000 + turn))
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="a setting of the C library of Linux")
def test_freed_memory_is_kept_for_the_next_tensor():
    def faults(word):
        done = subprocess.run([sys.executable, "-c", KEEPING, word], capture_output=True, text=True, check=True)
        return int(done.stdout)

    assert faults("keep") < 100 < 1000 < faults("give back")
