"""Singular-value energy, randomized SVD and stationarity against kernels whose answer is known."""

import pytest
import torch

from factformer import Grid
from factformer.evaluation.spectra import (
    cumulative_energy,
    fraction_for_energy,
    product_singular_values,
    randomized_singular_values,
    stationarity,
    symmetry,
)

GENERATOR = torch.Generator()


@pytest.fixture(autouse=True)
def _reseed():
    GENERATOR.manual_seed(7)


def kernel_of_spectrum(values: torch.Tensor, size: int) -> torch.Tensor:
    left = torch.linalg.qr(torch.randn(size, size, generator=GENERATOR, dtype=torch.float64)).Q
    right = torch.linalg.qr(torch.randn(size, size, generator=GENERATOR, dtype=torch.float64)).Q
    return left[:, : len(values)] @ torch.diag(values) @ right[:, : len(values)].T


def test_energy_of_a_kernel_of_known_rank():
    kernel = kernel_of_spectrum(torch.ones(10, dtype=torch.float64), 40)
    cumulative = cumulative_energy(torch.linalg.svdvals(kernel))
    torch.testing.assert_close(cumulative[:10], torch.arange(1, 11, dtype=torch.float64) / 10)
    torch.testing.assert_close(cumulative[10:], torch.ones(30, dtype=torch.float64))
    assert fraction_for_energy(cumulative, 0.9) == 9 / 40
    assert fraction_for_energy(cumulative, 0.91) == 10 / 40


def test_energy_of_the_zero_kernel_is_defined():
    assert cumulative_energy(torch.zeros(2, 3)).tolist() == [[1.0] * 3] * 2


def test_randomized_singular_values_match_the_full_decomposition():
    values = 0.8 ** torch.arange(60, dtype=torch.float64)
    kernel = kernel_of_spectrum(values, 90)
    found = randomized_singular_values(
        lambda x: kernel @ x,
        lambda y: kernel.T @ y,
        90,
        20,
        torch.Generator().manual_seed(0),
        dtype=torch.float64,
    )
    torch.testing.assert_close(found, torch.linalg.svdvals(kernel)[:20], rtol=1e-6, atol=0)


def test_product_is_decomposed_exactly_and_never_formed():
    queries = torch.randn(300, 12, generator=GENERATOR, dtype=torch.float64)
    keys = torch.randn(300, 12, generator=GENERATOR, dtype=torch.float64)
    found = product_singular_values(queries, keys, 50, torch.Generator().manual_seed(0))
    torch.testing.assert_close(found, torch.linalg.svdvals(queries @ keys.T)[:50], rtol=1e-9, atol=1e-9)
    assert (found[12:] == 0).all()

    large = torch.randn(2, 2**20, 2, generator=GENERATOR)  # the product would take 4 TB
    assert product_singular_values(large[0], large[1], 4, torch.Generator().manual_seed(0)).shape == (4,)


def test_stationarity_of_circulant_toeplitz_and_random_kernels():
    size = 48
    grid = Grid(size, 1.0, True)
    index = torch.arange(size)
    row = torch.randn(size, generator=GENERATOR)
    circulant = row[(index[:, None] - index[None, :]) % size]
    diagonals = torch.randn(2 * size - 1, generator=GENERATOR)
    toeplitz = diagonals[index[:, None] - index[None, :] + size - 1]
    noise = torch.randn(200, size, size, generator=GENERATOR)
    torch.testing.assert_close(stationarity(circulant, grid, 0), torch.tensor(1.0, dtype=torch.float64))
    torch.testing.assert_close(stationarity(toeplitz, grid, 0), torch.tensor(1.0, dtype=torch.float64))
    assert stationarity(torch.full((size, size), 3.0), grid, 0) == 1
    assert stationarity(noise, grid, 0).max() < 0.1
    half = stationarity(toeplitz / toeplitz.std() + noise / noise.std(), grid, 0)
    assert (half - 0.5).abs().max() < 0.1


def test_stationarity_removes_the_quadrature_weights():
    grid = Grid(33, 1.0, False)
    x = grid.axis(0)
    kernel = torch.cos(5 * (x[:, None] - x[None, :])) * grid.weights(0)
    torch.testing.assert_close(stationarity(kernel, grid, 0), torch.tensor(1.0, dtype=torch.float64))
    assert stationarity(kernel * grid.weights(0), grid, 0) < 0.999


def test_symmetry_of_the_extremes():
    noise = torch.randn(60, 60, generator=GENERATOR)
    torch.testing.assert_close(symmetry(noise + noise.T), torch.tensor(1.0))
    torch.testing.assert_close(symmetry(noise - noise.T), torch.tensor(0.0))
    assert abs(float(symmetry(noise)) - 0.5) < 0.1
