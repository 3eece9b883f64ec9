"""Rotary encoding, Fourier features, norms, encoder, marching, decoder and boundary block."""

import copy
import math

import pytest
import torch
from torch.nn import functional

from factformer import Grid
from factformer.nn.attention.rotary import rotary_frequencies, rotary_table, rotate
from factformer.nn.boundary_block import BoundaryBlock, upsample_nearest
from factformer.nn.decoder import Decoder, GroupedLinear
from factformer.nn.fourier_features import FourierFeatures
from factformer.nn.frame_encoder import FrameEncoder
from factformer.nn.grid_tables import TableCache
from factformer.nn.marching import LatentMarching
from factformer.nn.norms import DomainNorm
from factformer.training.experiment.definition import parse_model


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_rotary_products_depend_on_differences_only():
    grid = Grid(9, 2.0, False)
    cosine, sine = rotary_table(grid, 0, 8, "paper", 5.0)
    q, k = rotate(random(1, 8).expand(9, 8), cosine, sine), rotate(random(1, 8, seed=1).expand(9, 8), cosine, sine)
    products = q @ k.T
    for offset in range(-8, 9):
        diagonal = products.diagonal(offset)
        assert torch.allclose(diagonal, diagonal[0].expand_as(diagonal), atol=1e-12)
    assert torch.allclose(q.norm(dim=-1), q[0].norm().expand(9))


def test_rotary_frequencies_follow_the_paper():
    grid = Grid(16, 2 * math.pi, True)
    expected = [64 * 10000 ** (-2 * (pair - 1) / 6) for pair in (1, 2, 3)]
    assert rotary_frequencies(grid, 0, 6, "paper").tolist() == pytest.approx(expected)
    whole = rotary_frequencies(Grid(16, 3.0, True), 0, 32, "periodic") * 3.0 / (2 * math.pi)
    assert torch.allclose(whole, whole.round(), atol=1e-12)
    bounded = Grid(16, 3.0, False)
    assert torch.equal(rotary_frequencies(bounded, 0, 8, "periodic"), rotary_frequencies(bounded, 0, 8, "paper"))


def test_fourier_features_formula_and_periodic_mode():
    grid = Grid((6, 5), (2.0, 1.0), (True, False))
    layer = FourierFeatures(2, 8, std=3.0).double()
    features = layer.features(grid)
    point = grid.mesh()[2, 3]
    phase = 2 * math.pi * (point @ layer.frequencies)
    assert torch.allclose(features[2, 3], torch.cat([phase.sin(), phase.cos()]))
    assert torch.allclose(layer(grid), features @ layer.linear.weight.T + layer.linear.bias)
    periodic = FourierFeatures(2, 8, std=3.0, mode="periodic").double()
    first = periodic.features(Grid.from_axes([[0.0, 2.0 - 1e-13], [0.0, 1.0]], (True, False), (2.0, 1.0)))
    assert torch.allclose(first[0], first[1], atol=1e-9)
    with pytest.raises(ValueError, match="even"):
        FourierFeatures(2, 7, 1.0)


def test_domain_norm_is_group_norm_on_equal_weights():
    grid = Grid((6, 5), 1.0, True)
    layer = DomainNorm(4, 8).double()
    layer.weight.data, layer.bias.data = random(8), random(8, seed=1)
    x = random(3, 6, 5, 8, seed=2)
    expected = functional.group_norm(x.movedim(-1, 1), 4, layer.weight, layer.bias, layer.eps).movedim(1, -1)
    assert torch.allclose(layer(x, grid), expected)
    with pytest.raises(ValueError, match="10 channels do not divide into 4"):
        DomainNorm(4, 10)


def test_domain_norm_weighs_a_stretched_grid():
    grid = Grid.from_axes([[0.0, 0.1, 1.0]])
    x = random(1, 3, 4)
    out = DomainNorm(1, 4).double()(x, grid)
    assert abs(float((out[0].detach().mean(-1) * grid.weights(0)).sum())) < 1e-12


def test_frame_encoder_is_a_convolution_over_time():
    encoder = FrameEncoder(5, 1, 7).double()
    frames = random(2, 5, 4, 3, 1)
    weight = encoder.compress.weight.reshape(7, 1, 1, 5)
    columns = frames.movedim(1, -1).reshape(2, 1, 12, 5)  # N points × T_in frames, as in the paper
    expected = functional.conv2d(columns, weight, encoder.compress.bias)
    assert torch.allclose(encoder(frames), expected.reshape(2, 7, 4, 3).movedim(1, -1))
    assert FrameEncoder(4, 3, 8)(torch.zeros(2, 4, 6, 3)).shape == (2, 6, 8)


def test_marching_follows_its_recurrence_and_shorter_is_a_prefix():
    marching = LatentMarching(6, 5, 8, 3).double()
    z = random(2, 4, 6)
    states = marching(z, 3)
    assert torch.equal(marching(z, 2), states[:, :2])
    current = marching.expand(z)
    for step in range(3):
        current = current + marching.steps[step]
        current = current + marching.mlp(marching.norm(current))
        assert torch.allclose(states[:, step], current)


def test_grouped_linear_is_a_grouped_convolution():
    layer = GroupedLinear(4, 8, 12).double()
    x = random(3, 5, 8)
    weight = layer.weight.transpose(1, 2).reshape(12, 2, 1)
    assert torch.allclose(layer(x), functional.conv1d(x.movedim(-1, 1), weight, layer.bias, groups=4).movedim(1, -1))
    with pytest.raises(ValueError, match="do not divide"):
        GroupedLinear(8, 12, 16)


def test_decoder_shape():
    grid = Grid((4, 5), 1.0, False)
    assert Decoder(32, 16, 3)(torch.randn(2, 4, 5, 32), grid).shape == (2, 4, 5, 3)


@pytest.mark.parametrize("shape", [(7,), (8,), (5, 6), (3, 4, 5), (2, 3, 3, 2)])
def test_boundary_block_keeps_any_size_and_its_input(shape):
    block = BoundaryBlock(len(shape), 8)
    z = torch.randn(2, *shape, 8)
    out = block(z)
    assert out.shape == (2, *shape, block.dim_out)
    assert torch.equal(out[..., :8], z)


def test_nearest_upsampling_matches_torch():
    u = random(2, 4, 3, 5)
    expected = functional.interpolate(u.movedim(-1, 1), size=(7, 5), mode="nearest").movedim(1, -1)
    assert torch.equal(upsample_nearest(u, (7, 5)), expected)


def test_tables_are_made_once_per_grid_and_not_copied():
    cache, made = TableCache(), []

    def make():
        made.append(1)
        return (torch.ones(3, dtype=torch.float64),)

    grid = Grid(3, 1.0, True)
    like = torch.zeros(1)
    assert cache.get("t", grid, 0, like, make)[0] is cache.get("t", Grid(3, 1.0, True), 0, like, make)[0]
    cache.get("t", grid, 0, like.double(), make)
    cache.get("t", Grid(3, 2.0, True), 0, like, make)
    assert len(made) == 3
    assert copy.deepcopy(cache).tables == {}
    assert list(cache.state_dict()) == []


def test_boundary_block_has_walls_where_the_grid_has():
    torch.manual_seed(0)
    block = BoundaryBlock(2, 8, Grid((8, 6), 1.0, (True, False))).double()
    z = torch.randn(1, 8, 6, 8, dtype=torch.float64)
    torch.testing.assert_close(block(z.roll(4, 1)), block(z).roll(4, 1))
    assert not torch.allclose(block(z.roll(2, 2)), block(z).roll(2, 2))


def test_an_axis_without_fourier_frequencies_has_no_part_in_the_features():
    grid = Grid((6, 5), (2.0, 1.0), True)
    torch.manual_seed(0)
    one = FourierFeatures(2, 8, std=3.0)
    torch.manual_seed(0)
    each = FourierFeatures(2, 8, std=(0.0, 3.0))
    features = each.features(grid)
    assert torch.equal(features, features[:1].expand_as(features))
    assert not torch.equal(features[:, 0], features[:, 1])
    assert torch.equal(each.frequencies[1], one.frequencies[1])  # one number for all draws what it always has
    with pytest.raises(ValueError, match="fourier_std has 2 entries for a grid of 1 axes"):
        parse_model({"name": "factformer", "fourier_std": [0.0, 1.0]}).positions(1)
