"""`evaluate` on surrogates whose errors are known in advance."""

import json
import math

import pytest
import torch

from factformer import Field, Grid, Problem, build_surrogate
from factformer._support.documents import finite
from factformer.data.dataset import ArrayDataset
from factformer.data.normalization import Normalizer
from factformer.errors import UserError
from factformer.evaluation import accuracy
from factformer.evaluation.provenance import write_json

SIZES = {"dim": 8, "depth": 1, "heads": 1, "head_dim": 8, "kernel_dim": 8}


TWO_GROUPS = (Field("density"), Field("velocity", 2))


def evaluate(*arguments, **options):
    """The evaluation as it goes to its file."""
    return accuracy.evaluate(*arguments, **options).to_dict()


def make_problem(size: int = 12, fields=TWO_GROUPS, extent: float = 1.0, **options) -> Problem:
    settings = {"frame_dt": 0.5, "num_context_frames": 2, "horizon": 4, **options}
    return Problem("made-up", Grid((size, size), extent, True), fields, **settings)


def travelling_waves(problem: Problem, num_trajectories: int = 3, num_frames: int = 10) -> ArrayDataset:
    """Random fields that move by one point a frame: a roll predicts them exactly."""
    generator = torch.Generator().manual_seed(3)
    shape = (num_trajectories, *problem.grid.shape, problem.num_state_channels)
    start = torch.randn(shape, generator=generator) * torch.arange(1, num_trajectories + 1).view(-1, 1, 1, 1)
    frames = torch.stack([start.roll(step, 1) for step in range(num_frames)], 1)
    normalizer = Normalizer.identity(problem)
    return ArrayDataset(frames, problem, "test", normalizer=normalizer)


def surrogate_that(problem: Problem, predict, marching_steps: int = 4):
    surrogate = build_surrogate(problem, marching_steps=marching_steps, **SIZES)
    surrogate.predict = lambda batch, num_steps, grid: predict(batch.seen, num_steps, grid)
    return surrogate


def exact(frames, num_steps, grid):
    return torch.stack([frames[:, -1].roll(step, 1) for step in range(1, num_steps + 1)], 1)


def persistent(frames, num_steps, grid):
    return frames[:, -1:].expand(-1, num_steps, *frames.shape[2:])


def test_an_exact_surrogate_has_no_error():
    problem = make_problem()
    surrogate = surrogate_that(problem, exact)
    result = evaluate(surrogate, travelling_waves(problem))
    for field in result["fields"].values():
        assert field["relative_l2"] == pytest.approx(0, abs=1e-6)
        assert field["vrmse"] == pytest.approx(0, abs=1e-6)
        assert field["spectrum_error"] == pytest.approx(0, abs=1e-5)
        assert field["correlation_time"] == pytest.approx(4 * 0.5)
        assert field["spectrum"]["prediction"] == pytest.approx(field["spectrum"]["truth"], rel=1e-4)
        assert field["persistence"]["relative_l2"] > 0.5
    assert list(result["fields"]) == ["density", "velocity"]
    assert result["num_windows"] == 3 * 4
    assert result["num_diverged"] == 0
    assert result["parameters"] == surrogate.num_parameters
    assert result["seconds_per_batch"] == pytest.approx(10 * result["seconds_per_sequence"])
    assert result["batch_size"] == 10
    json.dumps(result, allow_nan=False)


def test_a_known_factor_gives_known_numbers():
    problem = make_problem()
    surrogate = surrogate_that(problem, lambda *arguments: 1.1 * exact(*arguments))
    result = evaluate(surrogate, travelling_waves(problem), timing=False)
    for field in result["fields"].values():
        assert field["relative_l2"] == pytest.approx(0.1, rel=1e-4)
        assert field["relative_l2_final"] == pytest.approx(0.1, rel=1e-4)
        assert field["relative_l2_per_frame"] == pytest.approx([0.1] * 4, rel=1e-4)
        assert field["standard_error"] == pytest.approx(0, abs=1e-6)
        assert field["spectrum_error"] == pytest.approx(2 * math.log10(1.1), rel=1e-3)
    assert result["seconds_per_sequence"] is None


def test_persistence_scores_as_the_floor():
    problem = make_problem()
    result = evaluate(surrogate_that(problem, persistent), travelling_waves(problem), timing=False)
    for name, field in result["fields"].items():
        assert field["relative_l2"] == pytest.approx(field["persistence"]["relative_l2"])
        assert field["relative_l2_per_frame"] == pytest.approx(field["persistence"]["relative_l2_per_frame"])
        assert result["persistence"][name] == field["persistence"]["relative_l2"]


def test_batches_do_not_change_the_numbers():
    problem = make_problem()
    torch.manual_seed(0)
    surrogate = build_surrogate(problem, marching_steps=2, **SIZES)
    data = travelling_waves(problem, num_trajectories=5)
    results = [evaluate(surrogate, data, batch_size=size, timing=False)["fields"] for size in (1, 3, 5)]
    for name in results[0]:
        for key in ("relative_l2", "standard_error", "vrmse", "spectrum_error", "correlation_time"):
            assert results[1][name][key] == pytest.approx(results[0][name][key], rel=1e-4)
            assert results[2][name][key] == pytest.approx(results[0][name][key], rel=1e-4)


def test_standard_error_is_over_trajectories():
    problem = make_problem(fields=(Field("density"),))
    data = travelling_waves(problem, num_trajectories=3)
    shift = 0.3  # the same error everywhere, so a trajectory's relative error is that over its own size
    surrogate = surrogate_that(problem, lambda *arguments: exact(*arguments) + shift)
    field = evaluate(surrogate, data, timing=False)["fields"]["density"]
    sizes = data.read([0, 1, 2], slice(0, 1)).square().mean((1, 2, 3, 4)).sqrt()
    errors = shift / sizes
    assert field["relative_l2"] == pytest.approx(float(errors.mean()), rel=1e-4)
    assert field["standard_error"] == pytest.approx(float(errors.std()) / math.sqrt(3), rel=1e-4)


def test_start_frames_spread_over_the_trajectory():
    problem = make_problem()
    surrogate = surrogate_that(problem, exact)
    seen = []
    data = travelling_waves(problem, num_frames=12)
    read = data.read
    data.read = lambda who, frames=slice(None), part="state": (seen.append(frames.start), read(who, frames, part))[1]
    evaluate(surrogate, data, num_starts=3, timing=False)
    assert seen == [0, 3, 6]


def test_more_start_frames_than_there_are_take_each_once_and_no_longer():
    problem = make_problem()
    surrogate, data = surrogate_that(problem, exact), travelling_waves(problem, num_frames=12)
    every = accuracy.start_frames(surrogate, data, 1, 12)
    assert every == list(range(len(every)))
    assert accuracy.start_frames(surrogate, data, 1, 10**30) == every


def test_a_diverged_roll_out_is_counted_and_written_as_null(tmp_path):
    problem = make_problem()

    def predict(frames, num_steps, grid):  # the largest trajectory leaves the finite numbers in the first call
        blown = exact(frames, num_steps, grid)
        return torch.where(blown.flatten(1).std(1).view(-1, 1, 1, 1, 1) > 2.5, blown / 0, blown)

    result = evaluate(surrogate_that(problem, predict, marching_steps=2), travelling_waves(problem), timing=False)
    assert result["num_diverged"] == 4
    write_json(tmp_path / "evaluation.json", result)
    read = json.loads((tmp_path / "evaluation.json").read_text())
    assert read["fields"]["density"]["relative_l2"] is None
    assert read["fields"]["density"]["persistence"]["relative_l2"] > 0
    assert finite({"a": [1.0, float("nan")], "b": float("inf")}) == {"a": [1.0, None], "b": None}


@pytest.mark.parametrize("frame", [0, 9])
def test_a_truth_that_is_not_finite_is_not_blamed_on_the_surrogate(frame):
    problem = make_problem()
    dataset = travelling_waves(problem)
    dataset._parts["state"][2, frame, 3, 3, 0] = float("nan")  # as a foreign file may hold it
    with pytest.raises(UserError, match="the test split holds NaN or infinite values in trajectory 2"):
        evaluate(surrogate_that(problem, exact), dataset, timing=False)


def test_a_steady_problem_is_held_against_the_training_mean():
    problem = make_problem(
        fields=(Field("solution"),),
        static=(Field("coefficient"),),
        num_context_frames=0,
        horizon=1,
        frame_dt=1.0,
    )
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn(4, 1, 12, 12, 1, generator=generator) + 3
    data = ArrayDataset(
        outputs, problem, "test", static=outputs[:, 0] / 2
    )  # a bundle must do without the training split
    surrogate = surrogate_that(problem, lambda frames, steps, grid: frames * 2, marching_steps=1)
    surrogate.normalizer = Normalizer(
        static_mean=[0.0], static_std=[1.0], state_mean=[3.0], state_std=[1.0], increment_std=[1.0]
    )
    result = evaluate(surrogate, data)
    field = result["fields"]["solution"]
    assert field["relative_l2"] == pytest.approx(0, abs=1e-6)
    expected = ((outputs - 3).flatten(1).norm(dim=1) / outputs.flatten(1).norm(dim=1)).mean()
    assert field["persistence"]["relative_l2"] == pytest.approx(float(expected), rel=1e-4)
    assert result["num_windows"] == 4


def test_another_resolution_is_evaluated_on_its_own_grid():
    trained, finer = make_problem(12), make_problem(18)
    surrogate = build_surrogate(trained, marching_steps=4, **SIZES)
    assert evaluate(surrogate, travelling_waves(finer), timing=False)["grid"] == [18, 18]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"fields": (Field("pressure"),)}, "fields density"),
        ({"frame_dt": 0.3}, "frame interval"),
        ({"horizon": 9}, "hold 10 frames"),
        ({"extent": 3.0}, "grid extent"),
    ],
)
def test_data_that_do_not_fit_are_named(change, message):
    horizon = change.pop("horizon", 4)
    surrogate = surrogate_that(make_problem(), exact)
    with pytest.raises(UserError, match=message):
        evaluate(surrogate, travelling_waves(make_problem(**change)), num_frames=horizon, timing=False)


def test_other_boundaries_and_places_of_points_are_named():
    def walled(boundary="reflect", points="nodes"):
        grid = Grid((12, 12), 1.0, (True, False), points)
        return Problem("p", grid, TWO_GROUPS, frame_dt=0.5, num_context_frames=2, horizon=4, boundary=boundary)

    surrogate = build_surrogate(walled(), marching_steps=4, **SIZES)
    wrong = [(walled("zero"), "boundary 'reflect' expected"), (walled(points="cells"), "nodes expected")]
    for problem, message in wrong:
        frames = torch.randn(2, 8, 12, 12, problem.num_state_channels)
        with pytest.raises(UserError, match=message):
            evaluate(surrogate, ArrayDataset(frames, problem, "test"), timing=False)


def test_unknown_precision_and_device_are_named():
    problem = make_problem()
    surrogate = surrogate_that(problem, exact)
    with pytest.raises(UserError, match="'16-true' is float16, whose range attention leaves; use bf16-mixed"):
        evaluate(surrogate, travelling_waves(problem), precision="16-true")
    if not torch.cuda.is_available():
        with pytest.raises(UserError, match="no GPU here"):
            evaluate(surrogate, travelling_waves(problem), device="cuda")


def test_what_errors_are_relative_to_is_a_matter_of_the_data():
    """A surrogate without statistics of its own on fields far below one: predicting nothing is an error of 1."""
    problem = make_problem(fields=(Field("density"),))
    frames = 1e-3 * travelling_waves(problem).read(slice(None))
    statistics = ArrayDataset(frames, problem).normalizer()
    dataset = ArrayDataset(frames, problem, "test", normalizer=statistics)
    nothing = surrogate_that(problem, lambda frames, steps, grid: persistent(frames, steps, grid) * 0)
    assert evaluate(nothing, dataset, timing=False)["fields"]["density"]["relative_l2"] == pytest.approx(1.0)


def test_without_statistics_errors_are_relative_to_the_data_all_the_same():
    """Whatever a surrogate was trained on: they are those of the frames that it is evaluated on."""
    problem = make_problem(fields=(Field("density"),))
    dataset = ArrayDataset(1e-3 * travelling_waves(problem).read(slice(None)), problem, "test")
    nothing = surrogate_that(problem, lambda frames, steps, grid: persistent(frames, steps, grid) * 0)
    for deviation in (1.0, 1e-3, 1e6):
        nothing.normalizer = Normalizer(
            context_mean=[0.0],
            context_std=[deviation],
            state_mean=[0.0],
            state_std=[deviation],
            increment_std=[deviation],
        )
        assert evaluate(nothing, dataset, timing=False)["fields"]["density"]["relative_l2"] == pytest.approx(1.0)


def errors_on(x):
    """Of persistence, on a plane of given coordinates."""
    problem = Problem(
        "made-up", Grid.from_axes([x, x]), (Field("density"),), boundary="zero", num_context_frames=2, horizon=4
    )
    return evaluate(surrogate_that(problem, persistent), travelling_waves(problem), timing=False)["fields"]["density"]


def test_an_uneven_grid_has_no_spectrum():
    field = errors_on(torch.linspace(0, 1, 12) ** 2)
    assert field["spectrum"] is None and field["spectrum_error"] is None
    assert field["relative_l2"] > 0


def test_even_coordinates_have_a_spectrum_wherever_they_start():
    field = errors_on(torch.linspace(-1, 1, 12))
    assert len(field["spectrum"]["truth"]) == 7
    assert field["spectrum_error"] > 0


def test_even_coordinates_are_evaluated_at_another_resolution():
    def problem(x):
        return Problem("line", Grid.from_axes([x]), (Field("u"),), boundary="zero", num_context_frames=2, horizon=4)

    surrogate = surrogate_that(problem(torch.linspace(-1, 1, 16)), persistent)
    fine = problem(torch.linspace(-1, 1, 31))
    dataset = ArrayDataset(torch.randn(2, 8, 31, 1), fine, "test")
    assert surrogate.check(dataset.batch([0]), 1, None).axis(0)[0] == -1
    assert evaluate(surrogate, dataset, timing=False)["grid"] == [31]
    uneven = ArrayDataset(torch.randn(2, 8, 31, 1), problem(2 * torch.linspace(0, 1, 31) ** 2), "test")
    with pytest.raises(UserError, match="even spacing expected along axis 0, uneven found"):
        evaluate(surrogate, uneven, timing=False)


def test_a_parameter_that_the_surrogate_is_told_is_no_other_data():
    problem = Problem("channel", Grid((8, 6), 1.0, True), (Field("u"),), parameters=("reynolds",))
    surrogate = build_surrogate(problem, marching_steps=1, **SIZES)
    surrogate.provenance = {"data_parameters": {"reynolds": "200..2000:log", "drag": 0.1}}
    assert accuracy.other_parameters(surrogate, {"parameters": {"reynolds": 300.0, "drag": 0.1}}) == ""
    found = accuracy.other_parameters(surrogate, {"parameters": {"reynolds": 300.0, "drag": 0.2}})
    assert found == "drag=0.2 instead of 0.1"
