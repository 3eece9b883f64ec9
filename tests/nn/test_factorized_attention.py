"""Factorized attention against a dense oracle, under refinement, and in what it costs."""

import math
import sys
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from factformer import Grid
from factformer.nn import FactorizedAttention, KernelOptions

sys.path.insert(0, str(Path(__file__).parent))
from attention_oracle import attention_oracle, kernel_matrices, layer_norm

GRIDS = {
    "line": Grid(7, 1.3, False),
    "periodic line": Grid(6, 2 * math.pi, True),
    "rectangle": Grid((4, 7), (1.0, 2.5), (True, False)),
    "cells": Grid((5, 3), 1.0, False, "cells"),
    "stretched": Grid.from_axes([[0.0, 0.1, 0.4, 1.0], [0.0, 0.5, 0.6, 0.8, 1.7]]),
    "stretched periodic": Grid.from_axes([[0.0, 0.1, 0.4, 1.0], [0.0, 0.5, 0.9]], (True, False), (1.3, 0.9)),
    "box": Grid((3, 4, 5), (1.0, 2.0, 0.5), (True, False, True)),
    "hyperbox": Grid((2, 3, 2, 4), (1.0, 1.0, 2.0, 1.0), (True, False, False, True)),
}


def attention(grid, dim=6, heads=2, head_dim=3, kernel_dim=4, seed=0, parallel=False, **options):
    torch.manual_seed(seed)
    layer = FactorizedAttention(
        grid.num_axes, dim, heads, head_dim, kernel_dim, KernelOptions(**options), parallel=parallel
    ).double()
    with torch.no_grad():  # kernels of order one, so that no tolerance hides a mistake behind eps
        for parameter in layer.parameters():
            parameter.copy_(torch.randn_like(parameter) / math.sqrt(parameter.shape[-1]))
    return layer


def field(grid, dim=6, batch=2, seed=1):
    return torch.randn(batch, *grid.shape, dim, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def relative(a, b):
    return float(((a - b).norm() / b.norm()).detach())


@pytest.mark.parametrize("name", GRIDS)
@pytest.mark.parametrize("kernel_dim", [2, 8], ids=["low-rank order", "dense order"])
def test_agrees_with_the_dense_oracle(name, kernel_dim):
    grid = GRIDS[name]
    layer = attention(grid, kernel_dim=kernel_dim)
    u = field(grid)
    assert relative(layer(u, grid), attention_oracle(layer, u, grid)) < 1e-10


@pytest.mark.parametrize(
    "options",
    [{"rotary": "periodic"}, {"rotary": "off"}, {"softmax": True}, {"rotary_scale": 3.0}, {"parallel": True}],
    ids=str,
)
def test_every_option_agrees_with_the_oracle_and_matters(options):
    grid = Grid((6, 5), (2 * math.pi, 1.0), (True, False))
    layer, u = attention(grid, **options), field(grid)
    result = layer(u, grid)
    assert relative(result, attention_oracle(layer, u, grid)) < 1e-10
    assert relative(result, attention(grid)(u, grid)) > 1e-3


def test_one_axis_knows_no_order():
    grid = GRIDS["line"]
    u = field(grid)
    assert torch.equal(attention(grid, parallel=True)(u, grid), attention(grid)(u, grid))


def test_scaling_divides_the_kernels_and_matters_under_a_softmax():
    """Without a softmax the head normalisation removes any common factor of the kernels, this one included."""
    grid = Grid((6, 5), (2 * math.pi, 1.0), (True, False))
    u = field(grid)
    plain, scaled = attention(grid, kernel_dim=4), attention(grid, kernel_dim=4, scaling=True)
    for a, b in zip(plain.axial_kernels(u, grid), scaled.axial_kernels(u, grid), strict=True):
        assert relative(b, a / 2) < 1e-12
    assert relative(scaled(u, grid), plain(u, grid)) < 1e-10
    sharp, soft = attention(grid, softmax=True), attention(grid, softmax=True, scaling=True)
    assert relative(soft(u, grid), sharp(u, grid)) > 1e-3
    assert relative(soft(u, grid), attention_oracle(soft, u, grid)) < 1e-10


def test_gradients_agree_with_the_oracle():
    grid = GRIDS["stretched"]
    layer, u = attention(grid, kernel_dim=2), field(grid, batch=1).requires_grad_()
    seed = field(grid, batch=1, seed=5)
    inputs = [u, *layer.parameters()]
    ours = torch.autograd.grad((layer(u, grid) * seed).sum(), inputs)
    theirs = torch.autograd.grad((attention_oracle(layer, u, grid) * seed).sum(), inputs)
    for a, b in zip(ours, theirs, strict=True):
        assert relative(a, b) < 1e-9


@pytest.mark.parametrize("kernel_dim", [2, 8])
def test_gradcheck(kernel_dim):
    grid = Grid((3, 5), (1.0, 1.0), (True, False))
    layer, u = attention(grid, dim=4, heads=1, head_dim=2, kernel_dim=kernel_dim), field(grid, dim=4, batch=1)
    assert torch.autograd.gradcheck(lambda v: layer(v, grid), u.requires_grad_(), atol=1e-6)


@pytest.mark.parametrize("name", ["rectangle", "stretched", "box"])
def test_axial_kernels_hold_the_weights(name):
    grid = GRIDS[name]
    layer, u = attention(grid), field(grid)
    kernels = layer.axial_kernels(u, grid)
    assert [k.shape for k in kernels] == [(2, 2, size, size) for size in grid.shape]
    x = layer_norm(u[1], layer.norm)
    for m, kernel in enumerate(kernels):
        for head, expected in enumerate(kernel_matrices(layer, layer.kernels[m], x, grid, m)):
            assert relative(kernel[1, head], expected) < 1e-10


def smooth_field(grid, dim=6):
    """A smooth field that is 2π-periodic on periodic axes and generic on others, the same function on any grid."""
    mesh = grid.mesh()
    channels = []
    for c in range(dim):
        value = torch.full(grid.shape, 2.0 * c - 5.0, dtype=torch.float64)  # keeps the LayerNorm smooth
        for m in range(grid.num_axes):
            x = mesh[..., m]
            wave = (c % 3 + 1) * 2 * math.pi / grid.extent[m] if grid.periodic[m] else 1.0 + 0.4 * c
            value = value + torch.sin(wave * x + c + m) * (1 + 0.5 * m)
        channels.append(value)
    return torch.stack(channels, -1)[None]


def refined(kind, size):
    if kind == "nodes":
        return Grid((size + 1, size // 2 + 1), 1.0, False)
    if kind == "cells":
        return Grid((size, size // 2), 1.0, False, "cells")
    if kind == "stretched":
        parts = [torch.linspace(0, 1, n + 1, dtype=torch.float64) for n in (size, size // 2)]
        return Grid.from_axes([(x**2 + 0.3 * x) / 1.3 for x in parts])
    return Grid((size, size // 2), 2 * math.pi, True)


def order(kind, layer, sizes=(32, 64, 128)):
    """Measured order from three resolutions, on the points that all of them share."""
    results = []
    for level, size in enumerate(sizes):
        grid = refined(kind, size)
        out = layer(smooth_field(grid), grid)[0]
        step = 2**level
        # Cell centres move with the resolution: compare means over the coarse cells instead.
        if kind == "cells":
            out = out.unflatten(0, (sizes[0], step)).mean(1).unflatten(1, (sizes[0] // 2, step)).mean(2)
        else:
            out = out[::step, ::step]
        results.append(out.detach())
    first, second = relative(results[0], results[1]), relative(results[1], results[2])
    return math.log2(first / second), second


@pytest.mark.parametrize("kind", ["nodes", "stretched", "cells"])
def test_second_order_in_the_grid_on_bounded_axes(kind):
    layer = attention(refined(kind, 32), kernel_dim=8, rotary_scale=4.0)
    rate, _ = order(kind, layer)
    assert rate > 1.75


def test_periodic_axis_first_order_at_the_seam_and_spectral_with_periodic_rotary():
    paper, paper_error = order("periodic", attention(refined("periodic", 32), kernel_dim=8, rotary_scale=3.3))
    layer = attention(refined("periodic", 32), kernel_dim=8, rotary_scale=3.3, rotary="periodic")
    _, periodic_error = order("periodic", layer, sizes=(64, 128, 256))
    assert 0.7 < paper < 1.5
    assert periodic_error < 1e-4 * paper_error


@pytest.mark.parametrize("stage", ["kernel", "pooling", "normalisation"])
def test_dropping_the_weights_anywhere_breaks_convergence_on_a_stretched_grid(stage, monkeypatch):
    """Equal weights converge too, but to another answer: the stretched grid then disagrees with the uniform one."""
    import factformer.nn.attention.axial_kernel as kernel_module
    import factformer.nn.attention.factorized as attention_module

    layer = attention(refined("nodes", 32), kernel_dim=8, rotary_scale=4.0)
    uniform, stretched = refined("nodes", 64), refined("stretched", 256)

    def disagreement():
        integrals = []
        for grid in (uniform, stretched):
            out = layer(smooth_field(grid), grid)[0]
            integrals.append(torch.einsum("ijc,i,j->c", out, grid.weights(0), grid.weights(1)).detach())
        return relative(integrals[1], integrals[0])

    assert disagreement() < 1e-3
    mean = kernel_module.axial_mean
    if stage == "kernel":
        monkeypatch.setattr(
            kernel_module.AxialKernel,
            "matrix",
            lambda self, q, k, grid, mask=None: q @ k.transpose(-1, -2) / grid.shape[self.m],
        )
        monkeypatch.setattr(kernel_module.AxialKernel, "dense_is_cheaper", lambda self, grid: True)
    elif stage == "pooling":
        monkeypatch.setattr(kernel_module, "axial_mean", lambda x, weights, m: mean(x, [None] * len(weights), m))
    else:
        monkeypatch.setattr(attention_module, "cached_domain_weights", lambda *_: None)
    assert disagreement() > 5e-3


def test_every_parameter_learns_and_every_block_matters():
    grid = Grid((5, 6), (1.0, 2 * math.pi), (False, True))
    torch.manual_seed(0)
    layer = FactorizedAttention(2, 8, 2, 4, 6)
    u = field(grid, dim=8).float()
    layer(u, grid).square().sum().backward()
    for name, parameter in layer.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().max() > 0, name
    reference = layer(u, grid)
    for name, parameter in layer.named_parameters():
        kept = parameter.data.clone()
        parameter.data.mul_(-0.5).add_(0.1)
        assert not torch.equal(layer(u, grid), reference), name
        parameter.data.copy_(kept)


@pytest.mark.parametrize("num_axes", [1, 2, 3, 4])
def test_a_fresh_layer_is_switched_on(num_axes):
    """The small initial queries and keys must not vanish in the normalisation's eps, for any number of axes."""
    grid = Grid((4,) * num_axes, 1.0, True)
    torch.manual_seed(0)
    layer = FactorizedAttention(num_axes, 16, 2, 8, 8)
    u = field(grid, dim=16).float()
    result = layer(u, grid)
    assert result.std() > 0.05
    result.square().sum().backward()
    assert all(p.grad.abs().max() > 1e-6 for p in layer.parameters())


@pytest.mark.parametrize("kernel_dim", [1, 4], ids=["low-rank order", "dense order"])
@pytest.mark.parametrize("size", [2.0**-20, 2.0**25])
def test_the_size_of_queries_and_keys_does_not_matter(size, kernel_dim):
    """Normalised heads know no common factor, so that training may let it grow; float32 must bear that."""
    grid = GRIDS["box"]
    layer = attention(grid, kernel_dim=2 * kernel_dim).float()
    u = field(grid).float().requires_grad_()
    probe = field(grid, seed=2).float()

    def run():
        result = layer(u, grid)
        return result, *torch.autograd.grad((result * probe).sum(), [u, layer.to_values.weight])

    before = run()
    with torch.no_grad():
        for kernel in layer.axes():
            kernel.to_queries.weight.mul_(size)
            kernel.to_keys.weight.mul_(size)
    assert all(relative(a, b) < 1e-5 for a, b in zip(run(), before, strict=True))


def flops(grid, dim=16, heads=2, head_dim=8, kernel_dim=4):
    layer = FactorizedAttention(grid.num_axes, dim, heads, head_dim, kernel_dim)
    with FlopCounterMode(display=False) as counter:
        layer(torch.zeros(1, *grid.shape, dim), grid)
    return counter.get_total_flops()


def test_cost_is_linear_in_the_number_of_points():
    """Doubling one axis at fixed other axes doubles what is done per point; the rest (S² d) is small."""
    short, long = (flops(Grid((n, 16), 1.0, True)) for n in (256, 512))
    longer = flops(Grid((1024, 16), 1.0, True))
    assert (longer - long) / (long - short) == pytest.approx(2.0, rel=0.02)


def test_low_rank_order_makes_the_layer_linear_in_the_axis_length():
    line = [flops(Grid(n, 1.0, True)) for n in (128, 256, 512)]
    assert line[2] / line[1] == pytest.approx(2.0, rel=0.01)
    dense = [flops(Grid(n, 1.0, True), kernel_dim=512) for n in (128, 256, 512)]
    assert dense[2] - 2 * dense[1] > 0.05 * dense[1]


def test_bfloat16_autocast_keeps_kernels_and_statistics_in_float32():
    grid = Grid((24, 17), (2 * math.pi, 1.0), (True, False))
    torch.manual_seed(0)
    layer = FactorizedAttention(2, 32, 4, 16, 16)
    u = field(grid, dim=32).float()
    exact = layer.double()(u.double(), grid)
    layer = layer.float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = layer(u, grid)
        kernels = layer.axial_kernels(u, grid)
    assert result.dtype == torch.bfloat16
    assert all(k.dtype == torch.float32 for k in kernels)
    assert relative(result.double(), exact) < 2e-2


@pytest.mark.parametrize("size", [1, 3])
def test_batch_independence(size):
    grid = GRIDS["rectangle"]
    layer, u = attention(grid), field(grid, batch=4)
    assert relative(layer(u, grid)[:size], layer(u[:size], grid)) < 1e-12


def test_constant_projection_gives_a_kernel_of_coordinate_differences():
    """A field that is constant along an axis projects to a constant there: A_ij / w_j depends on x_i - x_j."""
    grid = Grid((12, 5), (1.0, 1.0), (False, True))
    layer = attention(grid, kernel_dim=8)
    u = field(grid, batch=1)[:, :1].expand(-1, 12, -1, -1)
    kernel = (layer.axial_kernels(u, grid)[0] / grid.weights(0))[0, 0]
    for offset in range(-11, 12):
        diagonal = kernel.diagonal(offset)
        assert (diagonal - diagonal[0]).abs().max() < 1e-9 * kernel.abs().max()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((0, 8, 2, 4, 4), "1 to 4 axes"),
        ((2, 8, 0, 4, 4), "positive sizes"),
        ((2, 8, 2, 4, 5), "kernel_dim must be even"),
    ],
)
def test_impossible_sizes_are_named(arguments, words):
    with pytest.raises(ValueError, match=words):
        FactorizedAttention(*arguments)


def test_wrong_field_is_named():
    grid = GRIDS["rectangle"]
    with pytest.raises(ValueError, match="2 axes and 6 channels"):
        attention(grid)(torch.zeros(1, 4, 7, 5, dtype=torch.float64), grid)
