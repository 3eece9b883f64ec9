"""Surrogate against solver on data that the solver made."""

import pytest
import torch

from factformer import build_surrogate
from factformer.data.generate.run import generate
from factformer.data.store import open_dataset
from factformer.errors import UserError
from factformer.evaluation.solver import benchmark_solver
from factformer.pdes import Preset, find_pde

SIZES = {"dim": 8, "depth": 1, "heads": 1, "head_dim": 8, "kernel_dim": 8}


@pytest.fixture(scope="module")
def kolmogorov(tmp_path_factory):
    folder = tmp_path_factory.mktemp("solver")
    preset = Preset(32, 32, 26, 1 / 16, {"train": 1, "test": 2}, warmup=0.5, batch_size=2)
    generate("kolmogorov_flow", folder, preset=preset)
    return open_dataset(folder, "test")


def test_the_solver_on_its_own_grid_is_exact_and_on_a_coarser_one_is_not(kolmogorov):
    torch.manual_seed(0)
    surrogate = build_surrogate(find_pde("kolmogorov_flow").problem(32), **SIZES)
    result = benchmark_solver(surrogate, kolmogorov, resolutions=(32, 26))
    names = [(row["contender"], row["resolution"]) for row in result["rows"]]
    assert names == [
        ("surrogate (factformer)", 32),
        ("solver (reference)", 32),
        ("solver (coarse)", 32),
        ("solver (coarse)", 26),
    ]
    untrained, reference, same, coarse = result["rows"]
    assert untrained["relative_l2"]["vorticity"] > 0.5
    assert reference["relative_l2"] is None
    assert same["relative_l2"]["vorticity"] < 1e-3
    assert 1e-3 < coarse["relative_l2"]["vorticity"] < 1
    for row in result["rows"]:  # two trajectories, 16 frames of 1/16 s
        assert row["simulated_seconds_per_second"] == pytest.approx(2 / row["seconds"])
    assert result["speedup_over_reference"] == pytest.approx(reference["seconds"] / untrained["seconds"])


def test_a_grid_that_is_too_coarse_for_the_solver_is_left_out_unless_it_was_asked_for(kolmogorov):
    surrogate = build_surrogate(find_pde("kolmogorov_flow").problem(32), **SIZES)
    rows = benchmark_solver(surrogate, kolmogorov)["rows"]  # the half of 32 points does not hold the forcing
    assert [row["resolution"] for row in rows] == [32, 32, 32]
    with pytest.raises(UserError, match="forcing_wavenumber"):
        benchmark_solver(surrogate, kolmogorov, resolutions=(16,))


def test_a_steady_problem_counts_solutions(tmp_path):
    preset = Preset(17, 33, 1, 1.0, {"train": 2, "test": 2}, batch_size=2)
    generate("darcy_flow", tmp_path, preset=preset)
    surrogate = build_surrogate(find_pde("darcy_flow").problem(17), **SIZES)
    result = benchmark_solver(surrogate, open_dataset(tmp_path, "test"), resolutions=(17,))
    surrogate_row, _, coarse = result["rows"]
    assert surrogate_row["solutions_per_second"] == pytest.approx(2 / surrogate_row["seconds"])
    assert coarse["relative_l2"]["solution"] < 0.2
