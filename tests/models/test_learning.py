"""Every model learns a known operator: the heat equation on a circle over a fixed time, solved exactly.

u(x, T) = Σ_k e^{-νk²T} û_k(0) e^{ikx}
"""

import math

import pytest
import torch

from factformer import catalog, metrics
from factformer.grid import Grid
from factformer.problem import Field, Problem
from factformer.surrogate import build_surrogate

PROBLEM = Problem("heat", Grid(32, 2 * math.pi, True), (Field("temperature"),))
SMALL = {
    "dim": 32,
    "depth": 2,
    "heads": 2,
    "head_dim": 16,
    "kernel_dim": 16,
    "coarsening": 2,
    "multipliers": (1, 1),
    "width": 16,
    "num_halvings": 2,
    "num_levels": 2,
    "window": 8,
    "num_slices": 16,
    "layer_scale": 0.1,
}
OWN = {
    "transolver": {"kernel_size": 7},  # with 3 points it takes three times as many updates
    **{model: {"depth": 1} for model in ("unet", "convnext_unet", "swin_transformer")},  # of each level
}
DIFFUSION = 0.1
"""νT."""


def heat(num_samples: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Random smooth initial temperatures of five waves and what becomes of them."""
    waves = torch.arange(1, 6, dtype=torch.float32)
    phases = waves[:, None] * PROBLEM.grid.axis(0, dtype=torch.float32)
    basis = torch.stack([phases.sin(), phases.cos()], dim=1)
    amplitudes = torch.randn(num_samples, 5, 2, generator=generator) / waves[:, None]
    decay = torch.exp(-DIFFUSION * waves.square())[:, None]
    initial, final = (torch.einsum("nkp,kpx->nx", a, basis) for a in (amplitudes, amplitudes * decay))
    return initial[:, None, :, None], final[:, None, :, None]


@pytest.mark.parametrize("model", catalog.names("models"))
def test_300_updates_bring_the_error_under_five_percent(model):
    torch.manual_seed(0)
    known = catalog.find("models", model).Config.model_fields
    sizes = {key: value for key, value in SMALL.items() if key in known}
    surrogate = build_surrogate(PROBLEM, model, marching_steps=1, **{**sizes, **OWN.get(model, {})})
    optimizer = torch.optim.AdamW(surrogate.parameters(), lr=4e-3, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=4e-3, total_steps=300, pct_start=0.2)
    generator = torch.Generator().manual_seed(1)
    for _ in range(300):
        initial, final = heat(16, generator)
        optimizer.zero_grad()
        metrics.loss(surrogate(initial), final, PROBLEM.state_slices).backward()
        torch.nn.utils.clip_grad_norm_(surrogate.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    initial, final = heat(64, torch.Generator().manual_seed(2))
    with torch.no_grad():
        error = metrics.relative_l2(surrogate(initial), final).mean()
    persistence = metrics.relative_l2(initial, final).mean()
    assert persistence > 0.4  # the operator is not the identity
    assert error < 0.05
