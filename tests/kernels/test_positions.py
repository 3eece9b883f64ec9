"""The fused map of the Fourier features under Triton's interpreter, held against the plain layer."""

import math
import sys
from pathlib import Path

import pytest
import torch

from factformer.grid import Grid
from factformer.nn.fourier_features import FourierFeatures

sys.path.insert(0, str(Path(__file__).parent))
import triton_interpreter  # noqa: F401


@pytest.mark.parametrize("shape", [(70,), (9, 11), (3, 4, 5)])
def test_agrees_with_the_plain_layer(shape, monkeypatch):
    grid = Grid(shape, 2 * math.pi, True)
    layer = FourierFeatures(len(shape), 24, 1.0)
    probe = torch.randn(*shape, 24)
    monkeypatch.setenv("FACTFORMER_FUSED", "off")
    plain = layer(grid)
    expected = torch.autograd.grad((plain * probe).sum(), list(layer.parameters()))
    monkeypatch.setenv("FACTFORMER_FUSED", "force")
    fused = layer(grid)
    grads = torch.autograd.grad((fused * probe).sum(), list(layer.parameters()))
    assert torch.allclose(fused, plain, atol=1e-6)
    for a, b in zip(grads, expected, strict=True):
        assert a.shape == b.shape
        assert torch.allclose(a, b, rtol=1e-4, atol=1e-4)


def test_tables_of_two_types_live_side_by_side():
    grid = Grid(8, 1.0, True)
    layer = FourierFeatures(1, 8, 1.0)
    like = layer.linear.weight
    for dtype in (None, torch.bfloat16, None):
        (table,) = layer.tables.get("features", grid, 0, like, lambda: (layer.features(grid),), dtype)
        assert table.dtype == (dtype or torch.float32)
