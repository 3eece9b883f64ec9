"""Masked layers: the integral over the domain alone, nothing from outside, and the plain layer where all is inside."""

import math
import sys
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from factformer import Grid
from factformer.errors import UserError
from factformer.nn.attention.axial import AxialAttention
from factformer.nn.attention.galerkin import GalerkinAttention
from factformer.nn.attention.linear import LinearAttention
from factformer.nn.boundary_block import BoundaryBlock
from factformer.nn.convolution import Convolution
from factformer.nn.local_branch import LocalBranch
from factformer.nn.masks import WallCloseness
from factformer.nn.norms import DomainNorm

sys.path.insert(0, str(Path(__file__).parent))
from attention_oracle import attention_oracle, axis_quadrature, kernel_matrices, layer_norm, points_inside
from test_factorized_attention import GRIDS, attention, field, relative

PLANE = Grid((9, 7), (1.0, 2.0), (True, False))


def holes(grid, batch=2, seed=4):
    """A random mask for each sample; the second also lacks the first line of every axis that has others."""
    mask = torch.rand(batch, *grid.shape, generator=torch.Generator().manual_seed(seed)) > 0.35
    for axis, size in enumerate(grid.shape, start=1):
        if size > 2:
            mask[1:].narrow(axis, 0, 1).fill_(False)
    mask[(slice(None), *(size - 1 for size in grid.shape))] = True
    return mask


def spoiled(u, mask, value):
    return u.masked_fill(~mask.unsqueeze(-1), value)


@pytest.mark.parametrize("name", GRIDS)
@pytest.mark.parametrize("kernel_dim", [2, 8], ids=["low-rank order", "dense order"])
def test_attention_is_the_explicit_integral_over_the_domain(name, kernel_dim):
    grid = GRIDS[name]
    layer, u, mask = attention(grid, kernel_dim=kernel_dim), field(grid), holes(grid)
    result = layer(spoiled(u, mask, math.nan), grid, mask)
    expected = attention_oracle(layer, u, grid, mask)
    assert relative(result, expected) < 1e-10
    assert torch.equal(result == 0, expected == 0)
    assert relative(layer(u, grid), expected) > 1e-3


@pytest.mark.parametrize("options", [{"softmax": True}, {"parallel": True}, {"rotary": "periodic"}], ids=str)
def test_every_option_of_attention_is_an_integral_over_the_domain(options):
    grid = GRIDS["rectangle"]
    layer, u, mask = attention(grid, **options), field(grid), holes(grid)
    assert relative(layer(spoiled(u, mask, math.nan), grid, mask), attention_oracle(layer, u, grid, mask)) < 1e-10


@pytest.mark.parametrize("softmax", [False, True])
def test_axial_kernels_have_no_columns_for_lines_without_a_point_inside(softmax):
    grid = GRIDS["box"]
    layer, u, mask = attention(grid, softmax=softmax), field(grid), holes(grid)
    for m, kernel in enumerate(layer.axial_kernels(spoiled(u, mask, 1e6), grid, mask)):
        met = mask[1].movedim(m, 0).flatten(1).any(1)
        assert not met[0] and met.any()
        assert torch.equal(kernel[1, 0].abs().amax(0) > 0, met)
        expected = kernel_matrices(layer, layer.kernels[m], layer_norm(u[1], layer.norm), grid, m, mask[1])
        assert relative(kernel[1, 0][met], expected[0][met]) < 1e-10


def test_gradients_of_masked_attention_agree_with_the_oracle():
    grid = GRIDS["rectangle"]
    layer, mask = attention(grid, kernel_dim=2), holes(grid)
    u, seed = field(grid).requires_grad_(), field(grid, seed=5)
    inputs = [u, *layer.parameters()]
    ours = torch.autograd.grad((layer(u, grid, mask) * seed).sum(), inputs)
    theirs = torch.autograd.grad((attention_oracle(layer, u, grid, mask) * seed).sum(), inputs)
    for a, b in zip(ours, theirs, strict=True):
        assert relative(a, b) < 1e-9
    assert bool((ours[0][~mask] == 0).all())


def linear(explicit):
    return LinearAttention(2, 6, 2, 3, 8, explicit=explicit)


LAYERS = {
    "axial": lambda: AxialAttention(1, 6, 2, 4),
    "galerkin": lambda: GalerkinAttention(2, 6, 2, 3),
    "linear": lambda: linear(False),
    "linear explicit": lambda: linear(True),
    "norm": lambda: DomainNorm(3, 6),
    "convolution": lambda: Convolution(("periodic", "zero"), 6, 5, 3, dilation=2),
    "mirrored convolution": lambda: Convolution(
        ("periodic", "reflect"), 6, 6, 5, groups=6, home=Grid((6, 5), (1.0, 2.0), (True, False))
    ),
    "local branch": lambda: LocalBranch(6, 3, 2, ("periodic", "zero")),
    "boundary block": lambda: BoundaryBlock(2, 6, PLANE),
}


@pytest.fixture(params=LAYERS)
def layer(request):
    torch.manual_seed(0)
    return LAYERS[request.param]().double()


@pytest.mark.parametrize("value", [1e6, math.nan, math.inf])
def test_nothing_outside_influences_anything_inside(layer, value):
    u, mask = field(PLANE), holes(PLANE)
    expected = layer(u, PLANE, mask)
    assert torch.equal(layer(spoiled(u, mask, value), PLANE, mask)[mask], expected[mask])
    assert expected[mask].isfinite().all()
    assert not torch.allclose(layer(u, PLANE)[mask], expected[mask])


def test_a_mask_of_the_whole_box_is_none(layer):
    u = field(PLANE)
    torch.testing.assert_close(layer(u, PLANE, torch.ones(2, *PLANE.shape, dtype=torch.bool)), layer(u, PLANE))


def test_the_norm_takes_mean_and_variance_over_the_domain():
    grid = GRIDS["stretched"]
    u, mask = field(grid), holes(grid)
    result = DomainNorm(3, 6, eps=0.0).double()(spoiled(u, mask, math.nan), grid, mask).detach()
    weights = torch.outer(*(torch.tensor(axis_quadrature(grid, m), dtype=u.dtype) for m in range(2)))
    for sample, own in zip(result, mask, strict=True):
        for group in sample[own].split(2, dim=-1):
            share = weights[own][:, None] / weights[own].sum() / 2
            assert float((share * group).sum()) == pytest.approx(0.0, abs=1e-12)
            assert float((share * group.square()).sum()) == pytest.approx(1.0)


def test_linear_attention_is_the_mean_over_the_domain():
    """On a periodic box masked to half of its points it is the attention of those points alone."""
    layer, grid = linear(False).double(), Grid((8, 6), 1.0, True)
    layer.rotary = "off"
    half = Grid((8, 3), 1.0, True)
    u = field(grid)
    mask = torch.zeros(2, 8, 6, dtype=torch.bool)
    mask[:, :, ::2] = True
    torch.testing.assert_close(layer(u, grid, mask)[:, :, ::2], layer(u[:, :, ::2], half))


def test_axial_attention_sees_the_points_of_a_line_that_lie_inside():
    layer, grid = AxialAttention(1, 6, 2, 4, rotary="off").double(), Grid((4, 6), 1.0, True)
    u = field(grid)
    mask = torch.zeros(2, 4, 6, dtype=torch.bool)
    mask[:, 1:, ::2] = True
    expected = layer(u[:, 1:, ::2], Grid((3, 3), 1.0, True))
    torch.testing.assert_close(layer(u, grid, mask)[:, 1:, ::2], expected)


@pytest.mark.parametrize("kinds", [("periodic", "zero"), ("reflect", "periodic")])
def test_the_convolution_is_renormalised_by_the_part_of_its_stencil_inside(kinds):
    layer = Convolution(kinds, 6, 4).double()
    u, mask = field(PLANE), holes(PLANE)
    result = layer(spoiled(u, mask, math.nan), PLANE, mask)
    modes = {"periodic": "circular", "reflect": "reflect", "zero": "constant"}

    def padded(x, beyond):
        for axis, kind in enumerate(kinds):
            widths = [0, 0, 1, 1] if axis == 0 else [1, 1, 0, 0]
            x = functional.pad(x, widths, modes[kind], **({"value": beyond} if kind == "zero" else {}))
        return x

    filled = padded(spoiled(u, mask, 0.0).movedim(-1, 1), 0.0)
    within = padded(mask[:, None].double(), 1.0)
    for sample, *index in mask.nonzero().tolist():
        rows, columns = (slice(i, i + 3) for i in index)
        total = (layer.weight * filled[sample, :, rows, columns]).sum((1, 2, 3))
        share = within[sample, 0, rows, columns].mean()
        torch.testing.assert_close(result[sample, *index], total / share + layer.bias)


def test_a_constant_stays_constant_along_a_wall():
    """Weights that sum to one take a mean: of a constant field it is that constant, however many points lie inside."""
    layer = Convolution(("periodic", "periodic"), 6, 6, groups=6).double()
    with torch.no_grad():
        layer.weight.fill_(1 / 9)
        layer.bias.zero_()
    mask = holes(PLANE)
    u = torch.ones(2, *PLANE.shape, 6, dtype=torch.float64)
    torch.testing.assert_close(layer(spoiled(u, mask, 7.0), PLANE, mask)[mask], u[mask])


def test_walls_are_felt_nearby_and_at_any_resolution():
    home = Grid((32, 32), 1.0, (True, False))
    walls = WallCloseness(home)

    def closeness(grid):
        mesh = grid.mesh()
        body = ((mesh - 0.5).square().sum(-1) < 0.15**2)[None]
        return walls(~body, grid, torch.float64), ~body

    found, mask = closeness(home)
    assert found.shape == (1, 32, 32, 2)
    assert float(found.min()) >= 0 and float(found.max()) <= 1
    near, far = found[0, 16, 22], found[0, 0, 16]
    assert 0.1 < float(near[0]) < 0.6 and abs(float(far[0])) < 1e-4
    fine, _ = closeness(home.resample((64, 63)))
    assert float((fine[0, 0::2, 0::2][:, :32] - found[0])[mask[0]].abs().max()) < 0.1
    everywhere = torch.ones(1, 32, 32, dtype=torch.bool)
    assert float(walls(everywhere, home, torch.float64).abs().max()) < 1e-12


def test_a_mask_of_another_shape_is_named():
    layer = attention(PLANE)
    with pytest.raises(UserError, match=r"expected a boolean mask of shape \(2, 9, 7\), got torch.bool of \(2, 9, 6\)"):
        layer.check(field(PLANE), PLANE, torch.ones(2, 9, 6, dtype=torch.bool))
    with pytest.raises(UserError, match="expected a boolean mask"):
        layer.check(field(PLANE), PLANE, torch.ones(2, 9, 7))


def test_points_inside_are_those_of_the_mask():
    mask = holes(PLANE)[0]
    assert points_inside(PLANE, mask) == [tuple(index) for index in mask.nonzero().tolist()]
