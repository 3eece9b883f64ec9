"""The layers of the Fourier models, written from their formulas."""

import torch
from torch.nn import functional

from factformer.grid import Grid
from factformer.models import ffno, fno
from factformer.problem import Field, Problem

GRID = Grid((8, 9), 6.28, True)
PROBLEM = Problem("torus", GRID, (Field("u"),))
Z = torch.randn(2, 8, 9, 16, generator=torch.Generator().manual_seed(0))


def test_an_fno_layer_adds_a_pointwise_skip_and_the_last_one_has_no_activation():
    model = fno.Model(fno.Config(dim=16, depth=2, modes=3), PROBLEM)
    first, last = model.layers
    hidden = functional.gelu(first.spectral(Z) + Z @ first.pointwise.weight.T + first.pointwise.bias)
    expected = last.spectral(hidden) + hidden @ last.pointwise.weight.T + last.pointwise.bias
    torch.testing.assert_close(model(Z, GRID), expected)


def test_an_ffno_layer_is_a_residual_around_feed_forward_of_summed_axes():
    model = ffno.Model(ffno.Config(dim=16, depth=1, modes=3), PROBLEM)
    layer = model.layers[0]
    narrow, _, wide = layer.feed_forward
    summed = sum(convolution(Z) for convolution in layer.spectral.axes)
    hidden = (summed @ narrow.weight.T + narrow.bias).clamp_min(0)
    torch.testing.assert_close(layer(Z, GRID), Z + hidden @ wide.weight.T + wide.bias)


def test_ffno_normalises_groups_of_channels_before_the_last_layer():
    model = ffno.Model(ffno.Config(dim=16, modes=3, norm_groups=4), PROBLEM)
    groups = model(5 + 3 * Z, GRID).unflatten(-1, (4, 4))
    torch.testing.assert_close(groups.mean((1, 2, 4)), torch.zeros(2, 4), rtol=0, atol=1e-5)
    torch.testing.assert_close(groups.var((1, 2, 4), correction=0), torch.ones(2, 4), rtol=0, atol=1e-3)


def test_every_axis_of_ffno_has_weights_of_its_own():
    layer = ffno.FactorizedSpectralConvolution(2, 3, 16)
    both = layer(Z)
    torch.testing.assert_close(both, layer.axes[0](Z) + layer.axes[1](Z))
    with torch.no_grad():
        layer.axes[1].weight.zero_()
    torch.testing.assert_close(layer(Z), layer.axes[0](Z))
    assert not torch.allclose(both, layer(Z))
