"""Symmetry maps carry solutions to solutions, and augmentation applies one of them per sample."""

import pytest
import torch

from factformer import simulate
from factformer.grid import Grid
from factformer.pdes import PDE, find_pde
from factformer.pdes.kolmogorov_flow import Parameters as KolmogorovParameters
from factformer.pdes.smoke_buoyancy import Parameters as SmokeParameters
from solver_cases import all_pdes, resolution, solution, solve

# Data with a mask are not augmented: their fields would move and their mask would not.
PDES = pytest.mark.parametrize("pde", [pde for pde in all_pdes() if not pde.masked], ids=lambda pde: pde.name)


@PDES
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_augmented_samples_are_solutions_too(pde: PDE, seed: int) -> None:
    grid = pde.problem(resolution(pde)).grid
    frames = solution(pde, count=4)
    untouched = frames.clone()
    moved = pde.augment(frames, grid, torch.Generator().manual_seed(seed))
    assert torch.equal(frames, untouched)
    torch.testing.assert_close(solve(pde, moved), moved, rtol=1e-7, atol=1e-7)


@PDES
def test_augmentation_differs_between_samples_and_follows_its_generator(pde: PDE) -> None:
    grid = pde.problem(resolution(pde)).grid
    frames = solution(pde, count=1).expand(8, *[-1] * (grid.num_axes + 2))
    first, again, other = (pde.augment(frames, grid, torch.Generator().manual_seed(seed)) for seed in (3, 3, 4))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert any(not torch.equal(first[0], first[i]) for i in range(1, 8))


def test_kolmogorov_symmetries_follow_the_forcing_and_the_grid() -> None:
    pde = find_pde("kolmogorov_flow")
    parameters = KolmogorovParameters(forcing_wavenumber=3)
    grid = Grid((32, 30), 6.283185307179586, periodic=True)
    assert len(pde.symmetries(grid, parameters)) == 4  # 30 points hold periods of 10 and half-periods of 5
    assert len(pde.symmetries(grid)) == 2  # but not those of n = 8
    assert len(pde.symmetries(Grid((32, 24), 6.283185307179586, True))) == 3
    frames = simulate(pde.name, torch.randn(4, 32, 30, 1, dtype=torch.float64), 3, forcing_wavenumber=3)
    moved = pde.augment(frames, grid, torch.Generator().manual_seed(0), parameters)
    again = simulate(pde.name, moved[:, 0], 3, forcing_wavenumber=3)
    torch.testing.assert_close(again, moved, rtol=1e-8, atol=1e-8)


def test_each_kolmogorov_flow_is_moved_by_its_own_forcing_wavenumber() -> None:
    pde = find_pde("kolmogorov_flow")
    grid = pde.grid((32, 24))
    numbers = torch.tensor([2.0, 3.0, 4.0, 5.0, 6.0, 7.0])  # 24 points hold periods of all but 5 and 7
    frames = simulate(pde, torch.randn(6, 32, 24, 1, dtype=torch.float64), 3, forcing_wavenumber=numbers)
    parameters = KolmogorovParameters().model_copy(update={"forcing_wavenumber": numbers})
    for seed in range(3):
        moved = pde.augment(frames, grid, torch.Generator().manual_seed(seed), parameters)
        again = simulate(pde, moved[:, 0], 3, forcing_wavenumber=numbers)
        torch.testing.assert_close(again, moved, rtol=1e-8, atol=1e-8)
        assert not torch.allclose(moved, frames)


def test_smoke_symmetries_follow_where_velocity_is_stored() -> None:
    pde = find_pde("smoke_buoyancy")
    grid = pde.problem(resolution(pde)).grid
    frames = solution(pde, count=4, velocity_points="cells")
    parameters = SmokeParameters(velocity_points="cells")
    moved = pde.augment(frames, grid, torch.Generator().manual_seed(1), parameters)
    torch.testing.assert_close(solve(pde, moved, velocity_points="cells"), moved, rtol=1e-8, atol=1e-8)
    for transform in pde.symmetries(grid, parameters).values():
        moved = transform(frames)
        torch.testing.assert_close(solve(pde, moved, velocity_points="cells"), moved, rtol=1e-8, atol=1e-8)
