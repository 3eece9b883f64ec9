"""The recorded training step against the plain one, on a GPU."""

import math

import pytest
import torch

from factformer import Field, Grid, Problem, build_surrogate, engine
from factformer.batch import Window
from factformer.protocols import build_protocol, parse_protocol
from factformer.training.loop.captured import CapturedStep
from factformer.training.loop.machine import keep_inputs
from factformer.training.loop.objective import Objective
from factformer.training.loop.optimizer.muon import Muon, layer_matrices
from factformer.training.loop.step import StepParts, train_step

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
PLANS = [{"marching_steps": 1, "pushforward": 0}, {"marching_steps": 2, "pushforward": 1}] * 3
OPTIMISERS = {
    "adamw": lambda surrogate: torch.optim.AdamW(surrogate.parameters(), lr=1e-3, fused=True),
    "muon": lambda surrogate: Muon(
        list(surrogate.parameters()), layer_matrices(surrogate.backbone), lr=1e-3, weight_decay=1e-4
    ),
    "sgd": lambda surrogate: torch.optim.SGD(surrogate.parameters(), lr=1e-3),
}
SIZES = {"dim": 32, "depth": 2, "heads": 2, "head_dim": 16, "kernel_dim": 16}


def trained(kind, precision, clip=1.0, plans=PLANS, restore_after=None, optimiser="adamw", shape=(16, 16), **sizes):
    from lightning_fabric import Fabric

    fabric = Fabric(accelerator="cuda", devices=1, precision=precision)
    fabric.launch()
    keep_inputs(fabric)
    torch.manual_seed(0)
    problem = Problem("p", Grid(shape, 2 * math.pi, True), (Field("a"),), num_context_frames=4, horizon=4)
    surrogate = build_surrogate(problem, **{**SIZES, **sizes}, marching_steps=2)
    engine.attach(surrogate)
    protocol = build_protocol(parse_protocol({"marching_steps": 2, "pushforward": 1}), problem)
    objective = Objective(surrogate, protocol)
    wrapped = fabric.setup_module(objective)
    optimizer = OPTIMISERS[optimiser](surrogate)
    parts = StepParts(fabric, wrapped, fabric.setup_optimizers(optimizer), list(surrogate.parameters()), clip, 1)
    captured = CapturedStep(objective, parts)
    if captured.whole:
        captured.prepare()  # both ways take the learning rate from the device
    step = captured if kind == "captured" else train_step
    frames = torch.randn(len(plans), 2, 8, *shape, 1, generator=torch.Generator().manual_seed(3)).cuda()
    losses = []
    for i, plan in enumerate(plans):
        terms = step(parts, Window(frames[i]), plan, 1e-3 / (i + 1))
        losses.append(torch.stack([terms["loss"], terms["gradient_norm"]]))
        if i == restore_after:  # as a roll-back does: new tensors for the optimiser's state
            optimizer.load_state_dict(optimizer.state_dict())
    if kind == "captured":
        assert len(captured.graphs.records) == 2
        assert not captured.graphs.refused
    return torch.stack(losses), torch.cat([p.detach().flatten() for p in surrogate.parameters()])


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
@pytest.mark.parametrize("clip", [None, 0.1])
def test_recorded_updates_are_the_plain_ones_bit_by_bit(precision, clip):
    losses, weights = trained("captured", precision, clip)
    plain_losses, plain_weights = trained("plain", precision, clip)
    assert torch.equal(losses, plain_losses)
    assert torch.equal(weights, plain_weights)
    assert len(set(losses[:, 0].tolist())) == len(PLANS)


def test_the_fused_kernels_too():
    # Sizes of tests/kernels/test_kernels_gpu.py, whose kernels serve here too.
    wide = {"shape": (40, 36), "dim": 128, "heads": 8, "head_dim": 64, "kernel_dim": 128}
    losses, weights = trained("captured", "bf16-mixed", **wide)
    plain_losses, plain_weights = trained("plain", "bf16-mixed", **wide)
    assert torch.equal(losses, plain_losses)
    assert torch.equal(weights, plain_weights)


def test_a_restored_optimiser_is_recorded_again():
    losses, weights = trained("captured", "32-true", plans=PLANS * 2, restore_after=5)
    plain_losses, plain_weights = trained("plain", "32-true", plans=PLANS * 2, restore_after=5)
    assert torch.equal(losses, plain_losses)
    assert torch.equal(weights, plain_weights)


def test_an_optimiser_that_cannot_be_recorded_moves_the_weights_afterwards():
    losses, weights = trained("captured", "32-true", optimiser="sgd")
    plain_losses, plain_weights = trained("plain", "32-true", optimiser="sgd")
    assert torch.equal(losses, plain_losses)
    assert torch.equal(weights, plain_weights)


def test_muon_is_recorded_as_a_whole():
    losses, weights = trained("captured", "bf16-mixed", optimiser="muon", plans=PLANS * 2, restore_after=5)
    plain_losses, plain_weights = trained("plain", "bf16-mixed", optimiser="muon", plans=PLANS * 2, restore_after=5)
    assert torch.equal(losses, plain_losses)
    assert torch.equal(weights, plain_weights)
