"""The recorded training step against the plain one, on a GPU."""

import math

import pytest
import torch

from factformer import Field, Grid, Problem, build_surrogate
from factformer.protocols import ProtocolConfig, Window, build_protocol
from factformer.training.captured import CapturedStep
from factformer.training.objective import Objective
from factformer.training.step import StepParts, train_step

pytestmark = pytest.mark.gpu
PLANS = [{"marching_steps": 1, "pushforward": 0}, {"marching_steps": 2, "pushforward": 1}] * 3


def trained(kind, precision):
    from lightning_fabric import Fabric

    fabric = Fabric(accelerator="cuda", devices=1, precision=precision)
    fabric.launch()
    torch.manual_seed(0)
    problem = Problem("p", Grid((16, 16), 2 * math.pi, True), (Field("a"),), num_context_frames=4, horizon=4)
    surrogate = build_surrogate(
        problem, dim=32, depth=2, heads=2, head_dim=16, kernel_dim=16, marching_steps=2
    )
    protocol = build_protocol(
        ProtocolConfig(name="latent_marching", marching_steps=2, pushforward=1), problem
    )
    objective = Objective(surrogate, protocol)
    wrapped = fabric.setup_module(objective)
    optimizer = fabric.setup_optimizers(torch.optim.AdamW(surrogate.parameters(), lr=1e-3, fused=True))
    parts = StepParts(fabric, wrapped, optimizer, list(surrogate.parameters()), 1.0, 1)
    step = CapturedStep(objective, parts) if kind == "captured" else train_step
    frames = torch.randn(6, 2, 8, 16, 16, 1, generator=torch.Generator().manual_seed(3)).cuda()
    losses = [float(step(parts, Window(frames[i], None), plan, 1e-3)["loss"]) for i, plan in enumerate(PLANS)]
    return torch.tensor(losses), torch.cat([p.detach().flatten() for p in surrogate.parameters()])


@pytest.mark.parametrize(("precision", "tolerance"), [("32-true", 1e-4), ("bf16-mixed", 2e-2)])
def test_recorded_updates_follow_the_plain_ones(precision, tolerance):
    losses, weights = trained("captured", precision)
    plain_losses, plain_weights = trained("plain", precision)
    assert torch.allclose(losses, plain_losses, rtol=tolerance)
    assert float((weights - plain_weights).norm() / plain_weights.norm()) < tolerance
    assert len(set(losses.tolist())) == len(PLANS)
