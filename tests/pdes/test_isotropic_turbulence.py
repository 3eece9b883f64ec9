"""Isotropic turbulence against the Taylor-Green vortex, its invariants and its statistics."""

import math

import pytest
import torch
from solver_cases import rates, relative, start

from factformer import simulate
from factformer.grid import Grid
from factformer.kernels.solvers import from_planes, to_planes
from factformer.metrics import energy_spectrum
from factformer.numerics.projection import fourier_divergence
from factformer.numerics.spectral import Spectrum, full_cutoff
from factformer.pdes import find_pde
from factformer.pdes.isotropic_turbulence import VISCOSITY, _energy_keeper, _energy_keeper_of_planes

NAME = "isotropic_turbulence"
PDE = find_pde(NAME)


def coefficients(velocity: torch.Tensor) -> tuple[Spectrum, torch.Tensor]:
    """Of ``(batch, *grid, 3)``."""
    grid = Grid(velocity.shape[1:-1], 2 * math.pi, periodic=True)
    spectrum = Spectrum.of_grid(grid, full_cutoff(grid.shape), dtype=velocity.dtype)
    return spectrum, spectrum.coefficients(velocity.movedim(-1, 1))


def energy(velocity: torch.Tensor) -> torch.Tensor:
    return 0.5 * velocity.square().sum(-1).mean((-1, -2, -3))


def enstrophy(velocity: torch.Tensor) -> torch.Tensor:
    """½⟨|ω|²⟩ = ½ Σ k²|û|² for a divergence-free field."""
    spectrum, series = coefficients(velocity)
    return 0.5 * spectrum.mean_product(series, spectrum.squared * series).sum(1)


def taylor_reynolds(velocity: torch.Tensor, viscosity: float) -> torch.Tensor:
    """Re_λ = u' λ / ν with λ² = 15 ν u'²/ε and ε = 2ν · enstrophy."""
    mean_square = 2 * energy(velocity) / 3
    dissipation = 2 * viscosity * enstrophy(velocity)
    return mean_square * (15 / (viscosity * dissipation)).sqrt()


def taylor_green(size: int) -> torch.Tensor:
    x, y, z = Grid((size,) * 3, 2 * math.pi, periodic=True).mesh().unbind(-1)
    u = torch.sin(x) * torch.cos(y) * torch.cos(z)
    v = -torch.cos(x) * torch.sin(y) * torch.cos(z)
    return torch.stack([u, v, torch.zeros_like(u)], dim=-1)[None]


def test_taylor_green_follows_its_early_time_series() -> None:
    """Enstrophy of the Taylor-Green vortex (Taylor & Green 1937): with R = 1/ν,

    W/W₀ = 1 - 6t/R + (5/48 + 18/R²) t² - (5/3 + 36/R²) t³/R + O(t⁴)
    """
    viscosity, time = 0.01, 0.2
    frames = simulate(NAME, taylor_green(16), 3, time / 2, forcing=False, viscosity=viscosity, dt=0.01)[..., 1:]
    r = 1 / viscosity
    for j in (1, 2):
        t = j * time / 2
        series = 1 - 6 * t / r + (5 / 48 + 18 / r**2) * t**2 - (5 / 3 + 36 / r**2) * t**3 / r
        ratio = float(enstrophy(frames[:, j]) / enstrophy(frames[:, 0]))
        assert ratio == pytest.approx(series, abs=0.1 * t**4)
        without_last = series + (5 / 3 + 36 / r**2) * t**3 / r
        assert abs(ratio - series) < 0.2 * abs(ratio - without_last)  # every term counts


def test_energy_decays_by_dissipation_alone() -> None:
    """dE/dt = -2ν · enstrophy for Taylor-Green at ν = 0.01, integrated by Simpson's rule between frames."""
    viscosity, interval = 0.01, 0.1
    frames = simulate(NAME, taylor_green(20), 11, interval, forcing=False, viscosity=viscosity, dt=0.025)[0, ..., 1:]
    total, rate = energy(frames), -2 * viscosity * enstrophy(frames)
    assert float(total[0]) == pytest.approx(1 / 8, rel=1e-12)
    assert float(rate[0]) == pytest.approx(-2 * viscosity * 3 / 8, rel=1e-12)
    weights = torch.tensor([1, 4, 2, 4, 2, 4, 2, 4, 2, 4, 1], dtype=torch.float64) * interval / 3
    lost = float(total[-1] - total[0])
    assert lost == pytest.approx(float((weights * rate).sum()), rel=1e-6)
    assert lost < -0.007


def test_pressure_of_the_taylor_green_vortex() -> None:
    """p = (cos 2x + cos 2y)(cos 2z + 2)/16 exactly; the Bernoulli pressure adds |u|²/2 less its mean."""
    x, y, z = Grid((16,) * 3, 2 * math.pi, periodic=True).mesh().unbind(-1)
    static = (torch.cos(2 * x) + torch.cos(2 * y)) * (torch.cos(2 * z) + 2) / 16
    velocity = taylor_green(16)
    kinetic = 0.5 * velocity[0].square().sum(-1)
    options = {"forcing": False, "viscosity": 0.01}
    ours = simulate(NAME, velocity, 1, **options, pressure="static")[0, 0, ..., 0]
    torch.testing.assert_close(ours, static, atol=1e-13, rtol=0)
    ours = simulate(NAME, velocity, 1, **options)[0, 0, ..., 0]
    torch.testing.assert_close(ours, static + kinetic - kinetic.mean(), atol=1e-13, rtol=0)


def test_a_shear_and_a_mean_flow() -> None:
    """u = (cos(z) , 0, 0) decays as exp(-νt); carried by a mean flow w it also moves by w t."""
    z = Grid((12,) * 3, 2 * math.pi, periodic=True).mesh()[..., 2]
    zero = torch.zeros_like(z)
    velocity = torch.stack([torch.cos(z), zero, zero + 0.7], dim=-1)[None]
    final = simulate(NAME, velocity, 2, 1.0, forcing=False, viscosity=0.05, dt=0.02)[0, -1]
    expected = math.exp(-0.05) * torch.cos(z - 0.7)
    torch.testing.assert_close(final[..., 1], expected, atol=1e-8, rtol=0)
    torch.testing.assert_close(final[..., 3], zero + 0.7, atol=1e-13, rtol=0)


def test_order_in_time() -> None:
    """Runge-Kutta without forcing, which acts between steps."""
    initial = start(PDE, count=1, size=16)
    settings = {"forcing": False, "viscosity": 0.02}
    reference = simulate(NAME, initial, 2, 0.2, dt=0.002, **settings)[:, -1]
    errors = [
        relative(simulate(NAME, initial, 2, 0.2, dt=dt, **settings)[:, -1], reference) for dt in (0.04, 0.02, 0.01)
    ]
    assert min(rates(errors)) > 3.75, errors


def test_spectral_convergence_in_space() -> None:
    settings = {"forcing": False, "viscosity": 0.1, "dt": 0.05}
    reference = simulate(NAME, taylor_green(32), 2, 1.0, **settings)[:, -1]
    errors = []
    for size in (8, 16):
        every = 32 // size
        coarse = reference[:, ::every, ::every, ::every]
        errors.append(relative(simulate(NAME, taylor_green(size), 2, 1.0, **settings)[:, -1], coarse))
    assert errors[0] < 0.1
    assert rates(errors)[0] > 6, errors


@pytest.mark.parametrize("size", [12, 15])
def test_forcing_holds_the_energy_and_the_flow_stays_divergence_free(size: int) -> None:
    frames = simulate(NAME, start(PDE, count=2, size=size), 5, dt=0.01)[..., 1:]
    held = energy(frames)
    assert (held / held[:, :1] - 1).abs().max() < 1e-12
    spectrum, series = coefficients(frames.flatten(0, 1))
    assert fourier_divergence(series, spectrum).abs().max() < 1e-13
    assert frames.mean((2, 3, 4)).abs().max() < 1e-13


def test_forcing_scales_only_the_large_scales_by_one_factor() -> None:
    """Over one short step: modes with |k| ≤ radius differ by a common real factor, the others not at all."""
    initial = start(PDE, count=1, size=16)
    options = {"viscosity": 0.02, "dt": 0.01}
    forced, free = (
        simulate(NAME, initial, 2, 0.01, forcing=f, forcing_radius=2.0, **options)[:, -1, ..., 1:]
        for f in (True, False)
    )
    spectrum, with_force = coefficients(forced)
    _, without = coefficients(free)
    large = spectrum.squared <= 4
    torch.testing.assert_close(with_force[..., ~large], without[..., ~large], atol=1e-15, rtol=1e-12)
    factor = float(with_force[..., large].abs().norm() / without[..., large].abs().norm())
    assert factor > 1.0001
    torch.testing.assert_close(with_force[..., large], factor * without[..., large], atol=1e-14, rtol=1e-10)
    assert float(energy(forced)) == pytest.approx(float(energy(initial)), rel=1e-13)


def test_a_start_at_rest_stays_at_rest() -> None:
    assert simulate(NAME, torch.zeros(1, 8, 8, 8, 3), 3).abs().max() == 0


@pytest.mark.parametrize("kind", ["rogallo", "released"])
def test_starts_have_the_wanted_energy_and_no_divergence(kind: str) -> None:
    grid = PDE.problem(20).grid
    generators = [torch.Generator().manual_seed(i) for i in range(2)]
    velocity = PDE.sample_initial(grid, generators, dtype=torch.float64, device="cpu", initial=kind)
    assert energy(velocity).tolist() == pytest.approx([2.397056] * 2, abs=1e-6)
    spectrum, series = coefficients(velocity)
    assert fourier_divergence(series, spectrum).abs().max() < 1e-13
    assert not torch.allclose(velocity[0], velocity[1])


def test_the_start_has_rogallos_spectrum() -> None:
    """(k/3)² up to 3 and (k/3)^(-5/3) above, with random phases: the field is nowhere extreme."""
    velocity = start(PDE, count=1, size=60)
    spectrum = energy_spectrum(velocity)[0]
    k = torch.arange(len(spectrum), dtype=torch.float64)
    tail = slice(5, 29)
    slope = torch.linalg.lstsq(
        torch.stack([k[tail].log(), torch.ones(24, dtype=torch.float64)], 1), spectrum[tail].log()[:, None]
    ).solution[0]
    assert float(slope) == pytest.approx(-5 / 3, abs=0.08)
    assert int(spectrum.argmax()) == 3
    assert velocity.norm(dim=-1).max() < 9
    assert float(taylor_reynolds(velocity, VISCOSITY)) == pytest.approx(48, abs=3)


def test_the_released_start_has_a_spike_at_the_origin() -> None:
    """As DATA says of it: max |u| about 50 next to the origin, Re_λ = 31, a slope far flatter than -5/3."""
    grid = PDE.problem(60).grid
    velocity = PDE.sample_initial(
        grid, [torch.Generator().manual_seed(0)], dtype=torch.float64, device="cpu", initial="released"
    )
    speed = velocity[0].norm(dim=-1)
    assert 45 < float(speed.max()) < 65
    where = torch.unravel_index(speed.argmax(), speed.shape)
    assert all(min(int(i), 60 - int(i)) <= 1 for i in where)
    assert float(taylor_reynolds(velocity, VISCOSITY)) == pytest.approx(31, abs=2)


def test_a_start_is_the_same_field_on_every_grid_but_for_its_scale() -> None:
    """The energy is held, so that a finer grid, which adds small scales, has a little less in the large ones."""
    coarse, fine = start(PDE, count=1, size=12), start(PDE, count=1, size=18)
    ratio = PDE.downsample(fine[:, None], (12,) * 3)[:, 0] / coarse
    assert float(ratio.std() / ratio.mean()) < 1e-9
    assert 0.8 < float(ratio.mean()) < 1


@pytest.mark.slow
def test_statistics_of_developed_turbulence() -> None:
    """At 60³ after one second: Re_λ of 84 ± 15, an inertial range near -5/3 and a dissipation tail."""
    initial = start(PDE, count=1, size=60, dtype=torch.float32)
    velocity = simulate(NAME, initial, 2, 1.0, dt=0.005)[:, -1, ..., 1:].double()
    assert float(taylor_reynolds(velocity, VISCOSITY)) == pytest.approx(84, abs=15)
    spectrum = energy_spectrum(velocity)[0]
    k = torch.arange(len(spectrum), dtype=torch.float64)

    def slope(low: int, high: int) -> float:
        return float((spectrum[high] / spectrum[low]).log() / (k[high] / k[low]).log())

    assert -2.4 < slope(4, 10) < -1.2
    assert slope(18, 27) < -3


def test_the_force_on_planes_is_the_force() -> None:
    """The form that goes with the GPU kernels; it runs anywhere."""
    spectrum, series = coefficients(start(PDE))
    parameters = PDE.parameters()
    later = series * (1 + 0.1 * torch.rand(spectrum.shape, dtype=torch.float64))
    expected = _energy_keeper(series, spectrum, parameters)(later)
    planes = _energy_keeper_of_planes(to_planes(series, 3), spectrum, parameters)(to_planes(later, 3))
    torch.testing.assert_close(from_planes(planes, 3), expected, rtol=1e-12, atol=1e-14)
