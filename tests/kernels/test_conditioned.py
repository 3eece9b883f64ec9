"""A surrogate with parameters and forcing on the fused kernels, under Triton's interpreter, against the plain path."""

import math

import torch

import triton_interpreter  # noqa: F401
from factformer import Field, Grid, Problem, build_surrogate, engine
from factformer.batch import Batch
from small_models import moved

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


def values_and_gradients(surrogate, batch, mode):
    """The prediction, and the gradients of its mean square by parameter."""
    engine.attach(surrogate, mode)
    surrogate.zero_grad()
    values = surrogate(batch)
    values.square().mean().backward()
    gradients = {name: p.grad.clone() for name, p in surrogate.named_parameters() if p.grad is not None}
    return values.detach(), gradients


def test_modulated_layers_and_their_gradients_agree():
    torch.manual_seed(0)
    surrogate = moved(build_surrogate(PROBLEM, "factformer_plus", marching_steps=2, **SIZES))
    batch = Batch(torch.randn(2, 2, 5, 4, 1), forcing=torch.randn(2, 4, 5, 4, 1), parameters=torch.randn(2, 1))
    (plain, expected), (fused, gradients) = (values_and_gradients(surrogate, batch, mode) for mode in ("off", "force"))
    assert relative(fused, plain) < 1e-4
    modulations = [name for name in expected if "modulation" in name]
    assert len(modulations) == SIZES["depth"]
    for name in modulations:
        assert relative(gradients[name], expected[name]) < 1e-3, name


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
    (plain, expected), (fused, gradients) = (values_and_gradients(surrogate, batch, mode) for mode in ("off", "force"))
    assert {way for way, _ in ways.values()} == {"fused"}
    assert ways.keys() == engine.TABLE.keys()
    assert relative(fused, plain) < 1e-4
    assert bool((fused[~mask.unsqueeze(1).expand(-1, 2, -1, -1)] == 0).all())
    assert gradients.keys() == expected.keys()
    for name, wanted in expected.items():
        assert float((gradients[name] - wanted).norm()) < 1e-3 * float(wanted.norm()) + 1e-9, name
