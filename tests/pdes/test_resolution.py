"""Grids that are fine enough: too coarse ones are refused by name, and those of the presets resolve their flows."""

import math
import re
from pathlib import Path

import pytest
import torch

from factformer import Field, simulate
from factformer.config import Config
from factformer.data import generate
from factformer.errors import UserError
from factformer.pdes import Semilinear, Settings, find_pde, solve
from factformer.studies.apebench.scenarios import SCENARIOS
from solver_cases import SEMILINEAR


@pytest.mark.parametrize(
    ("name", "shape", "parameters"),
    [
        ("cahn_hilliard", (64, 64), {}),
        ("cahn_hilliard", (64, 64), {"interface": [0.05, 1e-3]}),
        ("fisher_kpp", (16, 16), {}),
        ("fisher_kpp", (28, 28), {"rate": [1.0, 2.0]}),
        ("kuramoto_sivashinsky", (24,), {}),
        ("kuramoto_sivashinsky", (20, 24), {"biharmonic": False}),
        ("kuramoto_sivashinsky", (32,), {"extent": [60.0, 80.0]}),
        ("swift_hohenberg", (24, 24), {}),
        ("swift_hohenberg", (8, 8), {"rate": 0.01}),
        ("swift_hohenberg", (16, 60, 16), {}),
    ],
)
def test_a_grid_whose_cut_leaves_growing_waves_is_refused(name, shape, parameters):
    """The number of points that the message names is enough, and two fewer are not."""
    initial = torch.zeros(2, *shape, 1)
    with pytest.raises(UserError, match=f"{name}: waves up to mode .* grow") as caught:
        simulate(name, initial, 2, 1e-3, **parameters)
    found = re.search(r"take ([\d x]+) points or more$", str(caught.value))
    assert found is not None
    needed = [int(size) for size in found[1].split(" x ")]
    assert torch.isfinite(simulate(name, torch.zeros(2, *needed, 1), 2, 1e-3, **parameters)).all()
    with pytest.raises(UserError, match="points or more"):
        simulate(name, torch.zeros(2, *[size - 2 for size in needed], 1), 2, 1e-3, **parameters)


@pytest.mark.parametrize("periods", range(2, 12))
def test_a_neutral_wave_is_no_growth(periods):
    """In a box of n wavelengths of 2π the n-th mode of Kuramoto-Sivashinsky neither grows nor decays."""
    points = 3 * (periods - 1) + 1  # the cut is n - 1
    initial = torch.zeros(1, points, 1, dtype=torch.float64)
    simulate("kuramoto_sivashinsky", initial, 2, 0.1, extent=2 * math.pi * periods)
    with pytest.raises(UserError, match="waves"):
        simulate("kuramoto_sivashinsky", initial[:, :-1], 2, 0.1, extent=2 * math.pi * periods)


@pytest.mark.parametrize("name", ["advection_diffusion", "burgers", "gray_scott", "korteweg_de_vries"])
def test_where_no_wave_grows_any_grid_will_do(name):
    pde = find_pde(name)
    assert pde.why_not_solved((4,) * pde.dimensions[0], pde.parameters()) == ""


class Parameters(Config):
    extent: float = 1.0


class Unstable(Semilinear):
    """All waves grow, the shortest the fastest."""

    name = "unstable"
    parameters = Parameters
    dimensions = (1,)
    state = (Field("height"),)

    def linear(self, modes, parameters):
        return -1e-4 * modes.laplacian


class UnstableWithProduct(Unstable):
    def nonlinear(self, modes, parameters):
        return lambda u: -modes.coefficients(modes.values(u).square())


def test_growth_is_the_exact_solution_where_there_is_no_nonlinear_term():
    wave = torch.cos(2 * math.pi * torch.arange(8, dtype=torch.float64) / 8).reshape(1, 8, 1)
    found = simulate(Unstable(), wave, 2, 1.0)[:, 1]
    torch.testing.assert_close(found, math.exp(1e-4 * (2 * math.pi) ** 2) * wave)


def test_a_rate_that_all_modes_share_is_looked_at():
    class Growth(UnstableWithProduct):
        def linear(self, modes, parameters):
            return torch.tensor(0.1)

    class Decay(UnstableWithProduct):
        def linear(self, modes, parameters):
            return torch.tensor(-0.1)

    assert Growth().why_not_solved((16,), Parameters()) and not Decay().why_not_solved((16,), Parameters())


def test_growth_that_no_grid_holds_is_refused():
    with pytest.raises(UserError, match="waves grow that are far shorter"):
        simulate(UnstableWithProduct(), torch.zeros(1, 64, 1), 2, 1.0)


@pytest.mark.parametrize("interface", ["0.0005", "1e-5..0.02:log"])
def test_generate_refuses_before_it_writes(interface, tmp_path: Path):
    with pytest.raises(UserError, match="points or more, as simulation_resolution"):
        generate("cahn_hilliard", tmp_path / "data", preset="small", settings=[f"interface={interface}"])
    assert not (tmp_path / "data").exists()


def test_the_grids_of_presets_and_scenarios_are_fine_enough():
    for name in SEMILINEAR:
        pde = find_pde(name)
        for plan in pde.presets.values():
            settings = Settings.parse(pde, plan.parameters)
            for size in (plan.resolution, plan.simulation_resolution):  # a solver may start from a stored frame
                assert pde.why_not_solved(pde.shape_in(plan, size), settings.shared) == ""
    for scenario in SCENARIOS.values():
        parameters = scenario.pde.parameters.parse(dict(scenario.parameters))
        assert scenario.pde.why_not_solved(scenario.grid.shape, parameters) == ""


@pytest.mark.parametrize("preset", ["tiny", pytest.param("small", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", SEMILINEAR)
def test_presets_resolve_their_flows(name, preset):
    """On twice the points the last frame of the same start changes by less than 1 %."""
    pde = find_pde(name)
    plan = pde.presets[preset]
    parameters = Settings.parse(pde, plan.parameters).shared
    last = []
    for size in (plan.simulation_resolution, 2 * plan.simulation_resolution):
        grid = pde.grid_of(pde.shape_in(plan, size), parameters)
        initial = pde.sample_initial(grid, [torch.Generator().manual_seed(1)], dtype=torch.float64, device="cpu")
        for state in solve(pde, initial, plan.num_dropped + plan.num_frames, plan.frame_dt, parameters):
            final = state
        stored = pde.shape_in(plan)
        last.append(final if grid.shape == stored else pde.downsample(final[:, None], stored)[:, 0])
    assert (last[0] - last[1]).norm() / last[1].norm() < 0.01
