"""The spectral solvers against exponax (JAX, exponential time differencing), an independent implementation.

Needs ``pip install exponax``; run with ``pytest -m thirdparty``.
"""

import math

import pytest
import torch

from factformer import simulate
from factformer.numerics.spectral import resample
from factformer.pdes import find_pde
from solver_cases import relative, start

pytestmark = pytest.mark.thirdparty
BOX = 2 * math.pi


def run_exponax(stepper, state: torch.Tensor, steps: int) -> torch.Tensor:
    """``steps`` applications to a state ``(channel, *grid)`` in double precision."""
    jax = pytest.importorskip("jax")
    exponax = pytest.importorskip("exponax")
    import numpy as np

    final = jax.jit(exponax.repeat(stepper, steps))(jax.numpy.asarray(state.numpy()))
    return torch.from_numpy(np.array(final))


@pytest.fixture(autouse=True)
def _double_precision():
    jax = pytest.importorskip("jax")
    jax.config.update("jax_enable_x64", True)


def smooth_start(name: str, size: int, modes: int) -> torch.Tensor:
    """The largest scales of a random start, on a grid that resolves what becomes of them."""
    pde = find_pde(name)
    coarse = start(pde, count=1, size=modes).movedim(-1, 1)
    num_axes = coarse.ndim - 2
    return resample(coarse, num_axes, (size,) * num_axes).movedim(1, -1)


@pytest.mark.parametrize("reynolds", [200.0, 1000.0])
def test_kolmogorov_flow(reynolds: float) -> None:
    """96², half a second in steps of 1/256, both ETDRK4 and dealiased by 2/3.

    exponax solves +∇²ψ = ω, so that its convection has the other sign. The scheme is the same, so the difference
    should be round-off: measured 3e-14, relative, at both Reynolds numbers.
    """
    exponax = pytest.importorskip("exponax")
    size, steps = 96, 128
    initial = smooth_start("kolmogorov_flow", size, modes=16)
    stepper = exponax.stepper.KolmogorovFlowVorticity(
        2,
        BOX,
        size,
        1 / 256,
        diffusivity=1 / reynolds,
        drag=-0.1,
        injection_mode=8,
        order=4,
        convection_scale=-1.0,
    )
    theirs = run_exponax(stepper, initial[0].movedim(-1, 0), steps)[0]
    ours = simulate("kolmogorov_flow", initial, 2, steps / 256, reynolds=reynolds, dt=1 / 256)[0, -1, ..., 0]
    assert relative(initial[0, ..., 0], theirs) > 0.5  # it has gone somewhere
    assert relative(ours, theirs) < 1e-12


@pytest.mark.parametrize("viscosity", [1e-3, 1e-5])
def test_vorticity_on_the_unit_torus(viscosity: float) -> None:
    """48², the set of the paper on Fourier neural operators, two units of time in steps of 1/64, both ETDRK4.

    exponax has no force along both axes, so its stepper for Kolmogorov flow is given the transform of ours.
    It keeps what products leave beyond the 2/3 cut, which acts on nothing; we do not, and compare the modes below it.
    """
    exponax, equinox = pytest.importorskip("exponax"), pytest.importorskip("equinox")
    jax = pytest.importorskip("jax")
    size, steps = 48, 128
    initial = smooth_start("navier_stokes", size, modes=16)
    x = torch.arange(size, dtype=torch.float64) / size
    angle = BOX * (x[:, None] + x)
    force = torch.fft.rfft2(0.1 * (torch.sin(angle) + torch.cos(angle)))[None]
    stepper = exponax.stepper.KolmogorovFlowVorticity(
        2, 1.0, size, 1 / 64, diffusivity=viscosity, drag=0.0, order=4, convection_scale=-1.0
    )
    stepper = equinox.tree_at(
        lambda found: found._integrator._nonlinear_fun.injection, stepper, jax.numpy.asarray(force.numpy())
    )
    theirs = run_exponax(stepper, initial[0].movedim(-1, 0), steps)[0]
    ours = simulate("navier_stokes", initial, 2, steps / 64, viscosity=viscosity, dt=1 / 64)[0, -1, ..., 0]
    assert relative(initial[0, ..., 0], theirs) > 0.1  # it has gone somewhere
    index = torch.fft.fftfreq(size, 1 / size).abs()
    kept = (index[:, None] <= (size - 1) // 3) & (index <= (size - 1) // 3)
    found, wanted = (torch.view_as_real(torch.fft.fft2(state)[kept]) for state in (ours, theirs))
    assert relative(found, wanted) < 1e-12


def test_navier_stokes() -> None:
    """48³ without forcing at ν = 0.1, 0.4 s in steps of 0.02: our RK4 with the 3/2 rule against their ETDRK4 with 2/3.

    Measured relative difference: 1.2e-7, which is what the modes between the two cuts hold (7.4e-6 at 36³, and
    unchanged by half the step); it should be below 5e-7.
    """
    exponax = pytest.importorskip("exponax")
    size, steps, viscosity = 48, 20, 0.1
    initial = 0.3 * smooth_start("isotropic_turbulence", size, modes=6)
    stepper = exponax.stepper.NavierStokesVelocity(3, BOX, size, 0.02, diffusivity=viscosity, order=4)
    theirs = run_exponax(stepper, initial[0].movedim(-1, 0), steps).movedim(0, -1)
    ours = simulate("isotropic_turbulence", initial, 2, steps * 0.02, forcing=False, viscosity=viscosity, dt=0.02)
    assert relative(initial[0], theirs) > 0.2
    assert relative(ours[0, -1, ..., 1:], theirs) < 5e-7


def waves(size: int, num_axes: int, num_channels: int, amplitude: float, offset: float) -> torch.Tensor:
    """``(channel, *grid)`` in float64: six random waves of index 3 at most in each channel."""
    generator = torch.Generator().manual_seed(0)
    angle = BOX * torch.arange(size, dtype=torch.float64) / size
    channels = []
    for _ in range(num_channels):
        total = torch.zeros((size,) * num_axes, dtype=torch.float64)
        for _ in range(6):
            phase = BOX * torch.rand((), generator=generator, dtype=torch.float64)
            for m, index in enumerate(torch.randint(-3, 4, (num_axes,), generator=generator).tolist()):
                phase = phase + index * angle.reshape([-1 if axis == m else 1 for axis in range(num_axes)])
            total = total + torch.cos(phase)
        channels.append(offset + amplitude * total / total.abs().max())
    return torch.stack(channels)


def distance(
    name: str,
    stepper: str,
    size: int,
    num_axes: int,
    dt: float,
    theirs: dict[str, object],
    ours: dict[str, object],
    *,
    amplitude: float = 1.0,
    offset: float = 0.0,
    steps: int = 64,
) -> float:
    """Relative difference between ours and exponax after ``steps`` steps from random waves."""
    exponax = pytest.importorskip("exponax")
    pde = find_pde(name)
    initial = waves(size, num_axes, pde.initial_channels(num_axes), amplitude, offset)
    kind = getattr(exponax.stepper, stepper, None) or getattr(exponax.stepper.reaction, stepper)
    extent = ours.get("extent", pde.parameters().extent)
    answer = run_exponax(kind(num_axes, extent, size, dt, **theirs), initial, steps)
    settings = ours if name == "advection_diffusion" else {**ours, "dt": dt}
    found = simulate(name, initial.movedim(0, -1)[None], 2, steps * dt, **settings)[0, -1]
    assert relative(initial, answer) > 1e-3  # it has gone somewhere
    return relative(found.movedim(-1, 0), answer)


ROUND_OFF = 2e-13
ORDER = {"order": 4}
POSITIVE = {"amplitude": 0.4, "offset": 0.5}


@pytest.mark.parametrize(
    ("name", "stepper", "size", "num_axes", "dt", "theirs", "ours", "values"),
    [
        ("burgers", "Burgers", 48, 1, 1 / 64, {"diffusivity": 0.01, **ORDER}, {"viscosity": 0.01}, {}),
        ("burgers", "Burgers", 24, 2, 1 / 64, {"diffusivity": 0.01, **ORDER}, {"viscosity": 0.01}, {}),
        ("burgers", "Burgers", 18, 3, 1 / 64, {"diffusivity": 0.01, **ORDER}, {"viscosity": 0.01}, {}),
        ("kuramoto_sivashinsky", "KuramotoSivashinskyConservative", 96, 1, 1 / 8, ORDER, {}, {}),
        ("kuramoto_sivashinsky", "KuramotoSivashinsky", 48, 2, 1 / 8, ORDER, {"biharmonic": False}, {}),
        ("advection_diffusion", "AdvectionDiffusion", 24, 2, 1 / 64, {"velocity": 1.0, "diffusivity": 0.01}, {}, {}),
        ("fisher_kpp", "FisherKPP", 48, 1, 1 / 64, {"diffusivity": 0.01, "reactivity": 1.0, **ORDER}, {}, POSITIVE),
        ("fisher_kpp", "FisherKPP", 30, 2, 1 / 64, {"diffusivity": 0.01, "reactivity": 1.0, **ORDER}, {}, POSITIVE),
        ("gray_scott", "GrayScott", 24, 2, 1.0, ORDER, {}, {"amplitude": 0.2, "offset": 0.4}),
        ("swift_hohenberg", "SwiftHohenberg", 24, 2, 1 / 16, ORDER, {"extent": 24.0}, {}),
        ("swift_hohenberg", "SwiftHohenberg", 16, 3, 1 / 16, ORDER, {"extent": 16.0}, {}),
        ("cahn_hilliard", "CahnHilliard", 24, 2, 1 / 64, ORDER, {"extent": 1.0}, {}),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_semilinear_equations(name, stepper, size, num_axes, dt, theirs, ours, values) -> None:
    """64 steps of the same scheme with the same modes: round-off. Measured: 3e-15 to 4e-14."""
    assert distance(name, stepper, size, num_axes, dt, theirs, ours, **values) < ROUND_OFF


def test_korteweg_de_vries() -> None:
    """exponax takes the real part of complex coefficients, which changes its step: it comes closer as dt falls.

    Measured at 1/1024, 1/2048 and 1/4096: 3.2e-5, 1.6e-5 and 8.1e-6.
    """
    theirs = {"convection_scale": 6.0, "dispersivity": 1.0, "diffusivity": 0.0, "hyper_diffusivity": 0.0, **ORDER}
    found = [
        distance("korteweg_de_vries", "KortewegDeVries", 96, 1, 1 / per_unit, theirs, {}, steps=per_unit // 64)
        for per_unit in (1024, 2048, 4096)
    ]
    assert found[0] > found[1] > found[2]
    assert found[2] < 5e-5
