"""Darcy flow against exact values, a finite element package and its order."""

import itertools

import numpy as np
import pytest
import torch

from factformer import simulate
from factformer.errors import UserError
from factformer.grid import Grid
from factformer.numerics.elliptic import divergence_form
from factformer.pdes import find_pde
from solver_cases import rates, relative, start

NAME = "darcy_flow"
PDE = find_pde(NAME)


def smooth_coefficient(size: int) -> torch.Tensor:
    x1, x2 = Grid((size, size), 1.0, periodic=False).mesh().unbind(-1)
    return (2 + torch.sin(5 * x1) * torch.cos(3 * x2) + 0.5 * x1 * x2)[None, ..., None]


def test_constant_coefficient_has_the_known_solution() -> None:
    """-∇²u = 1 on the unit square: u(½,½) = 0.073671, u(¼,¼) = 0.045286, by Richardson from second order."""
    centre, quarter = [], []
    for size in (81, 161):
        solution = simulate(NAME, torch.ones(1, size, size, 1, dtype=torch.float64))[0, 0, ..., 0]
        centre.append(float(solution[size // 2, size // 2]))
        quarter.append(float(solution[size // 4, size // 4]))
        assert solution[0].abs().max() == solution[:, -1].abs().max() == 0
    assert centre[1] == pytest.approx(0.073671, abs=3e-6)
    assert quarter[1] == pytest.approx(0.045286, abs=3e-6)
    assert centre[1] + (centre[1] - centre[0]) / 3 == pytest.approx(0.0736713, abs=1e-7)
    assert quarter[1] + (quarter[1] - quarter[0]) / 3 == pytest.approx(0.0452863, abs=2e-7)


def test_the_solution_scales_with_source_and_coefficient() -> None:
    a = start(PDE, count=1)
    solution = simulate(NAME, a)
    torch.testing.assert_close(simulate(NAME, a, source=3.0), 3 * solution)
    torch.testing.assert_close(simulate(NAME, 4 * a), solution / 4, rtol=1e-6, atol=0)


def test_order_for_a_smooth_coefficient() -> None:
    solutions = [PDE.downsample(simulate(NAME, smooth_coefficient(size)), (11, 11)) for size in (11, 21, 41, 81)]
    differences = [relative(coarse, fine) for coarse, fine in itertools.pairwise(solutions)]
    assert min(rates(differences)) > 1.75, differences


def test_residual_of_the_discrete_equations() -> None:
    for mean in ("arithmetic", "harmonic"):
        a = start(PDE, count=3, size=61)
        solution = simulate(NAME, a, face_mean=mean)[:, 0, 1:-1, 1:-1, 0].contiguous()
        operator = divergence_form(a[..., 0], [1 / 60, 1 / 60], harmonic=mean == "harmonic")
        residual = (operator(solution) - 1).flatten(1).norm(dim=1) / solution[0].numel() ** 0.5
        assert residual.max() < 1e-8


def test_against_finite_elements_of_scikit_fem() -> None:
    """Quadratic elements on 48² squares against our 97² nodes for a smooth coefficient.

    Measured relative difference: 1.06e-4, what a second-order scheme leaves at this spacing (2.6e-5 at 193²); the
    bound is a factor of two above that.
    """
    skfem = pytest.importorskip("skfem")
    helpers = pytest.importorskip("skfem.helpers")
    mesh = skfem.MeshQuad.init_tensor(np.linspace(0, 1, 49), np.linspace(0, 1, 49))
    basis = skfem.Basis(mesh, skfem.ElementQuad2(), intorder=6)

    @skfem.BilinearForm
    def stiffness(u, v, w):
        x1, x2 = w.x
        a = 2 + np.sin(5 * x1) * np.cos(3 * x2) + 0.5 * x1 * x2
        return a * helpers.dot(helpers.grad(u), helpers.grad(v))

    @skfem.LinearForm
    def load(v, w):
        return v

    matrix, right = stiffness.assemble(basis), load.assemble(basis)
    theirs = skfem.solve(*skfem.condense(matrix, right, D=basis.get_dofs().all()))
    points = Grid((49, 49), 1.0, periodic=False).mesh().reshape(-1, 2).numpy().T
    nodes = torch.from_numpy(basis.interpolator(theirs)(np.clip(points, 1e-12, 1 - 1e-12))).reshape(49, 49)
    errors = []
    for size in (97, 193):
        ours = PDE.downsample(simulate(NAME, smooth_coefficient(size)), (49, 49))[0, 0, ..., 0]
        errors.append(relative(ours, nodes))
    assert errors[0] < 2.2e-4
    assert errors[1] < errors[0] / 3.5


def test_cell_centred_convention_approaches_the_node_solve() -> None:
    """Splines from cell centres to nodes and back: for a smooth coefficient the difference is that of position."""
    size = 49
    cells = Grid((size, size), 1.0, periodic=False, points="cells")
    x1, x2 = cells.mesh().unbind(-1)
    a = (2 + torch.sin(5 * x1) * torch.cos(3 * x2) + 0.5 * x1 * x2)[None, ..., None]
    at_cells = simulate(NAME, a, points="cells")[0, 0, ..., 0]
    nodes = simulate(NAME, smooth_coefficient(2 * size + 1))[0, 0, 1::2, 1::2, 0]  # those nodes are the cell centres
    assert relative(at_cells, nodes) < 2e-3


@pytest.mark.slow
def test_cell_centred_convention_on_the_papers_coefficients() -> None:
    """On 3 | 12 coefficients at 421² the two conventions differ by about half a per cent."""
    a = start(PDE, count=2, size=421, dtype=torch.float32)
    assert 0.003 < relative(simulate(NAME, a, points="cells"), simulate(NAME, a)) < 0.008


def test_coefficients_are_three_and_twelve() -> None:
    a = start(PDE, count=20, size=61, dtype=torch.float32)
    assert a.unique().tolist() == [3.0, 12.0]
    share = (a == 12).float().mean((1, 2, 3))
    assert float(share.mean()) == pytest.approx(0.5, abs=0.1)
    assert float(share.std()) > 0.02
    edges = (a[:, 1:] != a[:, :-1]).float().mean()
    assert edges < 0.15  # blobs, not noise


def test_downsampling_takes_nodes_with_both_ends() -> None:
    frames = torch.arange(421.0)[None, None, :, None, None].expand(1, 1, 421, 421, 1)
    for size in (43, 61, 85, 141, 211, 421):
        kept = PDE.downsample(frames, (size, size))
        assert kept.shape == (1, 1, size, size, 1)
        assert kept[0, 0, [0, -1], 0, 0].tolist() == [0, 420]
    with pytest.raises(UserError, match="100 nodes are no subset of 421"):
        PDE.downsample(frames, (100, 100))


def test_a_coefficient_that_is_not_positive_is_refused() -> None:
    a = torch.ones(2, 9, 9, 1)
    a[1, 4, 4] = -2
    with pytest.raises(UserError, match="sample 1 falls to -2"):
        simulate(NAME, a)
    with pytest.raises(UserError, match="at least 3 per axis"):
        simulate(NAME, torch.ones(1, 2, 9, 1))
    with pytest.raises(UserError, match="steady"):
        simulate(NAME, torch.ones(1, 9, 9, 1), 3)


@pytest.mark.parametrize("settings", [{}, {"face_mean": "harmonic"}, {"points": "cells"}])
def test_the_gradient_by_the_coefficient(settings: dict[str, str]) -> None:
    generator = torch.Generator().manual_seed(0)
    coefficient, direction, weights = (
        torch.rand(2, 9, 7, 1, generator=generator, dtype=torch.float64) for _ in range(3)
    )
    coefficient = (coefficient + 1).requires_grad_()

    def score(values: torch.Tensor) -> torch.Tensor:
        return (simulate("darcy_flow", values, tolerance=1e-12, **settings)[:, 0] * weights).sum()

    (slope,) = torch.autograd.grad(score(coefficient), coefficient)
    with torch.no_grad():
        step = 1e-4 * direction
        expected = (score(coefficient + step) - score(coefficient - step)) / 2e-4
    assert float((slope * direction).sum()) == pytest.approx(float(expected), rel=1e-5)


def test_a_solve_that_ends_in_nan_does_not_speak_of_time_steps() -> None:
    coefficient = torch.full((1, 16, 16, 1), 1e-300, dtype=torch.float64)
    coefficient[:, 3:9] = 1e300
    with pytest.raises(UserError, match="residual of nan"):
        simulate("darcy_flow", coefficient, points="cells")
