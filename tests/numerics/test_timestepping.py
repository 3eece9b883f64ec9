"""Measured orders of the integrators, and the coefficients of the exponential one."""

import itertools
import math

import pytest
import torch

from factformer.numerics.timestepping import (
    crank_nicolson_heun,
    crank_nicolson_heun_stages,
    etd_coefficients,
    etdrk2,
    etdrk4,
    etdrk4_stages,
    num_steps,
    runge_kutta4,
    runge_kutta4_stages,
    staged,
)

LINEAR = torch.tensor([0.0, -0.5, -3.0, -8.0], dtype=torch.float64)
MIXING = torch.tensor(
    [[0.0, 1.0, 0.0, 0.5], [-1.0, 0.0, 0.7, 0.0], [0.0, -0.7, 0.0, 1.3], [-0.5, 0.0, -1.3, 0.0]], dtype=torch.float64
)


def nonlinear(state: torch.Tensor) -> torch.Tensor:
    return torch.sin(state @ MIXING.T) + 0.3 * state.cos()


def builders() -> dict[str, tuple[int, object]]:
    return {
        "runge_kutta4": (4, lambda dt: runge_kutta4(lambda u: LINEAR * u + nonlinear(u), dt)),
        "crank_nicolson_heun": (2, lambda dt: crank_nicolson_heun(LINEAR, nonlinear, dt, torch.float64)),
        "etdrk2": (2, lambda dt: etdrk2(LINEAR, nonlinear, dt, torch.float64)),
        "etdrk4": (4, lambda dt: etdrk4(LINEAR, nonlinear, dt, torch.float64)),
    }


def solve(build: object, count: int) -> torch.Tensor:
    state = torch.tensor([[1.0, -0.5, 0.8, 0.3]], dtype=torch.float64)
    step = build(1.0 / count)  # type: ignore[operator]
    for _ in range(count):
        state = step(state)
    return state


@pytest.mark.parametrize("name", list(builders()))
def test_order_on_a_stiff_nonlinear_system(name: str) -> None:
    order, build = builders()[name]
    reference = solve(builders()["etdrk4"][1], 4096)
    counts = (32, 64, 128)
    errors = [float((solve(build, count) - reference).norm()) for count in counts]
    rates = [math.log2(a / b) for a, b in itertools.pairwise(errors)]
    assert min(rates) > order - 0.25, (name, errors, rates)


def test_linear_terms_are_exact_in_etdrk4_and_stable_in_crank_nicolson() -> None:
    linear = torch.tensor([-0.3, -1e4], dtype=torch.float64)
    state = torch.ones(1, 2, dtype=torch.float64)
    exact = etdrk4(linear, torch.zeros_like, 0.5, torch.float64)(state)
    torch.testing.assert_close(exact, torch.exp(0.5 * linear)[None])
    damped = crank_nicolson_heun(linear, torch.zeros_like, 0.5, torch.float64)(state)
    assert damped.abs().max() <= 1


def test_etd_coefficients_are_right_at_and_near_zero() -> None:
    """Against the Taylor series at 0 and the closed forms where these are harmless."""
    dt = 0.1
    _, _, q, f1, f2, f3 = etd_coefficients(torch.tensor([0.0, -1e-9, -1e-3], dtype=torch.float64) / dt, dt)
    for value, limit in ((q, 1 / 2), (f1, 1 / 6), (f2, 1 / 3), (f3, 1 / 6)):
        torch.testing.assert_close(value[:2] / dt, torch.full((2,), limit, dtype=torch.float64), rtol=1e-8, atol=0)
        torch.testing.assert_close(float(value[2]) / dt, limit, rtol=1e-3, atol=0)
    z = torch.tensor([-2.0, -30.0, -500.0], dtype=torch.float64)
    _, _, q, f1, f2, f3 = etd_coefficients(z / dt, dt)
    torch.testing.assert_close(q, dt * torch.expm1(z / 2) / z)
    torch.testing.assert_close(f1, dt * (-4 - z + z.exp() * (4 - 3 * z + z**2)) / z**3)
    torch.testing.assert_close(f2, dt * 2 * (2 + z + z.exp() * (z - 2)) / z**3)
    torch.testing.assert_close(f3, dt * (-4 - 3 * z - z**2 + z.exp() * (4 - z)) / z**3)


@pytest.mark.parametrize(
    ("interval", "dt", "count"),
    [(1.0, 0.1, 10), (1 / 16, 1 / 512, 32), (0.05, 0.002, 25), (1.0, 0.3, 4), (0.1, 5.0, 1), (0.3, 0.1, 3)],
)
def test_steps_fill_the_interval(interval: float, dt: float, count: int) -> None:
    assert num_steps(interval, dt) == count


def test_stages_are_the_integrators() -> None:
    state = torch.tensor([[1.0, -0.5, 0.8, 0.3]], dtype=torch.float64)
    pairs = [
        (runge_kutta4(nonlinear, 0.1), staged(runge_kutta4_stages(0.1), nonlinear)),
        (
            crank_nicolson_heun(LINEAR, nonlinear, 0.1, torch.float64),
            staged(crank_nicolson_heun_stages(LINEAR, 0.1), nonlinear),
        ),
        (etdrk4(LINEAR, nonlinear, 0.1, torch.float64), staged(etdrk4_stages(LINEAR, 0.1), nonlinear)),
    ]
    for step, other in pairs:
        torch.testing.assert_close(step(state), other(state), rtol=1e-14, atol=1e-15)
