"""The Navier-Stokes set of the Fourier neural operator: against a naive solver, orders, an invariant, its start."""

import math

import pytest
import torch

from factformer import simulate
from factformer.pdes import find_pde
from solver_cases import rates, relative, start

NAME = "navier_stokes"
PDE = find_pde(NAME)


def naive(vorticity: torch.Tensor, time: float, steps: int, viscosity: float) -> torch.Tensor:
    """Straight from the formula: full FFTs, Crank-Nicolson for diffusion and Heun for the rest; ``(size, size)``."""
    size = len(vorticity)
    index = torch.fft.fftfreq(size, 1 / size, dtype=torch.float64)
    k1, k2 = 2 * math.pi * index[:, None], 2 * math.pi * index[None, :]
    squared = k1**2 + k2**2
    inverse = torch.where(squared > 0, 1 / squared.clamp_min(1), 0)
    kept = (index.abs()[:, None] <= (size - 1) // 3) & (index.abs() <= (size - 1) // 3)
    x = torch.arange(size, dtype=torch.float64) / size
    angle = 2 * math.pi * (x[:, None] + x)
    force = torch.fft.fft2(0.1 * (torch.sin(angle) + torch.cos(angle)))

    def rest(w: torch.Tensor) -> torch.Tensor:
        stream = w * inverse
        u1, u2, w1, w2 = (
            torch.fft.ifft2(field).real for field in (1j * k2 * stream, -1j * k1 * stream, 1j * k1 * w, 1j * k2 * w)
        )
        return kept * (force - torch.fft.fft2(u1 * w1 + u2 * w2))

    dt = time / steps
    state = kept * torch.fft.fft2(vorticity)
    for _ in range(steps):
        first = rest(state)
        half = 0.5 * dt * viscosity * squared
        predicted = ((1 - half) * state + dt * first) / (1 + half)
        state = ((1 - half) * state + 0.5 * dt * (first + rest(predicted))) / (1 + half)
    return torch.fft.ifft2(state).real


def smooth(size: int) -> torch.Tensor:
    """A random start without the modes beyond the cut, which the naive solver drops."""
    modes = torch.fft.fft2(start(PDE, count=1, size=size)[0, ..., 0])
    index = torch.fft.fftfreq(size, 1 / size).abs()
    keep = (index[:, None] <= (size - 1) // 3) & (index <= (size - 1) // 3)
    return torch.fft.ifft2(keep * modes).real


@pytest.mark.parametrize("viscosity", [1e-3, 1e-5])
def test_a_naive_solver_agrees(viscosity: float) -> None:
    """It is of second order: its error falls to a quarter, and the rest is its own."""
    initial = smooth(32)
    ours = simulate(NAME, initial[None, ..., None], 2, 2.0, viscosity=viscosity)[0, -1, ..., 0]
    errors = [relative(naive(initial, 2.0, steps, viscosity), ours) for steps in (100, 200, 400)]
    assert errors[-1] < 1e-5
    assert min(rates(errors)) > 2 - 0.1, errors


@pytest.mark.parametrize(("integrator", "order"), [("etdrk4", 4), ("crank_nicolson_heun", 2)])
def test_steps_are_of_their_order(integrator: str, order: int) -> None:
    initial = 4 * smooth(32)[None, ..., None]

    def final(steps: int) -> torch.Tensor:
        settings = {"viscosity": 1e-3, "integrator": integrator, "dt": 1 / steps}
        return simulate(NAME, initial, 2, 1.0, **settings)[:, -1]

    exact = simulate(NAME, initial, 2, 1.0, viscosity=1e-3, dt=1 / 1024)[:, -1]
    measured = rates([relative(final(steps), exact) for steps in (32, 64, 128)])
    assert min(measured) > order - 0.25, measured


def test_the_mean_vorticity_stays() -> None:
    initial = start(PDE, count=2, size=32) + 0.7
    frames = simulate(NAME, initial, 4, 2.0)
    assert (frames.mean((2, 3, 4)) - 0.7).abs().max() < 1e-13


def test_a_shear_along_the_force_grows_as_its_balance_says() -> None:
    """From rest ω = (f/λ)(1 - exp(-λt)) with λ = 8π²ν: a shear across x1 + x2 advects itself nowhere."""
    x1, x2 = PDE.grid((24, 24)).mesh().unbind(-1)
    angle = 2 * math.pi * (x1 + x2).double()
    frames = simulate(NAME, torch.zeros(1, 24, 24, 1, dtype=torch.float64), 3, 1.0, viscosity=1e-3)
    rate = 8 * math.pi**2 * 1e-3
    for time in (1, 2):
        exact = 0.1 * (torch.sin(angle) + torch.cos(angle)) * (1 - math.exp(-rate * time)) / rate
        assert relative(frames[0, time, ..., 0], exact) < 1e-12


def test_the_start_has_the_public_generator_s_spectrum() -> None:
    """Real part of an inverse transform of complex noise whose parts have unit variance each, times N² √2 τ^1.5 (…)."""
    size, tau = 32, 7.0
    index = torch.fft.fftfreq(size, 1 / size, dtype=torch.float64)
    root = math.sqrt(2) * tau**1.5 * (4 * math.pi**2 * (index[:, None] ** 2 + index**2) + tau**2) ** -1.25
    root[0, 0] = 0
    generator = torch.Generator().manual_seed(0)
    noise = torch.view_as_complex(torch.randn(400, size, size, 2, generator=generator, dtype=torch.float64))
    theirs = torch.fft.fft2(torch.fft.ifft2(size**2 * root * noise).real, norm="forward").abs().square().mean(0)
    ours = torch.fft.fft2(start(PDE, count=400, size=size)[..., 0], norm="forward").abs().square().mean(0)
    assert float(ours.sum() / theirs.sum()) == pytest.approx(1, rel=0.05)
    for k in ((1, 0), (0, 1), (2, 3), (-3, 2), (5, 0)):
        assert float(ours[k] / theirs[k]) == pytest.approx(1, rel=0.25), k


def test_the_literature_s_set_is_stored_point_by_point() -> None:
    plan = PDE.presets["paper"]
    assert (plan.resolution, plan.simulation_resolution, plan.downsampling) == (64, 256, "points")
    assert (plan.num_frames, plan.frame_dt, plan.warmup) == (20, 1.0, 1.0)
    assert (plan.num_trajectories["train"], plan.num_trajectories["test"]) == (1000, 200)
    problem = PDE.problem(64)
    assert (problem.num_context_frames, problem.horizon, problem.grid.extent) == (10, 10, (1.0, 1.0))
