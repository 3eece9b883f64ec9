"""Symmetry maps carry solutions to solutions, and augmentation applies one of them per sample."""

import pytest
import torch
from solver_cases import all_pdes, resolution, start

from factformer import simulate
from factformer.grid import Grid
from factformer.pdes import PDE, find_pde
from factformer.pdes.kolmogorov_flow import Parameters as KolmogorovParameters
from factformer.pdes.smoke_buoyancy import Parameters as SmokeParameters

PDES = pytest.mark.parametrize("pde", all_pdes(), ids=lambda pde: pde.name)


def solve(pde: PDE, frames: torch.Tensor, **parameters: object) -> torch.Tensor:
    """The solution from the first of these frames; for a steady problem, coefficient and solution side by side."""
    if pde.problem(16).steady:
        coefficient = frames[:, 0, ..., :1]
        return torch.cat([coefficient[:, None], simulate(pde.name, coefficient, **parameters)], dim=-1)
    slices = pde.problem(16).state_slices
    # what a simulation starts from: velocity for turbulence, density for smoke
    channels = slices["velocity"] if pde.num_initial_channels == 3 else slice(0, 1)
    return simulate(pde.name, frames[:, 0, ..., channels], 4, **parameters)


def solution(pde: PDE, count: int = 2, **parameters: object) -> torch.Tensor:
    initial = start(pde, count)
    padded = torch.zeros(*initial.shape[:-1], pde.problem(16).num_state_channels, dtype=initial.dtype)
    if pde.num_initial_channels == 3:
        padded[..., -3:] = initial
    else:
        padded[..., :1] = initial
    return solve(pde, padded[:, None], **parameters)


@PDES
def test_maps_carry_solutions_to_solutions(pde: PDE) -> None:
    grid = pde.problem(resolution(pde)).grid
    frames = solution(pde)
    maps = pde.symmetries(grid)
    assert len(maps) >= 3
    for name, transform in maps.items():
        moved = transform(frames)
        assert not torch.allclose(moved, frames), name
        torch.testing.assert_close(solve(pde, moved), moved, rtol=1e-7, atol=1e-7, msg=lambda text, n=name: n + text)


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
