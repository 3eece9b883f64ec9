"""Random fields: statistics, and samples that depend on their generator alone."""

import math

import pytest
import torch

from factformer.grid import Grid
from factformer.numerics.random_fields import (
    hermitian_noise,
    neumann_field,
    periodic_field,
    uniform_modes,
)
from factformer.numerics.spectral import Spectrum, mirror_modes


def generators(count: int, first: int = 0) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(first + i) for i in range(count)]


@pytest.mark.parametrize("cutoff", [(6,), (5, 4), (3, 2, 4)])
def test_noise_stands_for_a_real_field_of_unit_variance_per_mode(cutoff: tuple[int, ...]) -> None:
    noise = torch.stack([hermitian_noise(cutoff, g) for g in generators(4000)]).to(torch.complex128)
    spectrum = Spectrum([1.0] * len(cutoff), cutoff)
    shape = [2 * k + 1 for k in cutoff]
    torch.testing.assert_close(spectrum.coefficients(spectrum.values(noise[:5], shape)), noise[:5])
    power = noise.abs().square().mean(0)
    assert (power - 1).abs().max() < 0.15
    assert power.mean() == pytest.approx(1.0, abs=0.01)


def test_variance_of_a_periodic_field_is_the_sum_of_its_spectrum() -> None:
    spectrum = Spectrum([2 * math.pi] * 2, (6, 6))
    amplitude = 1 / (1 + spectrum.squared)
    field = spectrum.values(periodic_field(spectrum, amplitude, generators(2000)), (13, 13))
    expected = float((amplitude.square() * spectrum.multiplicity).sum())
    assert float(field.square().mean()) == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("num_axes", [1, 2, 3])
def test_a_finer_cut_adds_small_scales_and_keeps_the_large_ones(num_axes: int) -> None:
    coarse, fine = (3,) * num_axes, (6,) * num_axes
    spectrum = Spectrum([1.0] * num_axes, coarse)
    inner = spectrum.coefficients(
        Spectrum([1.0] * num_axes, fine).values(
            hermitian_noise(fine, generators(1)[0]).to(torch.complex128), [13] * num_axes
        )
    )
    torch.testing.assert_close(inner, hermitian_noise(coarse, generators(1)[0]).to(torch.complex128))


def test_samples_do_not_depend_on_the_batch() -> None:
    spectrum = Spectrum([1.0] * 2, (4, 4))
    amplitude = torch.ones(spectrum.shape)
    batch = periodic_field(spectrum, amplitude, generators(5))
    assert torch.equal(batch[3:4], periodic_field(spectrum, amplitude, generators(1, first=3)))
    draws = uniform_modes((3, 3), 2, generators(3))
    assert torch.equal(draws[2:], uniform_modes((3, 3), 2, generators(1, first=2)))
    assert 0 <= float(draws.min()) < float(draws.max()) < 1
    grid = Grid((9, 9), 1.0, periodic=False)
    options = {"dtype": torch.float64, "device": "cpu"}
    batch = neumann_field(grid, lambda squared: 1 / (1 + squared), generators(4), **options)
    alone = neumann_field(grid, lambda squared: 1 / (1 + squared), generators(1, first=2), **options)
    torch.testing.assert_close(batch[2:3], alone, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("average", [True, False])
def test_mirrored_modes_are_those_of_a_real_field(average: bool) -> None:
    spectrum = Spectrum([1.0] * 3, (2, 3, 2))
    coefficients = torch.randn(2, *spectrum.shape, dtype=torch.complex128)
    mirrored = mirror_modes(coefficients, 3, average=average)
    torch.testing.assert_close(spectrum.coefficients(spectrum.values(mirrored, (5, 7, 5))), mirrored)
    assert torch.equal(mirrored[..., 1:], coefficients[..., 1:])
    if not average:  # half of the plane decides, the rest follows: no modulus is new
        plane = mirrored[..., 0].abs().flatten(1)[:, 1:]
        given = coefficients[..., 0].abs().flatten(1)
        assert all(torch.isclose(given, value).any() for value in plane.flatten())


def test_neumann_field_has_no_slope_at_the_walls_and_the_right_variance() -> None:
    tau, alpha = 3.0, 2.0
    grid = Grid((33, 33), 1.0, periodic=False)
    amplitude = lambda squared: tau ** (alpha - 1) * (squared + tau**2) ** (-alpha / 2)  # noqa: E731
    fields = neumann_field(grid, amplitude, generators(400), dtype=torch.float64, device="cpu")
    k = torch.arange(33, dtype=torch.float64)
    squared = math.pi**2 * (k[:, None] ** 2 + k**2)
    power = amplitude(squared) ** 2
    power[0, 0] = 0
    weights = grid.weights(0)[:, None] * grid.weights(1)
    measured = float((fields.square().mean(0) * weights).sum())
    assert measured == pytest.approx(float(power.sum()), rel=0.1)
    smooth = neumann_field(
        grid, lambda squared: torch.exp(-squared / 200), generators(3), dtype=torch.float64, device="cpu"
    )
    slope = (-3 * smooth[:, 0] + 4 * smooth[:, 1] - smooth[:, 2]) / 2  # second order at the wall
    assert slope.abs().max() < 0.05 * (smooth[:, 17] - smooth[:, 16]).abs().max()
    assert (smooth * weights).sum((1, 2)).abs().max() < 1e-3
