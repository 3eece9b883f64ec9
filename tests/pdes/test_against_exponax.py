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
