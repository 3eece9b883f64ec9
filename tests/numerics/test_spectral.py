"""Truncated Fourier series against trigonometric functions and exact products."""

import math

import pytest
import torch

from factformer.errors import UserError
from factformer.grid import Grid
from factformer.numerics.spectral import (
    Spectrum,
    full_cutoff,
    padded_shape,
    quick_size,
    resample,
    transform,
    two_thirds_cutoff,
)

SHAPES = [(16,), (15,), (12, 9), (8, 10, 7), (6, 5, 7, 8)]


def random_series(spectrum: Spectrum, seed: int = 0) -> torch.Tensor:
    """Coefficients of a random real field, by way of a grid that resolves them."""
    shape = [2 * k + 1 for k in spectrum.cutoff]
    values = torch.randn(2, *shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return spectrum.coefficients(values)


@pytest.mark.parametrize("shape", SHAPES)
def test_values_and_coefficients_are_inverse_on_any_grid(shape: tuple[int, ...]) -> None:
    spectrum = Spectrum([2 * math.pi] * len(shape), full_cutoff(shape))
    series = random_series(spectrum)
    for points in (shape, [size + 3 for size in shape]):
        torch.testing.assert_close(spectrum.coefficients(spectrum.values(series, points)), series)


@pytest.mark.parametrize("shape", SHAPES)
def test_all_axes_at_once_give_the_same(shape: tuple[int, ...]) -> None:
    """The way of the GPU, which runs anywhere."""
    for cutoff in (full_cutoff(shape), two_thirds_cutoff(shape), (0,) * len(shape)):
        spectrum = Spectrum([2 * math.pi] * len(shape), cutoff)
        series = random_series(spectrum)
        values = spectrum.values(series, shape)
        torch.testing.assert_close(spectrum._values_at_once(series, shape), values)
        torch.testing.assert_close(spectrum._coefficients_at_once(values), series)


@pytest.mark.parametrize("shape", SHAPES)
def test_derivative_of_a_wave_is_exact(shape: tuple[int, ...]) -> None:
    extent = [2.0 + m for m in range(len(shape))]
    grid = Grid(shape, extent, periodic=True)
    spectrum = Spectrum.of_grid(grid, full_cutoff(shape), dtype=torch.float64)
    wave = [2 * math.pi * (m + 1 if m + 1 <= (shape[m] - 1) // 2 else 1) / length for m, length in enumerate(extent)]
    phase = sum(k * grid.mesh()[..., m] for m, k in enumerate(wave))
    coefficients = spectrum.coefficients(torch.sin(phase))
    for m, k in enumerate(wave):
        slope = spectrum.values(spectrum.derivative(m) * coefficients, shape)
        torch.testing.assert_close(slope, k * torch.cos(phase), atol=1e-12, rtol=0)
    laplacian = spectrum.values(-spectrum.squared * coefficients, shape)
    torch.testing.assert_close(laplacian, -sum(k * k for k in wave) * torch.sin(phase), atol=1e-11, rtol=0)
    back = spectrum.values(spectrum.inverse_squared * spectrum.squared * coefficients, shape)
    torch.testing.assert_close(back, torch.sin(phase), atol=1e-12, rtol=0)


@pytest.mark.parametrize("shape", [(16,), (17, 12), (8, 11, 9)])
@pytest.mark.parametrize("rule", ["two thirds", "three halves"])
def test_products_hold_no_aliases(shape: tuple[int, ...], rule: str) -> None:
    """The product on the rule's points has the modes of the product on twice as many, where nothing wraps."""
    cutoff = two_thirds_cutoff(shape) if rule == "two thirds" else full_cutoff(shape)
    points = shape if rule == "two thirds" else padded_shape(cutoff)
    spectrum = Spectrum([1.0] * len(shape), cutoff)
    a, b = random_series(spectrum, 1), random_series(spectrum, 2)
    exact_points = [4 * k + 3 for k in cutoff]
    exact = spectrum.coefficients(spectrum.values(a, exact_points) * spectrum.values(b, exact_points))
    ours = spectrum.coefficients(spectrum.values(a, points) * spectrum.values(b, points))
    torch.testing.assert_close(ours, exact)


def test_one_mode_more_would_alias() -> None:
    """The cut of the 2/3 rule is the largest: with the next mode the product is wrong."""
    for size in (12, 13, 14, 15):
        cutoff = two_thirds_cutoff([size])[0] + 1
        spectrum = Spectrum([1.0], [cutoff])
        wave = torch.zeros(1, cutoff + 1, dtype=torch.complex128)
        wave[0, cutoff] = 1
        on_grid = spectrum.coefficients(spectrum.values(wave, [size]) ** 2)
        exact = spectrum.coefficients(spectrum.values(wave, [4 * size]) ** 2)
        assert (on_grid - exact).abs().max() > 0.5


def test_mean_product_is_the_mean_over_points() -> None:
    spectrum = Spectrum([1.0, 3.0], [4, 5])
    a, b = random_series(spectrum, 1), random_series(spectrum, 2)
    points = (16, 17)
    expected = (spectrum.values(a, points) * spectrum.values(b, points)).mean((-1, -2))
    torch.testing.assert_close(spectrum.mean_product(a, b), expected)


def test_resample_keeps_the_modes_that_both_grids_hold() -> None:
    coarse, fine = Grid((12, 9), 2 * math.pi, periodic=True), Grid((20, 32), 2 * math.pi, periodic=True)

    def field(grid: Grid) -> torch.Tensor:
        x = grid.mesh()
        return (torch.sin(3 * x[..., 0] - 2 * x[..., 1]) + torch.cos(4 * x[..., 1]))[None]

    torch.testing.assert_close(resample(field(fine), 2, coarse.shape), field(coarse))
    torch.testing.assert_close(resample(field(coarse), 2, fine.shape), field(fine))
    torch.testing.assert_close(resample(field(coarse), 2, coarse.shape), field(coarse))
    beyond = torch.cos(7 * fine.mesh()[..., 0])[None]
    torch.testing.assert_close(resample(beyond, 2, coarse.shape), torch.zeros(1, 12, 9, dtype=torch.float64))


def test_single_precision_stays_single() -> None:
    spectrum = Spectrum([1.0, 1.0], [3, 3], dtype=torch.float32)
    values = torch.randn(1, 8, 8)
    assert spectrum.coefficients(values).dtype == torch.complex64
    assert spectrum.values(spectrum.coefficients(values), (8, 8)).dtype == torch.float32


def test_quick_sizes_have_small_factors() -> None:
    assert [quick_size(n) for n in (1, 7, 88, 97, 121, 1025)] == [2, 8, 90, 100, 128, 1080]
    assert padded_shape(full_cutoff((60,))) == (90,)


def test_mistakes_are_named() -> None:
    with pytest.raises(UserError, match="8 points do not resolve"):
        Spectrum([1.0], [4]).values(torch.zeros(5, dtype=torch.complex128), [8])
    with pytest.raises(UserError, match="axis 1 has no Fourier modes"):
        Spectrum.of_grid(Grid((8, 8), 1.0, (True, False)), (2, 2), dtype=torch.float32)


def test_gradients_flow_through_the_transforms() -> None:
    spectrum = Spectrum([1.0, 1.0], [2, 2])
    values = torch.randn(1, 6, 7, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda v: spectrum.values(spectrum.coefficients(v), (8, 5)), values)


@pytest.mark.parametrize("shape", [(16,), (64,), (12,), (16, 16), (1, 16), (6, 8, 10)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_bits_of_a_field_do_not_depend_on_its_batch(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    fields = torch.randn(5, *shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    spectrum = Spectrum([2 * math.pi] * len(shape), full_cutoff(shape), dtype=dtype)
    coefficients = spectrum.coefficients(fields)
    values = spectrum.values(coefficients, shape)
    for row in range(len(fields)):
        one = slice(row, row + 1)
        assert torch.equal(spectrum.coefficients(fields[one]), coefficients[one])
        assert torch.equal(spectrum.values(coefficients[one], shape), values[one])


def test_no_lines_are_transformed_to_no_lines() -> None:
    none = torch.zeros(3, 0, 8)
    modes = transform(torch.fft.rfft, none, -1)
    assert modes.shape == (3, 0, 5)
    assert modes.dtype == torch.complex64
    assert transform(torch.fft.irfft, modes, -1, size=8).shape == none.shape
