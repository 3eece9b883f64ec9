"""Surrogate against solver on data that the solver made."""

import math
from dataclasses import replace

import pytest
import torch

from factformer import build_surrogate
from factformer.data.generate.run import generate
from factformer.data.store import open_dataset
from factformer.errors import UserError
from factformer.evaluation.provenance import write_json
from factformer.evaluation.solver import benchmark_solver
from factformer.evaluation.solver.benchmark import default_resolutions
from factformer.evaluation.solver.bill import break_even, frontier, seconds_at_error
from factformer.evaluation.solver.results import SolverBenchmark, read_solver_benchmark
from factformer.evaluation.solver.rival import Rival, fewest_steps
from factformer.pdes import Preset, find_pde

SIZES = {"dim": 8, "depth": 1, "heads": 1, "head_dim": 8, "kernel_dim": 8}
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def kolmogorov(tmp_path_factory):
    """Stored on fewer points than the solver has."""
    folder = tmp_path_factory.mktemp("solver")
    preset = Preset(32, 64, 14, 1 / 16, {"train": 1, "test": 2}, warmup=0.5, batch_size=2)
    generate("kolmogorov_flow", folder, preset=preset)
    return open_dataset(folder, "test")


def surrogate_of(dataset, **changes):
    torch.manual_seed(0)
    return build_surrogate(dataset.problem.with_stride(changes.pop("stride", 1)), **SIZES, **changes)


@pytest.fixture(scope="module")
def result(kolmogorov):
    surrogate = surrogate_of(kolmogorov)
    surrogate.provenance = {"training_seconds": 100.0}
    heard = []
    found = benchmark_solver(surrogate, kolmogorov, resolutions=(26, 32, 64), report=heard.append)
    assert heard == found["rows"]
    return found


def test_rows_for_every_precision_grid_and_start(result):
    names = [(row["method"], row["resolution"], row["precision"], row["start"]) for row in result["rows"]]
    assert names == [
        ("surrogate (factformer)", 32, "32-true", None),
        ("surrogate (factformer)", 32, "bf16-mixed", None),
        ("solver (reference)", 64, "32-true", None),
        *[("solver (coarse)", size, "32-true", "stored frame") for size in (26, 32, 64)],
        *[("solver (fine start)", size, "32-true", "full state") for size in (26, 32, 64)],
    ]
    for row in result["rows"]:  # two trajectories, four frames of 1/16 s
        assert row["simulated_seconds_per_second"] == pytest.approx(0.5 / row["seconds"])
        assert row["seconds_per_simulated_second"] == pytest.approx(row["seconds"] / 0.5)


def test_the_solver_is_exact_from_its_full_state_and_less_so_from_less(result):
    untrained, _, reference, *rows = result["rows"]
    assert untrained["error"] == untrained["relative_l2"]["vorticity"] > 0.5
    assert reference["relative_l2"] is None
    stored, full = ({row["resolution"]: row["error"] for row in part} for part in (rows[:3], rows[3:]))
    assert full[64] < 2e-3  # with the longest step that does not add to it
    assert full[26] > full[32] > full[64]
    assert stored[64] > 2 * full[64]  # what lies beyond the stored modes is missing


def test_long_steps_are_taken_where_they_do_no_harm(kolmogorov):
    rival = Rival(find_pde("kolmogorov_flow"), kolmogorov, kolmogorov.problem, 1, 2, CPU)
    measured = rival.measure(64, "full state")
    steps = (1 / 16) / measured.dt
    assert steps == round(steps) and 1 <= steps <= 8  # its own are 8
    assert "dt" in rival.made_by["parameters"]


def test_steps_are_doubled_until_the_error_stays():
    tried = []

    def error(number):
        tried.append(number)
        return math.inf if number < 4 else 0.1 + 0.5 / number**3

    assert fewest_steps(error) == 8
    assert tried == [1, 2, 4, 8, 16, 32]
    assert fewest_steps(lambda number: 0.3) == 1
    assert fewest_steps(lambda number: abs(0.25 - 1 / number)) == 4  # what the data were made with
    assert fewest_steps(lambda number: math.inf) == 1


def test_speed_up_and_break_even_follow_from_the_rows(result):
    surrogate = result["rows"][0]["seconds"]
    assert result["speedup_over_reference"] == pytest.approx(result["rows"][2]["seconds"] / surrogate)
    # An untrained surrogate has more error than any solver: the cheapest of them is a bound.
    cheapest = min(row["seconds"] for row in result["rows"] if row["start"] == "full state")
    found = result["speedup_at_equal_error"]["32-true"]["full state"]
    assert found == {"factor": pytest.approx(cheapest / surrogate), "bound": "at most", "solver_seconds": cheapest}
    effort = result["effort"]
    per_second = result["rows"][2]["seconds_per_simulated_second"]
    assert effort["generation_seconds"] == pytest.approx((0.5 + 13 / 16) * per_second)
    assert effort["total_seconds"] == pytest.approx(effort["generation_seconds"] + 100.0)
    saved = (result["rows"][2]["seconds"] - surrogate) / 2
    expected = effort["total_seconds"] / saved if saved > 0 else None
    assert result["break_even_solutions"]["32-true"]["reference"] == (expected and pytest.approx(expected))
    assert result["starts"] == ["stored frame", "full state"]


def test_the_effort_of_other_training_data_is_not_known(kolmogorov):
    surrogate = surrogate_of(kolmogorov)
    surrogate.provenance = {"training_seconds": 100.0, "dataset": "another"}
    found = benchmark_solver(surrogate, kolmogorov, resolutions=(32,), precision="32-true", batch_size=1)
    assert found["effort"] == {"generation_seconds": None, "training_seconds": 100.0, "total_seconds": None}
    assert set(found["break_even_solutions"]["32-true"].values()) == {None}


def test_a_bundle_tells_what_was_simulated_for_it(kolmogorov):
    surrogate = surrogate_of(kolmogorov)
    surrogate.provenance = {"training_seconds": 100.0, "dataset": "another", "simulated_seconds": 50.0}
    found = benchmark_solver(surrogate, kolmogorov, resolutions=(32,), precision="32-true", batch_size=1)
    reference = next(row for row in found["rows"] if row["method"] == "solver (reference)")
    generation = 50.0 * reference["seconds_per_simulated_second"]
    assert found["effort"]["generation_seconds"] == pytest.approx(generation)
    assert found["effort"]["total_seconds"] == pytest.approx(generation + 100.0)


def test_simulated_time_counts_what_passed_before_the_first_frame(kolmogorov):
    assert kolmogorov.simulated_seconds == pytest.approx(2 * (0.5 + 13 / 16))


def test_interpolation_along_the_frontier():
    points = [(0.1, 1.0), (0.01, 10.0), (0.05, 20.0), (0.001, 100.0)]
    assert frontier(points) == [(0.001, 100.0), (0.01, 10.0), (0.1, 1.0)]
    middle = seconds_at_error(points, 10**-1.5)
    assert (middle.seconds, middle.bound) == (pytest.approx(10**0.5), "")
    assert seconds_at_error(points, 1e-4) == type(middle)(100.0, "at least")
    assert seconds_at_error(points, 0.5) == type(middle)(1.0, "at most")
    assert seconds_at_error(points, 0.01).seconds == pytest.approx(10.0)
    assert seconds_at_error([], 0.1) is None
    assert break_even(90.0, 1.0, 0.1) == pytest.approx(100.0)
    assert break_even(90.0, 0.1, 1.0) is None and break_even(None, 1.0, 0.1) is None


def test_a_stride_is_compared_at_equal_times(kolmogorov):
    surrogate = surrogate_of(kolmogorov, stride=2)
    rival = Rival(find_pde("kolmogorov_flow"), kolmogorov, surrogate.problem, 2, 2, CPU)
    assert torch.equal(rival.truth(), kolmogorov.read([0, 1], slice(rival.last_known + 2, None, 2))[:, :2])


def test_a_grid_that_is_too_coarse_for_the_solver_is_left_out_unless_it_was_asked_for(kolmogorov):
    surrogate = surrogate_of(kolmogorov)
    assert default_resolutions(32, 64) == [16, 24, 32, 48, 64]
    with pytest.raises(UserError, match="forcing_wavenumber"):
        benchmark_solver(surrogate, kolmogorov, resolutions=(16,), precision="32-true")
    rows = benchmark_solver(surrogate, kolmogorov, precision="32-true", batch_size=1)["rows"]
    assert {row["resolution"] for row in rows if row["start"]} == {32, 48, 64}


def test_flows_that_are_not_those_of_the_seed_have_no_full_state(kolmogorov, monkeypatch):
    rival = Rival(find_pde("kolmogorov_flow"), kolmogorov, kolmogorov.problem, 1, 1, CPU)
    monkeypatch.setattr(type(kolmogorov), "provenance", {**kolmogorov.provenance, "seed": 5})
    assert rival.state("full state") is None and rival.measure(64, "full state") is None
    assert rival.measure(32, "stored frame") is not None


def test_three_dimensions_count_too(tmp_path):
    preset = Preset(12, 12, 6, 0.05, {"train": 1, "test": 1}, warmup=0.05, parameters={"viscosity": 0.04, "dt": 0.0125})
    generate("isotropic_turbulence", tmp_path, preset=preset)
    dataset = open_dataset(tmp_path, "test", num_context_frames=2, horizon=2)
    rows = benchmark_solver(surrogate_of(dataset), dataset, resolutions=(8, 12), precision="32-true")["rows"]
    assert [row["start"] for row in rows] == [None, None, *["stored frame"] * 2, *["full state"] * 2]
    assert set(rows[2]["relative_l2"]) == {"pressure", "velocity"}
    assert rows[3]["error"] < rows[2]["error"]


def test_a_steady_problem_counts_solutions(tmp_path):
    preset = Preset(17, 33, 1, 1.0, {"train": 2, "test": 2}, batch_size=2)
    generate("darcy_flow", tmp_path, preset=preset)
    dataset = open_dataset(tmp_path, "test")
    rows = benchmark_solver(surrogate_of(dataset), dataset, resolutions=(17, 33), precision="32-true")["rows"]
    assert rows[0]["solutions_per_second"] == pytest.approx(2 / rows[0]["seconds"])
    by_start = {(row["start"], row["resolution"]): row["error"] for row in rows[2:]}
    assert by_start["stored frame", 17] < 0.2
    assert by_start["full state", 33] < 1e-4


def test_the_bill_is_said_in_words_and_read_again(result, tmp_path):
    write_json(tmp_path / "solver.json", result)
    bill = read_solver_benchmark(tmp_path / "solver.json")
    assert bill == SolverBenchmark.of(result)
    speed, paid = bill.sentences()[:2]
    assert speed.startswith(f"surrogate in 32-true: {result['speedup_over_reference']:.3g} times as fast as the solver")
    assert "at most" in speed and "from the full state" in speed
    assert paid.startswith("break-even: ")
    never = replace(bill, break_even_solutions={})
    assert "never, the surrogate is slower" in never.sentences()[1]
    assert "not known" in replace(bill, effort={}).sentences()[1]
    (tmp_path / "solver.json").write_text('{"benchmark": "solver", "rows": [{"method": 3}]}')
    with pytest.raises(UserError, match=r"is not a solver benchmark of this factformer \(rows\.0\.method"):
        read_solver_benchmark(tmp_path / "solver.json")


def test_smoke_is_solved_on_from_a_stored_frame_on_coarser_grids(tmp_path):
    """A frame holds all of the state: the solver goes on from it, exactly on the grid of the data."""
    generate("smoke_buoyancy", tmp_path, preset="tiny", splits=["test"], settings=["num_frames=14"])
    data = open_dataset(tmp_path, "test")
    size = data.problem.grid.shape[0]
    rival = Rival(find_pde("smoke_buoyancy"), data, data.problem, 1, 1, CPU)
    for start in ("stored frame", "full state"):
        whole, half = rival.measure(size, start), rival.measure(size // 2, start)
        assert max(whole.errors.values()) < 1e-5 < 0.01 < min(half.errors.values()) < 1
        assert half.seconds < whole.seconds
        assert rival.measure(size - 1, start) is None
