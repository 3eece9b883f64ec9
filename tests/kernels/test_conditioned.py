"""A surrogate with parameters and forcing on the fused kernels, under Triton's interpreter, against the plain path."""

import math
import sys
from pathlib import Path

import torch

from factformer import Field, Grid, Problem, build_surrogate, engine
from factformer.batch import Batch

sys.path.insert(0, str(Path(__file__).parents[1]))
import triton_interpreter  # noqa: F401

PROBLEM = Problem(
    "test",
    Grid((5, 4), 2 * math.pi, True),
    (Field("u"),),
    forcing=(Field("heating"),),
    parameters=("reynolds",),
    num_context_frames=2,
)
SIZES = {"dim": 16, "depth": 1, "heads": 2, "head_dim": 4, "kernel_dim": 4}


def relative(a, b):
    return float((a - b).norm() / b.norm())


def test_modulated_layers_and_their_gradients_agree():
    torch.manual_seed(0)
    surrogate = build_surrogate(PROBLEM, "factformer_plus", marching_steps=2, **SIZES)
    with torch.no_grad():
        for parameter in surrogate.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    batch = Batch(torch.randn(2, 2, 5, 4, 1), forcing=torch.randn(2, 4, 5, 4, 1), parameters=torch.randn(2, 1))
    found = {}
    for mode in ("off", "force"):
        engine.attach(surrogate, mode)
        surrogate.zero_grad()
        values = surrogate(batch)
        values.square().mean().backward()
        gradients = {name: p.grad.clone() for name, p in surrogate.named_parameters() if "modulation" in name}
        found[mode] = values.detach(), gradients
    assert relative(found["force"][0], found["off"][0]) < 1e-4
    assert len(found["off"][1]) == SIZES["depth"]
    for name, expected in found["off"][1].items():
        assert relative(found["force"][1][name], expected) < 1e-3, name


def test_parameters_forcing_static_fields_and_a_mask_leave_no_stage_plain(monkeypatch):
    problem = Problem(
        "test",
        Grid((5, 4), 2 * math.pi, True),
        (Field("u"),),
        static=(Field("coefficient"),),
        forcing=(Field("heating"),),
        parameters=("reynolds",),
        num_context_frames=2,
        masked=True,
    )
    torch.manual_seed(0)
    surrogate = build_surrogate(problem, "factformer_plus", marching_steps=2, **SIZES)
    mask = torch.rand(2, 5, 4) > 0.3
    batch = Batch(
        torch.randn(2, 2, 5, 4, 1),
        static=torch.randn(2, 5, 4, 1),
        forcing=torch.randn(2, 4, 5, 4, 1),
        parameters=torch.randn(2, 1),
        mask=mask,
    )
    ways = {}
    choice = engine.StageExecution.choice

    def noted(self, layer, *arguments):
        ways[self.stage] = choice(self, layer, *arguments)
        return ways[self.stage]

    monkeypatch.setattr(engine.StageExecution, "choice", noted)
    found = {}
    for mode in ("off", "force"):
        engine.attach(surrogate, mode)
        surrogate.zero_grad()
        values = surrogate(batch)
        values.square().mean().backward()
        found[mode] = values.detach(), [p.grad.clone() for p in surrogate.parameters() if p.grad is not None]
    assert {way for way, _ in ways.values()} == {"fused"}
    assert ways.keys() == engine.TABLE.keys()
    assert relative(found["force"][0], found["off"][0]) < 1e-4
    assert bool((found["force"][0][~mask.unsqueeze(1).expand(-1, 2, -1, -1)] == 0).all())
    assert len(found["off"][1]) == len(found["force"][1])
    for fused, plain in zip(found["force"][1], found["off"][1], strict=True):
        assert float((fused - plain).norm()) < 1e-3 * float(plain.norm()) + 1e-9
