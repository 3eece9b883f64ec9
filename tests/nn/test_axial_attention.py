"""Axial attention against a loop over the lines of the grid."""

import math

import pytest
import torch

from factformer.errors import UserError
from factformer.grid import Grid
from factformer.nn.attention.axial import AxialAttention


@pytest.mark.parametrize("m", [0, 1, 2])
@pytest.mark.parametrize("rotary", ["paper", "off"])
def test_it_is_softmax_attention_on_every_line(m, rotary):
    torch.manual_seed(0)
    grid = Grid((4, 3, 5), 1.0, (True, False, False), ("nodes", "nodes", "cells"))
    heads, width = 2, 4
    layer = AxialAttention(m, 6, heads, width, rotary).double()
    u = torch.randn(2, *grid.shape, 6, dtype=torch.float64)
    x = layer.norm(u).movedim(m + 1, 3)
    expected = torch.zeros_like(x)
    pair = torch.arange(width // 2, dtype=torch.float64)
    angle = grid.axis(m)[:, None] * 64 * 10000.0 ** (-2 * pair / width)
    turn = torch.polar(torch.ones_like(angle), angle)
    for b in range(2):
        for i in range(x.shape[1]):
            for j in range(x.shape[2]):
                line = layer.to_factors(x[b, i, j])
                merged = []
                for head in range(heads):
                    q, k, v = (line[:, part * 8 + head * width :][:, :width] for part in range(3))
                    if rotary == "paper":
                        q, k = (
                            torch.view_as_real(
                                torch.view_as_complex(f.unflatten(-1, (-1, 2)).contiguous()) * turn
                            ).flatten(-2)
                            for f in (q, k)
                        )
                    kernel = grid.weights(m) * torch.exp(q @ k.T / math.sqrt(width))
                    merged.append(kernel / kernel.sum(-1, keepdim=True) @ v)
                expected[b, i, j] = layer.to_output(torch.cat(merged, dim=-1))
    torch.testing.assert_close(layer(u, grid), expected.movedim(3, m + 1), rtol=1e-10, atol=1e-10)


def test_lines_do_not_see_each_other():
    grid = Grid((6, 5), 1.0, True)
    layer = AxialAttention(0, 8, 2, 4)
    u = torch.randn(1, 6, 5, 8)
    changed = u.clone()
    changed[:, :, 2] += 1 + torch.randn(6, 8)
    difference = (layer(changed, grid) - layer(u, grid)).abs().amax((0, 1, 3))
    assert difference[2] > 1e-3
    assert difference[[0, 1, 3, 4]].max() < 1e-6


def test_heads_of_an_odd_width_are_refused():
    with pytest.raises(UserError, match="head_dim must be even, got 3"):
        AxialAttention(0, 6, 2, 3)
