"""APEBench's scenarios (Koehler et al., NeurIPS 2024) in our parameters.

APEBench writes an equation on the unit box with steps of length one,

    ∂u/∂t = Σ_j α_j Σ_m ∂ʲu/∂x_mʲ - β₁ ½ ∇·(u⊗u) - β₂ ½ |∇u|²,

and gives *difficulties* instead of coefficients, on N points along each of D axes, for values of at most 1:

    γ₀ = α₀,    γ_j = α_j Nʲ 2ʲ⁻¹ D,    δ₁ = β₁ N D,    δ₂ = β₂ N² D.

Ours have other units: a box of length L, frames T apart and values c times smaller, u(x, t) = c v(L x, T t), with L, T
and c such that the coefficients that our equations do not have are 1. Each frame is one step, or as many as APEBench
takes, of the same integrator, so both agree to round-off (tests/pdes/test_against_apebench.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from factformer.grid import Grid
from factformer.numerics.random_fields import truncated_series
from factformer.pdes import simulate
from factformer.pdes._common.base import PDE
from factformer.pdes.advection_diffusion import AdvectionDiffusion
from factformer.pdes.burgers import Burgers
from factformer.pdes.gray_scott import GrayScott
from factformer.pdes.kuramoto_sivashinsky import KuramotoSivashinsky
from factformer.pdes.swift_hohenberg import SwiftHohenberg

POINTS = {1: 160, 2: 160, 3: 32}
"""Points along each axis, by the number of axes."""


class ConservativeBurgers(Burgers):
    """``∂u/∂t + ½ ∇·(u⊗u) = ν ∇²u``."""

    conservative, order, open_products = True, 2, True


class SecondOrderFront(KuramotoSivashinsky):
    """Kuramoto-Sivashinsky, integrated with second order."""

    order, open_products = 2, True


class SecondOrderPattern(SwiftHohenberg):
    """Swift-Hohenberg, integrated with second order."""

    order, open_products = 2, True


class SecondOrderReaction(GrayScott):
    """Gray-Scott, integrated with second order."""

    order, open_products = 2, True


@dataclass(frozen=True)
class Scenario:
    """One of APEBench's: our equation with parameters, the interval between frames, and the unit of its values."""

    name: str
    """As APEBench has it: dimension, kind of description, equation."""
    pde: PDE
    num_axes: int
    frame_dt: float
    parameters: Mapping[str, Any] = field(default_factory=dict)
    unit: float = 1.0
    """APEBench's values over ours."""
    num_warmup: int = 0
    """Steps from a random start to the first frame."""
    read_off: Mapping[str, float] = field(default_factory=dict)
    """The metric by network, read off the comparison figure of the paper."""

    @property
    def grid(self) -> Grid:
        shape = (POINTS[self.num_axes],) * self.num_axes
        return self.pde.grid_of(shape, self.pde.parameters.model_validate(dict(self.parameters)))

    def starts(self, count: int, seed: int) -> Tensor:
        """Random starts ``(trajectory, *grid, channel)`` of the kind that APEBench draws, float64, in our unit."""
        grid, generators = self.grid, [torch.Generator().manual_seed(100_003 * seed + item) for item in range(count)]
        if self.pde.name == "gray_scott":
            return self.pde.sample_initial(grid, generators, dtype=torch.float64, device="cpu")
        channels = self.pde.initial_channels(self.num_axes)
        drawn = [torch.stack([truncated_series(grid, item) for _ in range(channels)], dim=-1) for item in generators]
        return torch.stack(drawn) / self.unit

    def trajectories(self, starts: Tensor, num_frames: int) -> Tensor:
        """Frames ``(trajectory, frame, *grid, channel)`` from states in our unit, the state first."""
        return simulate(self.pde, starts, num_frames, self.frame_dt, **self.parameters)

    def data(self, count: int, num_frames: int, seed: int, device: torch.device | str = "cpu") -> Tensor:
        """Developed trajectories from random starts, solved on ``device``."""
        starts = self.starts(count, seed).to(device)
        if self.num_warmup:
            for _ in range(self.num_warmup // 100):
                starts = self.trajectories(starts, 101)[:, -1]
        return self.trajectories(starts, num_frames).float()


def coefficient(difficulty: float, order: int, points: int, num_axes: int) -> float:
    """``α_j`` of ``γ_j``."""
    return difficulty if order == 0 else difficulty / (points**order * 2 ** (order - 1) * num_axes)


def linear(name: str, num_axes: int, *, advection: float = 0.0, diffusion: float = 0.0, **options: Any) -> Scenario:
    """``∂u/∂t = γ₁-advection + γ₂-diffusion``, on our own box of length 1."""
    points = POINTS[num_axes]
    speed, viscosity = -coefficient(advection, 1, points, num_axes), coefficient(diffusion, 2, points, num_axes)
    parameters = {"velocity": speed, "viscosity": viscosity, "extent": 1.0}
    return Scenario(name, AdvectionDiffusion(), num_axes, 1.0, parameters, **options)


def burgers(num_axes: int, diffusion: float = 1.5, convection: float = 1.5, **options: Any) -> Scenario:
    """On a box of length 2π, where a convection of one makes the interval ``T = β₁ L``."""
    points, extent = POINTS[num_axes], 2 * math.pi
    interval = convection / (points * num_axes) * extent
    viscosity = coefficient(diffusion, 2, points, num_axes) * extent**2 / interval
    parameters = {"viscosity": viscosity, "extent": extent, "dt": interval}
    return Scenario(f"{num_axes}d_diff_burgers", ConservativeBurgers(), num_axes, interval, parameters, **options)


def front(num_axes: int, nonlinear: float, growth: float, damping: float, **options: Any) -> Scenario:
    """Kuramoto-Sivashinsky: second and fourth derivatives of coefficient one fix ``L`` and ``T``, the rest ``c``."""
    points = POINTS[num_axes]
    second, fourth = (coefficient(value, order, points, num_axes) for value, order in ((growth, 2), (damping, 4)))
    extent = math.sqrt(second / fourth)
    interval = extent**2 * second
    order = 1 if num_axes == 1 else 2
    unit = interval * points**order * num_axes / (nonlinear * extent**order)
    parameters = {"extent": extent, "biharmonic": False, "dt": interval}
    kind = "ks_cons" if num_axes == 1 else "ks"
    name = f"{num_axes}d_diff_{kind}"
    return Scenario(name, SecondOrderFront(), num_axes, interval, parameters, unit, 500, **options)


def pattern(num_axes: int, **options: Any) -> Scenario:
    """Swift-Hohenberg in its own units."""
    parameters = {"extent": 10 * math.pi, "dt": 0.02}
    return Scenario(f"{num_axes}d_phy_sh", SecondOrderPattern(), num_axes, 0.1, parameters, **options)


def reaction(num_axes: int, kind: str, feed: float, kill: float, **options: Any) -> Scenario:
    """Gray-Scott patterns by the letter of Pearson's classes."""
    parameters = {"extent": 2.5, "feed": feed, "kill": kill, "dt": 1.0}
    return Scenario(f"{num_axes}d_phy_gs_{kind}", SecondOrderReaction(), num_axes, 20.0, parameters, **options)


SCENARIOS: dict[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        linear("1d_diff_adv", 1, advection=-4.0),
        linear("1d_diff_diff", 1, diffusion=4.0),
        burgers(1),
        front(1, 1.0, 2.0, 18.0),
        linear("2d_diff_adv_diff", 2, advection=-4.0, diffusion=4.0),
        burgers(2, read_off={"ResNet": 0.05, "FNO": 0.33}),
        front(2, 6.0, 1.2, 15.0, read_off={"ResNet": 0.20, "UNet": 0.27, "FNO": 0.91}),
        pattern(2),
        reaction(2, "theta", 0.04, 0.06),
        burgers(3, read_off={"ResNet": 0.14}),
        front(3, 6.0, 1.2, 15.0, read_off={"UNet": 0.37}),
        pattern(3, read_off={"ResNet": 0.05}),
    )
}
