"""How damping rates of a surrogate on four axes are measured."""

import numpy as np
import pytest
import torch

from factformer import simulate
from lab.analyses.four_axes import damped_wave, density_wave
from lab.equations.landau_damping import dispersion_root, perturbed


@pytest.mark.parametrize(("rate", "frequency"), [(0.1533, 1.4157), (0.0126, 1.16), (-0.05, 1.3)])
def test_the_fit_finds_rate_and_frequency_of_a_damped_wave(rate, frequency):
    times = np.arange(6.0, 16.5, 0.5)
    values = 0.03 * np.exp(-rate * times) * np.cos(frequency * times + 0.4)
    assert damped_wave(times, values) == pytest.approx((rate, frequency), rel=1e-4)


def test_the_wave_of_the_solver_is_damped_as_theory_says():
    """On the grid of the small preset, along either position."""
    for waves in ((1, 0), (0, 1)):
        start = perturbed((12, 12, 24, 24), 0.005, waves, 4.5)[:, :: 1 if waves[0] else 6, :: 1 if waves[1] else 6]
        frames = simulate("vlasov_poisson", start, 34, 0.5, v_max=4.5, content="departure")[0]
        amplitude = density_wave(frames, waves, 0.375)
        assert amplitude[0] == pytest.approx(0.005, rel=1e-4)
        rate, frequency = damped_wave(np.arange(12, 34) * 0.5, amplitude[12:])
        theory = dispersion_root(0.5)
        assert (frequency, rate) == pytest.approx((theory.real, -theory.imag), rel=0.02)


def test_a_uniform_density_has_no_wave():
    assert abs(density_wave(torch.ones(2, 4, 4, 6, 6, 1), (1, 0), 0.5)).max() < 1e-12
