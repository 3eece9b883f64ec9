"""One-step integrators as pure functions; they know no physics.

Each builder takes the equation and a step size and returns ``step(state) -> state``. The semi-implicit ones
solve ``du/dt = L u + N(u)`` with ``L`` diagonal: the symbol of an operator in a basis of modes, real or, where an
operator moves waves (advection, dispersion), complex. A symbol may have a leading axis of samples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

Function = Callable[[Tensor], Tensor]
Symbol = Float[Tensor, "*modes"]


def num_steps(interval: float, dt: float) -> int:
    """The least number of equal steps of at most ``dt`` that fill ``interval`` exactly."""
    return max(1, math.ceil(interval / dt * (1 - 1e-9)))


@dataclass(frozen=True)
class Stage:
    """One evaluation ``n_i = N(a_i)`` of a step and what follows it, for kernels that do both in one pass:

        a_{i+1} = carry · a_base + new · n_i + Σ_j weight_j · n_j       over (j, weight_j) in ``old``

    with ``a_0`` the state and the last ``a`` the next state. Weights are arrays over the modes, or single numbers.
    """

    base: int
    carry: Tensor
    new: Tensor
    old: tuple[tuple[int, Tensor], ...] = ()


def staged(stages: Sequence[Stage], nonlinear: Function) -> Function:
    """The step that the stages describe, written out."""

    def step(state: Tensor) -> Tensor:
        arguments, rates = [state], []
        for stage in stages:
            rates.append(nonlinear(arguments[-1]))
            result = stage.carry * arguments[stage.base] + stage.new * rates[-1]
            for index, weight in stage.old:
                result = result + weight * rates[index]
            arguments.append(result)
        return arguments[-1]

    return step


def runge_kutta4_stages(dt: float) -> list[Stage]:
    """The stages of `runge_kutta4`."""
    one, half, whole, sixth, third = (torch.tensor(c, dtype=torch.float64) for c in (1, dt / 2, dt, dt / 6, dt / 3))
    return [
        Stage(0, one, half),
        Stage(0, one, half),
        Stage(0, one, whole),
        Stage(0, one, sixth, ((0, sixth), (1, third), (2, third))),
    ]


def crank_nicolson_heun_stages(linear: Symbol, dt: float) -> list[Stage]:
    """The stages of `crank_nicolson_heun`."""
    half = 0.5 * dt * linear.double()
    inverse, amplify = 1 / (1 - half), (1 + half) / (1 - half)
    return [
        Stage(0, amplify, dt * inverse),
        Stage(0, amplify, 0.5 * dt * inverse, ((0, 0.5 * dt * inverse),)),
    ]


def etdrk4_stages(linear: Symbol, dt: float) -> list[Stage]:
    """The stages of `etdrk4`."""
    whole, half, q, f1, f2, f3 = etd_coefficients(linear, dt)
    return [
        Stage(0, half, q),
        Stage(0, half, q),
        Stage(1, half, 2 * q, ((0, -q),)),
        Stage(0, whole, f3, ((0, f1), (1, f2), (2, f2))),
    ]


def runge_kutta4(rhs: Function, dt: float) -> Function:
    """The classical fourth-order Runge-Kutta step of ``du/dt = rhs(u)``."""

    def step(state: Tensor) -> Tensor:
        k1 = rhs(state)
        k2 = rhs(torch.add(state, k1, alpha=dt / 2))
        k3 = rhs(torch.add(state, k2, alpha=dt / 2))
        k4 = rhs(torch.add(state, k3, alpha=dt))
        slope = torch.add(k1 + k4, k2 + k3, alpha=2)
        return torch.add(state, slope, alpha=dt / 6)

    return step


def crank_nicolson_heun(linear: Symbol, nonlinear: Function, dt: float, dtype: torch.dtype) -> Function:
    """Second order: Crank-Nicolson for the linear terms, Heun (predictor, trapezoid) for the rest."""
    half = 0.5 * dt * linear.double()
    inverse = (1 / (1 - half)).to(dtype)
    amplify = ((1 + half) / (1 - half)).to(dtype)

    def step(state: Tensor) -> Tensor:
        first = nonlinear(state)
        carried = amplify * state
        second = nonlinear(carried + (dt * inverse) * first)
        return carried + (0.5 * dt * inverse) * (first + second)

    return step


def etdrk2(linear: Symbol, nonlinear: Function, dt: float, dtype: torch.dtype) -> Function:
    """Second-order exponential time differencing (Cox & Matthews 2002, eqs. 20-22)."""
    whole, first, second = (c.to(dtype) for c in etd2_coefficients(linear, dt))

    def step(state: Tensor) -> Tensor:
        rate = nonlinear(state)
        predicted = whole * state + first * rate
        return predicted + second * (nonlinear(predicted) - rate)

    return step


def etdrk4(linear: Symbol, nonlinear: Function, dt: float, dtype: torch.dtype) -> Function:
    """Fourth-order exponential time differencing (Cox & Matthews 2002, eqs. 26-29).

    The linear terms are exact whatever the step. Coefficients come from `etd_coefficients`; ``dtype`` is the state's.
    """
    whole, half, q, f1, f2, f3 = (c.to(dtype) for c in etd_coefficients(linear, dt))

    def step(state: Tensor) -> Tensor:
        n0 = nonlinear(state)
        carried = half * state
        a = carried + q * n0
        na = nonlinear(a)
        nb = nonlinear(carried + q * na)
        nc = nonlinear(half * a + q * torch.sub(2 * nb, n0))
        return whole * state + f1 * n0 + f2 * (na + nb) + f3 * nc

    return step


def etd_coefficients(linear: Symbol, dt: float, num_points: int = 16) -> tuple[Tensor, ...]:
    """``exp(z)``, ``exp(z/2)``, ``Q``, ``f1``, ``2 f2``, ``f3`` for ``z = L dt``, in double precision."""

    def closed(r: Tensor) -> tuple[Tensor, ...]:
        e = torch.exp(r)
        return (
            (torch.exp(r / 2) - 1) / r,
            (-4 - r + e * (4 - 3 * r + r * r)) / r**3,
            2 * (2 + r + e * (r - 2)) / r**3,
            (-4 - 3 * r - r * r + e * (4 - r)) / r**3,
        )

    distinct, place, means = _circle_means(linear, dt, num_points, closed)
    found = (torch.exp(distinct), torch.exp(distinct / 2), *means)
    return found if place is None else tuple(value[place] for value in found)


def etd2_coefficients(linear: Symbol, dt: float, num_points: int = 16) -> tuple[Tensor, ...]:
    """``exp(z)``, ``(exp(z) - 1)/z`` and ``(exp(z) - 1 - z)/z²`` for ``z = L dt``, the last two times ``dt``."""

    def closed(r: Tensor) -> tuple[Tensor, ...]:
        return (torch.exp(r) - 1) / r, (torch.exp(r) - 1 - r) / r**2

    distinct, place, means = _circle_means(linear, dt, num_points, closed)
    found = (torch.exp(distinct), *means)
    return found if place is None else tuple(value[place] for value in found)


def _circle_means(
    linear: Symbol, dt: float, num_points: int, closed: Callable[[Tensor], tuple[Tensor, ...]]
) -> tuple[Tensor, Tensor | None, list[Tensor]]:
    """The values of ``z = L dt`` that differ, where each mode's is among them, and ``dt`` times the closed forms there.

    The closed forms cancel catastrophically near ``z = 0``, so they are averaged over a circle of radius 1
    around ``z``, where they are benign (Kassam & Trefethen 2005, section 2.1); half of it for real ``z``.
    """
    if linear.is_complex():
        distinct, place = linear.to(torch.complex128) * dt, None
    else:  # modes share their |k|², so that the average is taken for a part of them only
        distinct, place = torch.unique(linear.double() * dt, return_inverse=True)
    turn = math.pi if place is not None else 2 * math.pi
    angle = turn * (torch.arange(num_points, dtype=torch.float64, device=distinct.device) + 0.5) / num_points
    r = distinct.unsqueeze(-1) + torch.polar(torch.ones_like(angle), angle)
    means = [dt * value.mean(-1) for value in closed(r)]
    return distinct, place, means if place is None else [value.real for value in means]
