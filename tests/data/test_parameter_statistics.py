"""What a normaliser knows of parameters: their scale, their moments and the range of the training data."""

import logging
from dataclasses import replace

import numpy as np
import pytest
import torch

from factformer import Field, Grid, Problem, build_surrogate, rollout
from factformer.batch import Batch
from factformer.bundle import load, save_bundle
from factformer.data import ArrayDataset
from factformer.data.generate.simulated import simulate_splits
from factformer.data.layout import Contents
from factformer.data.normalization import Normalizer
from factformer.data.statistics import parameter_statistics
from factformer.data.store import open_dataset
from factformer.data.writer import SplitWriter
from factformer.errors import UserError
from factformer.evaluation.accuracy import evaluate
from factformer.pdes import find_pde
from factformer.prediction import predict_file

PROBLEM = Problem("channel", Grid(8, 1.0, True), (Field("u"),), parameters=("reynolds", "slope", "gravity"), horizon=2)
VALUES = np.array([[100.0, -1.0, 9.81], [400.0, 0.5, 9.81], [2000.0, 1.0, 9.81]], np.float32)
SIZES = {"dim": 8, "depth": 1, "heads": 2, "head_dim": 4, "kernel_dim": 4, "marching_steps": 1}


def frames(seed: int = 0) -> torch.Tensor:
    return torch.randn(3, 6, 8, 1, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def dataset() -> ArrayDataset:
    return ArrayDataset(frames(), PROBLEM, parameters=VALUES)


@pytest.fixture
def surrogate(dataset):
    return build_surrogate(PROBLEM, normalizer=dataset.normalizer(), **SIZES).eval()


def test_a_positive_parameter_over_more_than_a_decade_is_taken_on_a_log_scale():
    found = parameter_statistics(VALUES)
    assert found["parameters_log"] == [1.0, 0.0, 0.0]
    assert found["parameters_mean"] == pytest.approx([np.log(VALUES[:, 0]).mean(), VALUES[:, 1].mean(), 9.81])
    assert found["parameters_std"] == pytest.approx([np.log(VALUES[:, 0]).std(), VALUES[:, 1].std(), 1.0])
    assert found["parameters_min"] == pytest.approx([100.0, -1.0, 9.81])
    assert found["parameters_max"] == pytest.approx([2000.0, 1.0, 9.81])
    assert parameter_statistics(np.array([[1.0], [10.0]]))["parameters_log"] == [0.0], "one decade is not more"
    assert parameter_statistics(np.array([[-1.0], [100.0]]))["parameters_log"] == [0.0]


def test_normalised_parameters_have_mean_zero_and_deviation_one(dataset):
    found = dataset.normalizer().normalize_parameters(torch.as_tensor(VALUES))
    assert found.mean(0).tolist() == pytest.approx([0, 0, 0], abs=1e-5)
    assert found.std(0, unbiased=False).tolist() == pytest.approx([1, 1, 0], abs=1e-5)
    assert (found[1, 0] - found[0, 0]) == pytest.approx(np.log(4) / np.log(VALUES[:, 0]).std(), rel=1e-5)


def test_a_file_gives_the_same_statistics_as_arrays(dataset, tmp_path):
    writer = SplitWriter(tmp_path / "train.hdf5", Contents(PROBLEM, "train", 3, 6))
    writer.prepare()
    for batch in writer.pending(3):
        with writer.batch(batch) as output:
            output.write_parameters(VALUES)
            for frame in frames().unbind(1):
                output.write(frame.numpy())
    writer.finish()
    stored = open_dataset(tmp_path).normalizer().to_dict()
    for name, values in dataset.normalizer().to_dict().items():
        assert stored[name] == pytest.approx(values, rel=1e-6), name


def test_bundles_keep_scale_and_range_and_check_them_on_arrival(surrogate, tmp_path):
    loaded = load(save_bundle(surrogate, tmp_path / "bundle"))
    assert loaded.normalizer.to_dict() == surrogate.normalizer.to_dict()
    for name, values, words in (
        ("parameters_log", [0.5, 0.0, 0.0], "parameters_log of 'reynolds' is 0.5, neither 0 nor 1"),
        ("parameters_min", [0.0, -1.0, 9.0], "the logarithm of 'reynolds', which begins at 0"),
        ("parameters_max", [50.0, 1.0, 9.9], "range of 'reynolds' begins at 100, above its end"),
        ("parameters_max", [float("inf"), 1.0, 9.9], "parameters_max is not finite"),
        ("parameters_std", [0.0, 1.0, 1.0], "parameters_std is zero"),
        ("parameters_log", [1.0], "parameters_log is not of the 3 parameters"),
    ):
        damaged = Normalizer(**{**surrogate.normalizer.to_dict(), name: values})
        with pytest.raises(UserError, match=words):
            damaged.check(PROBLEM)


def batch(reynolds: float, slope: float = 0.0) -> Batch:
    return Batch(frames()[:1, :1], parameters=torch.tensor([[reynolds, slope, 9.81]]))


def test_a_parameter_outside_the_trained_range_is_one_warning(surrogate, caplog):
    with caplog.at_level(logging.WARNING, "factformer"), torch.no_grad():
        list(rollout(surrogate, batch(100.0), 2))
        list(rollout(surrogate, batch(2000.0), 2))
        assert not caplog.records
        list(rollout(surrogate, batch(2500.0), 2))
        list(rollout(surrogate, frames()[:1, :1], 1, parameters={"reynolds": 200, "slope": 1.5, "gravity": 9.81}))
    assert [record.getMessage() for record in caplog.records] == [
        "channel: reynolds=2500 outside 100 to 2000, the range that the surrogate was trained on",
        "channel: slope=1.5 outside -1 to 1, the range that the surrogate was trained on",
    ]


def test_an_evaluation_warns_once_of_all_its_trajectories(surrogate, dataset, caplog):
    values = VALUES.copy()
    values[:2, 0] = 50.0, 90.0
    other = ArrayDataset(frames(1), PROBLEM, "test", parameters=values, normalizer=dataset.normalizer())
    with caplog.at_level(logging.WARNING, "factformer"):
        evaluate(surrogate, other, batch_size=1, num_starts=2, timing=False, device="cpu")
    (record,) = caplog.records
    assert record.getMessage().startswith("channel: reynolds=50 to 90 outside 100 to 2000")


def test_a_prediction_from_a_file_warns(surrogate, tmp_path, caplog):
    writer = SplitWriter(tmp_path / "train.hdf5", Contents(PROBLEM, "train", 1, 6))
    writer.prepare()
    for rows in writer.pending(1):
        with writer.batch(rows) as output:
            output.write_parameters(np.array([[5000.0, 0.0, 9.81]], np.float32))
            for frame in frames()[:1].unbind(1):
                output.write(frame.numpy())
    writer.finish()
    bundle = save_bundle(surrogate, tmp_path / "bundle")
    with caplog.at_level(logging.WARNING, "factformer"):
        predict_file(bundle, tmp_path / "train.hdf5", 2, tmp_path / "out.npy", device="cpu")
    (record,) = caplog.records
    assert "reynolds=5000 outside 100 to 2000" in record.getMessage()


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        (
            {"reynolds": -5, "slope": 0, "gravity": 9.81},
            "'reynolds' must be positive, got -5: .* on 100 to 2000",
        ),
        ({"reynolds": 500.0, "gravity": 9.81}, "must be given for reynolds, slope, gravity; got reynolds, gravity"),
        ({"renolds": 500.0, "slope": 0.0, "gravity": 9.81}, "must be given for reynolds, slope, gravity; got renolds"),
        ({"reynolds": np.ones(4), "slope": 0.0, "gravity": 9.81}, "'reynolds' must hold one number per sample, 1"),
        ({"reynolds": float("nan"), "slope": 0.0, "gravity": 9.81}, "NaN or infinite"),
        (None, "needs parameters reynolds, slope, gravity; give parameters="),
    ],
)
def test_parameters_that_do_not_fit_are_named(surrogate, parameters, words):
    with pytest.raises(UserError, match=words):
        next(rollout(surrogate, frames()[:1, :1], 1, parameters=parameters))


def test_data_solved_into_memory_have_the_same_statistics_of_parameters():
    preset = replace(find_pde("burgers").presets["tiny"], parameters={"viscosity": "0.01..0.5:log"})
    dataset = simulate_splits("burgers", preset, {"train": 3})[preset.resolution]["train"]
    expected = parameter_statistics(dataset.read(slice(None), part="parameters").numpy())
    for name, values in expected.items():
        assert getattr(dataset.normalizer(), name).tolist() == pytest.approx(values), name
