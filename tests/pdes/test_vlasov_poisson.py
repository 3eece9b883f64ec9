"""Vlasov-Poisson: theory of Landau damping, conservation, order, symmetries of the splitting."""

import math

import pytest
import torch
from scipy.optimize import brentq
from scipy.special import wofz

from factformer import simulate
from factformer.pdes import find_pde
from lab.equations.landau_damping import damping_and_frequency, dispersion_root, field_energy, perturbed


@pytest.mark.parametrize(("wavenumber", "frequency", "damping"), [(0.5, 1.4156, 0.1533), (0.3, 1.1598, 0.0126)])
def test_landau_damping(wavenumber, frequency, damping):
    """The first six units of time are a transient. Measured: 0.1533, 1.4157 and 0.01257, 1.1601."""
    extent = 2 * math.pi / wavenumber
    initial = perturbed((32, 64), amplitude=0.001)
    frames = simulate("vlasov_poisson", initial, 201, 0.1, extent=extent, dt=0.05)
    found = damping_and_frequency(field_energy(frames[0, ..., 0], extent=extent)[60:], 0.1)
    assert found[0] == pytest.approx(damping, rel=0.01)
    assert found[1] == pytest.approx(frequency, rel=0.002)
    root = dispersion_root(wavenumber)
    assert (root.real, -root.imag) == pytest.approx((frequency, damping), rel=5e-3)


def growth_of_two_streams(wavenumber: float, drift: float, width: float) -> float:
    """The root ``ω = iγ`` of ``1 + Σ_± (1 + ζ_± Z(ζ_±)) / (2 k² σ²) = 0``, ``ζ_± = (ω ∓ k v) / (√2 k σ)``."""

    def dispersion(rate: float) -> float:
        places = [(1j * rate - sign * wavenumber * drift) / (math.sqrt(2) * wavenumber * width) for sign in (1, -1)]
        response = sum(1 + z * 1j * math.sqrt(math.pi) * wofz(z) for z in places)
        return float((1 + response / (2 * (wavenumber * width) ** 2)).real)

    return float(brentq(dispersion, 0.02, 0.6))


def test_two_streams_grow_as_their_dispersion_relation_says():
    """k = 0.5 on a box of 4π, drift 1.2, thermal velocity 0.3."""
    drift, width, size = 1.2, 0.3, 96
    maxwellian = perturbed((32, size), amplitude=1e-4)
    wave = maxwellian.sum(2, keepdim=True) * 12.0 / size
    v = (2 * torch.arange(size, dtype=torch.float64) / size - 1) * 6.0
    streams = sum(torch.exp(-((v - sign * drift) ** 2) / (2 * width**2)) for sign in (1, -1))
    initial = wave * (streams / (2 * width * math.sqrt(2 * math.pi))).reshape(1, 1, size, 1)
    energy = field_energy(simulate("vlasov_poisson", initial, 41, 0.5, dt=0.05)[0, ..., 0])
    late = energy[20:36].log()  # after the decaying part is gone, long before it saturates
    found = float(late[-1] - late[0]) / (2 * 0.5 * (len(late) - 1))
    assert found == pytest.approx(growth_of_two_streams(0.5, drift, width), rel=0.02)


def test_mass_and_norm_are_conserved():
    frames = simulate("vlasov_poisson", perturbed((12, 10, 12, 14), amplitude=0.3), 4, 0.5)
    for quantity in (frames.sum((2, 3, 4, 5, 6)), frames.square().sum((2, 3, 4, 5, 6))):
        torch.testing.assert_close(quantity, quantity[:, :1].expand_as(quantity), rtol=1e-12, atol=0)


def test_two_dimensions_with_a_wave_along_one_are_one_dimension():
    small = simulate("vlasov_poisson", perturbed((16, 32)), 3, 0.5)
    large = simulate("vlasov_poisson", perturbed((16, 4, 32, 32)), 3, 0.5)
    step = 12.0 / 32
    torch.testing.assert_close(large.sum(5)[:, :, :, 1] * step, small, rtol=1e-6, atol=1e-9)


def test_order_in_time_is_two():
    initial = perturbed((16, 32), amplitude=0.3)

    def final(dt: float) -> torch.Tensor:
        return simulate("vlasov_poisson", initial, 2, 2.0, dt=dt)[:, -1]

    exact = final(1 / 128)
    coarse, fine = ((final(dt) - exact).norm() for dt in (1 / 4, 1 / 8))
    assert math.log2(coarse / fine) > 2 - 0.25


def test_starts_have_unit_density():
    pde = find_pde("vlasov_poisson")
    for shape in ((32, 48), (8, 8, 32, 32)):
        grid = pde.grid(shape)
        for kind in pde.initial_kinds:
            generators = [torch.Generator().manual_seed(number) for number in range(3)]
            f = pde.sample_initial(grid, generators, dtype=torch.float64, device="cpu", initial=kind)[..., 0]
            velocities = tuple(range(1 + len(shape) // 2, 1 + len(shape)))
            cell = math.prod(12.0 / shape[m - 1] for m in velocities)
            density = cell * f.sum(velocities)
            assert density.flatten(1).mean(1).sub(1).abs().max() < 1e-3


def test_waves_are_the_longest_ones_alone():
    """Their amplitudes add up to 0.05 … 0.2, and no other wave is in the density."""
    pde = find_pde("vlasov_poisson")
    grid = pde.grid((8, 8, 24, 24))
    generators = [torch.Generator().manual_seed(number) for number in range(4)]
    f = pde.sample_initial(grid, generators, dtype=torch.float64, device="cpu", initial="waves")
    density = pde.reductions(f[:, None], grid)["density"].reshape(4, 8, 8)
    modes = 2 * torch.fft.fft2(density, norm="forward")
    long = [(0, 1), (1, 0), (1, 1), (1, -1)]
    largest = sum(modes[:, i, j].abs() for i, j in long)
    assert bool(((largest > 0.049) & (largest < 0.201)).all())
    for i, j in long:
        assert modes[:, i, j].abs().min() > 0
        modes[:, i, j] = modes[:, -i, -j] = 0
    modes[:, 0, 0] = 0
    assert modes.abs().max() < 1e-12


def test_the_departure_is_the_distribution_without_the_maxwellian():
    initial = perturbed((8, 6, 16, 18), amplitude=0.1)
    whole, departure = (
        simulate("vlasov_poisson", initial, 3, 0.5, content=content) for content in ("distribution", "departure")
    )
    torch.testing.assert_close(whole[:, 0], initial)
    torch.testing.assert_close(whole - departure, perturbed((8, 6, 16, 18), amplitude=0)[:, None].expand_as(whole))
    grid = find_pde("vlasov_poisson").grid((8, 6, 16, 18))
    one, other = (find_pde("vlasov_poisson").reductions(frames, grid) for frames in (whole, departure))
    for name in ("departure from the mean over positions", "energy of the electric field"):
        torch.testing.assert_close(one[name], other[name])  # the Maxwellian has no part in them
    torch.testing.assert_close(one["density"] - other["density"], torch.ones_like(one["density"]), rtol=0, atol=1e-5)
