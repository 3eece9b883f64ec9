"""Elliptic solves: exact inverses, convergence under refinement, and conjugate gradients."""

import itertools
import math

import pytest
import torch

from factformer.grid import Grid
from factformer.numerics.elliptic import (
    conjugate_gradients,
    dirichlet_poisson,
    divergence_form,
    face_means,
    neumann_poisson,
)
from factformer.numerics.interpolation import spline_matrix

SHAPES = [(9,), (8, 11), (5, 6, 7)]


@pytest.mark.parametrize("shape", SHAPES)
def test_dirichlet_poisson_inverts_the_operator(shape: tuple[int, ...]) -> None:
    spacing = [0.1 * (m + 1) for m in range(len(shape))]
    values = torch.randn(2, *shape, dtype=torch.float64)
    ones = torch.ones(2, *(size + 2 for size in shape), dtype=torch.float64)
    image = divergence_form(ones, spacing)(values)
    solve = dirichlet_poisson(shape, spacing, dtype=torch.float64, device="cpu")
    torch.testing.assert_close(solve(image), values)


@pytest.mark.parametrize("num_axes", [1, 2, 3])
def test_neumann_poisson_is_second_order(num_axes: int) -> None:
    """``-∇²p = f`` with zero flux through the walls, for a product of cosines."""
    errors = []
    for size in (8, 16, 32):
        grid = Grid([size + m for m in range(num_axes)], 1.0, periodic=False, points="cells")
        wave = [math.pi * (m + 1) for m in range(num_axes)]
        exact = torch.ones(grid.shape, dtype=torch.float64)
        for m, k in enumerate(wave):
            exact = exact * torch.cos(k * grid.mesh()[..., m])
        spacing = [1.0 / points for points in grid.shape]
        solve = neumann_poisson(grid.shape, spacing, dtype=torch.float64, device="cpu")
        error = solve(sum(k * k for k in wave) * exact[None])[0] - exact
        errors.append(float(error.abs().max()))
    assert math.log2(errors[0] / errors[1]) > 1.6
    assert math.log2(errors[1] / errors[2]) > 1.75


def test_neumann_poisson_takes_the_mean_to_zero() -> None:
    solve = neumann_poisson((6, 7), (0.1, 0.2), dtype=torch.float64, device="cpu")
    assert solve(torch.ones(1, 6, 7, dtype=torch.float64)).abs().max() < 1e-14


@pytest.mark.parametrize("num_axes", [1, 2, 3])
def test_variable_coefficient_solve_is_second_order(num_axes: int) -> None:
    """Manufactured: u = Π sin(π x_m), a = exp(Σ x_m / 2), f = -∇·(a ∇u)."""
    errors = []
    for size in (9, 17, 33):
        grid = Grid((size,) * num_axes, 1.0, periodic=False)
        x = grid.mesh()
        a = torch.exp(0.5 * x.sum(-1))
        u = torch.sin(math.pi * x).prod(-1)
        f = num_axes * math.pi**2 * a * u
        for m in range(num_axes):
            slope = math.pi * torch.cos(math.pi * x[..., m])
            for other in range(num_axes):
                if other != m:
                    slope = slope * torch.sin(math.pi * x[..., other])
            f = f - 0.5 * a * slope
        inner = (slice(1, -1),) * num_axes
        spacing = [1 / (size - 1)] * num_axes
        preconditioner = dirichlet_poisson([size - 2] * num_axes, spacing, dtype=torch.float64, device="cpu")
        solution, residual = conjugate_gradients(
            divergence_form(a[None], spacing), f[inner][None].contiguous(), preconditioner, tolerance=1e-11
        )
        assert residual.max() < 2e-11
        errors.append(float((solution[0] - u[inner]).abs().max()))
    assert min(math.log2(a / b) for a, b in itertools.pairwise(errors)) > 1.75


def test_layers_have_their_one_dimensional_solution() -> None:
    """``-(a u')' = 1`` with a = 3 | 12, the jump in the middle of a face: the flux is continuous and linear."""
    size, low, high = 40, 3.0, 12.0  # 39 intervals: the middle of the box is the middle of one
    x = Grid((size,), 1.0, periodic=False).axis(0)
    a = torch.where(x < 0.5, low, high)[None]
    # flux q(x) = x - c; u = -∫ q/a, with c such that u(1) = 0
    c = (0.125 / low + 0.375 / high) / (0.5 / low + 0.5 / high)
    left = (c * x - x**2 / 2) / low
    right = (c * 0.5 - 0.125) / low + (c * (x - 0.5) - (x**2 - 0.25) / 2) / high
    exact = torch.where(x < 0.5, left, right)[None, 1:-1]
    spacing = [1 / (size - 1)]
    preconditioner = dirichlet_poisson((size - 2,), spacing, dtype=torch.float64, device="cpu")
    errors = {}
    for harmonic in (True, False):
        solution, _ = conjugate_gradients(
            divergence_form(a, spacing, harmonic), torch.ones_like(exact), preconditioner, tolerance=1e-12
        )
        errors[harmonic] = float((solution - exact).norm() / exact.norm())
    assert errors[True] < 1e-3  # the harmonic mean is the exact resistance of the face with the jump
    assert errors[True] < 0.1 * errors[False] < 0.02


def test_samples_of_a_batch_do_not_see_each_other() -> None:
    spacing = [0.1, 0.1]
    a = 3 + 9 * (torch.rand(3, 11, 11, dtype=torch.float64) > 0.5).double()
    a[1] = 1.0
    preconditioner = dirichlet_poisson((9, 9), spacing, dtype=torch.float64, device="cpu")
    right = torch.ones(3, 9, 9, dtype=torch.float64)
    together, residual = conjugate_gradients(divergence_form(a, spacing), right, preconditioner, tolerance=1e-12)
    assert torch.isfinite(together).all()
    assert residual.max() < 1e-11
    for sample in range(3):
        alone, _ = conjugate_gradients(
            divergence_form(a[sample : sample + 1], spacing), right[:1], preconditioner, tolerance=1e-12
        )
        torch.testing.assert_close(alone[0], together[sample], rtol=1e-9, atol=0)


def test_iterations_are_bounded_by_the_contrast_whatever_the_grid() -> None:
    counts = []
    for size in (17, 65):
        calls = 0
        spacing = [1 / (size - 1)] * 2
        poisson = dirichlet_poisson((size - 2,) * 2, spacing, dtype=torch.float64, device="cpu")

        def preconditioner(values: torch.Tensor, poisson=poisson) -> torch.Tensor:
            nonlocal calls
            calls += 1
            return poisson(values)

        generator = torch.Generator().manual_seed(1)
        a = 3 + 9 * (torch.rand(1, size, size, generator=generator, dtype=torch.float64) > 0.5).double()
        conjugate_gradients(
            divergence_form(a, spacing),
            torch.ones(1, size - 2, size - 2, dtype=torch.float64),
            preconditioner,
            tolerance=1e-8,
        )
        counts.append(calls)
    assert max(counts) <= 24  # (√4 - 1)/(√4 + 1) = 1/3 per iteration at contrast 4


def test_face_means() -> None:
    a = torch.tensor([[3.0, 12.0, 12.0]])
    torch.testing.assert_close(face_means(a, 1), torch.tensor([[7.5, 12.0]]))
    torch.testing.assert_close(face_means(a, 1, harmonic=True), torch.tensor([[4.8, 12.0]]))


def test_splines_are_exact_for_cubics_even_beyond_the_ends() -> None:
    source = torch.linspace(0.05, 0.95, 10, dtype=torch.float64)
    target = torch.linspace(0.0, 1.0, 7, dtype=torch.float64)
    cubic = lambda x: 2 * x**3 - x**2 + 0.5  # noqa: E731
    torch.testing.assert_close(spline_matrix(source, target) @ cubic(source), cubic(target))
