"""Spectral convolution against the Fourier sum written out, against another package, across resolutions."""

import math
from itertools import product

import pytest
import torch

from factformer.errors import UserError
from factformer.grid import Grid
from factformer.models.ffno import FactorizedSpectralConvolution
from factformer.models.fno import Layer
from factformer.nn.spectral_conv import DomainPadding, SpectralConvolution, require_even_spacing


def frequency_index(k: int, num_modes: int) -> int:
    """Where the weight of frequency ``k`` of a full axis sits: 0 … M-1, -M … -1."""
    return k if k >= 0 else 2 * num_modes + k


def fourier_sum(layer: SpectralConvolution, u: torch.Tensor) -> torch.Tensor:
    """``Re Σ_k c_k R(k) û(k) e^{ikx}``, every transform an explicit sum over all points.

    The field is real, so each kept frequency of the half axis above zero stands for itself and its conjugate
    (``c = 2``).
    """
    sizes = u.shape[1:-1]
    weight = torch.view_as_complex(layer.weight)
    points = torch.tensor(list(product(*map(range, sizes))), dtype=torch.float64)
    flat = u.flatten(1, -2).to(torch.complex128)
    result = torch.zeros(*flat.shape[:2], weight.shape[-1], dtype=torch.float64)
    ranges = []
    for axis, (size, count) in enumerate(zip(sizes, layer.modes, strict=True)):
        resolved = (size - 1) // 2
        lowest = 0 if axis == len(sizes) - 1 else -min(count, resolved)
        ranges.append(range(lowest, min(count - 1, resolved) + 1))
    for k in product(*ranges):
        phase = 2j * math.pi * (points * torch.tensor(k) / torch.tensor(sizes)).sum(-1)
        coefficient = (torch.exp(-phase)[:, None] * flat).mean(1)
        index = (*(frequency_index(j, m) for j, m in zip(k[:-1], layer.modes, strict=False)), k[-1])
        term = (coefficient @ weight[index])[:, None] * torch.exp(phase)[:, None]
        result += (2 if k[-1] else 1) * term.real
    return result.unflatten(1, sizes)


@pytest.mark.parametrize(
    ("shape", "modes"),
    [
        ((9,), (3,)),
        ((8,), (4,)),
        ((5,), (4,)),
        ((8, 7), (2, 3)),
        ((5, 4), (4, 4)),
        ((4, 5, 6), (1, 2, 2)),
        ((6, 3, 4), (3, 3, 3)),
        ((3, 4, 3, 5), (1, 1, 1, 2)),
    ],
)
def test_spectral_convolution_is_the_fourier_sum(shape, modes):
    torch.manual_seed(0)
    layer = SpectralConvolution(range(len(shape)), modes, 3, 2).double()
    u = torch.randn(2, *shape, 3, dtype=torch.float64)
    torch.testing.assert_close(layer(u), fourier_sum(layer, u), rtol=1e-10, atol=1e-10)


def test_one_axis_alone_treats_the_other_as_batch():
    torch.manual_seed(0)
    layer = SpectralConvolution([1], [3], 2, 4).double()
    u = torch.randn(2, 5, 8, 2, dtype=torch.float64)
    rows = SpectralConvolution([0], [3], 2, 4).double()
    rows.load_state_dict(layer.state_dict())
    expected = torch.stack([rows(u[:, i]) for i in range(5)], dim=1)
    torch.testing.assert_close(layer(u), expected)


def test_fno_and_ffno_have_the_same_spectral_layer_in_one_dimension():
    torch.manual_seed(0)
    full = SpectralConvolution([0], [5], 4, 4).double()
    factorized = FactorizedSpectralConvolution(1, 5, 4).double()
    factorized.axes[0].load_state_dict(full.state_dict())
    u = torch.randn(3, 13, 4, dtype=torch.float64)
    torch.testing.assert_close(full(u), factorized(u), rtol=0, atol=0)


def test_band_limited_fields_give_the_same_result_at_every_resolution():
    torch.manual_seed(0)
    layer = SpectralConvolution([0, 1], [3, 3], 1, 1).double()
    outputs = []
    for size in (9, 18):
        x = torch.arange(size, dtype=torch.float64) * 2 * math.pi / size
        u = torch.sin(2 * x)[:, None] + torch.cos(x - 0.3) * torch.sin(x)[:, None]
        outputs.append(layer(u[None, ..., None]))
    torch.testing.assert_close(outputs[0], outputs[1][:, ::2, ::2], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("size", [15, 16])
def test_the_transform_runs_in_float32_under_autocast(size):
    torch.manual_seed(0)
    layer = SpectralConvolution([0, 1], [4, 4], 8, 8)
    u = torch.randn(2, size, size, 8)
    exact = layer(u)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = layer(u)
        narrow = layer(u.bfloat16())
    torch.testing.assert_close(mixed, exact, rtol=0, atol=0)
    assert narrow.dtype == torch.bfloat16
    torch.testing.assert_close(narrow.float(), exact, rtol=0.02, atol=0.02)


@pytest.mark.parametrize(("shape", "kept"), [((16,), (4,)), ((12, 15), (3, 4)), ((8, 10, 9), (2, 2, 3))])
def test_it_agrees_with_neuraloperator(shape, kept):
    """The same weights in the package's order: all frequencies but the last axis' ascend from ``-M``.

    All axes but the last are even: on odd ones the package (2.0.0) undoes ``fftshift`` by itself, which moves
    the modes by one.
    """
    package = pytest.importorskip("neuralop.layers.spectral_convolution", reason="neuraloperator is not installed")
    torch.manual_seed(0)
    ours = SpectralConvolution(range(len(shape)), kept, 3, 5)
    modes = [*(2 * count for count in kept[:-1]), 2 * (kept[-1] - 1)]
    theirs = package.SpectralConv(3, 5, modes, bias=False, factorization=None, implementation="reconstructed")
    weight = torch.view_as_complex(ours.weight.detach())
    ordered = weight
    for axis in range(len(shape) - 1):
        ordered = torch.fft.fftshift(ordered, dim=axis)
    with torch.no_grad():
        theirs.weight.tensor.copy_(ordered.movedim((-2, -1), (0, 1)))
    u = torch.randn(2, *shape, 3)
    torch.testing.assert_close(ours(u), theirs(u.movedim(-1, 1)).movedim(1, -1), rtol=1e-4, atol=1e-5)


def test_the_fno_layer_agrees_with_neuraloperator_s_block():
    package = pytest.importorskip("neuralop.layers.fno_block", reason="neuraloperator is not installed")
    torch.manual_seed(0)
    ours = Layer(dim=4, num_axes=2, num_modes=3, activate=True)
    theirs = package.FNOBlocks(
        4,
        4,
        n_modes=[6, 4],
        n_layers=1,
        fno_skip="linear",
        channel_mlp_skip=None,
        use_channel_mlp=False,
        factorization=None,
        implementation="reconstructed",
        non_linearity=torch.nn.functional.gelu,
    )
    state = theirs.state_dict()
    spectral = torch.view_as_complex(ours.spectral.weight.detach())
    (weight_name,) = [name for name in state if name.endswith("weight.tensor")]
    state[weight_name] = torch.fft.fftshift(spectral, dim=0).movedim((-2, -1), (0, 1))
    (skip_name,) = [name for name in state if "skips" in name and name.endswith("weight")]
    state[skip_name] = ours.pointwise.weight.detach().reshape(state[skip_name].shape)
    (bias_name,) = [name for name in state if name.endswith("bias")]
    state[bias_name] = ours.pointwise.bias.detach().reshape(state[bias_name].shape)
    theirs.load_state_dict(state)
    u = torch.randn(2, 12, 10, 4)
    # The package leaves the activation off its last block; ours is asked to do the same.
    ours.activate = False
    expected = theirs(u.movedim(-1, 1)).movedim(1, -1)
    torch.testing.assert_close(ours(u, Grid((12, 10), 1.0, True)), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("points", "sizes"), [("nodes", (17, 33, 65)), ("cells", (16, 32, 64))])
def test_the_padded_domain_has_the_same_length_at_every_resolution(points, sizes):
    lengths = []
    for size in sizes:
        grid = Grid((size, 8), 1.0, (False, True), points)
        widths = DomainPadding(0.25).widths(grid)
        spacing = float(grid.axis(0)[1] - grid.axis(0)[0])
        lengths.append((size + widths[0]) * spacing)
        assert widths[1] == 0
    assert lengths == pytest.approx([1.25] * len(sizes))


def test_padding_and_cropping_are_inverse():
    grid = Grid((9, 8, 5), 1.0, (False, True, False))
    u = torch.randn(2, *grid.shape, 3)
    domain = DomainPadding(0.5)
    extended = domain.extend(u, grid)
    assert extended.shape == (2, 12, 8, 6, 3)
    assert not extended[:, 9:].any()
    assert torch.equal(domain.crop(extended, grid), u)


def test_unevenly_spaced_axes_are_refused():
    require_even_spacing(Grid.from_axes([[0.0, 0.5, 1.0]]), "fno")
    require_even_spacing(Grid.from_axes([torch.linspace(-1, 1, 4096)]), "fno")  # rounded to float32
    with pytest.raises(UserError, match="axis 0 is not"):
        require_even_spacing(Grid.from_axes([[0.0, 0.4, 1.0]]), "fno")
