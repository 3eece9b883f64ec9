"""The terms of a normalisation's gradient under Triton's interpreter, held against their formulas."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
import triton_interpreter  # noqa: F401

from factformer.nn.fused.normalization_terms import normalization_terms


@pytest.mark.parametrize(("batch", "rows", "groups", "channels"), [(1, 16, 2, 4), (3, 70, 3, 5), (2, 9, 8, 64)])
def test_agrees_with_autograd(batch, rows, groups, channels):
    """Through ``h = W ẑ`` with a normalisation of each group, at equal weights of the points."""
    points = 11
    z = torch.randn(batch, points, groups, channels, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(rows, groups, channels, dtype=torch.float64, requires_grad=True)
    grad_h = torch.randn(batch, points, rows, dtype=torch.float64)
    mean = z.mean((1, 3), keepdim=True)
    scale = (z - mean).square().mean((1, 3), keepdim=True).rsqrt()
    hidden = torch.einsum("bpgc,rgc->bpr", (z - mean) * scale, weight)
    expected_z, expected_weight = torch.autograd.grad((hidden * grad_h).sum(), [z, weight])

    raw = torch.einsum("bpr,bpgc->brgc", grad_h, z).detach()
    statistics = torch.stack([mean[:, 0, :, 0], scale[:, 0, :, 0]], -1).detach()
    grad, terms = normalization_terms(
        raw.float(), grad_h.sum(1).float(), weight.detach().float(), statistics.float(), 1.0 / points
    )
    direct = torch.einsum("bpr,rgc->bpgc", grad_h, weight) * scale
    grad_z = direct + terms[:, None, :, None, 0] + terms[:, None, :, None, 1] * z
    assert torch.allclose(grad.double(), expected_weight, rtol=1e-4, atol=1e-4)
    assert torch.allclose(grad_z, expected_z, rtol=1e-4, atol=1e-4)
