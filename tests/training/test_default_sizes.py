"""The sizes that `fit` takes where nothing is said, by the number of axes."""

import pytest
import torch

from factformer import Field, Grid, Problem
from factformer.data.dataset import ArrayDataset
from factformer.models.factformer_plus import ALONG_ONE_AXIS, Config
from factformer.training.experiment.defaults import default_experiment


def dataset(shape: tuple[int, ...], periodic: bool = True) -> ArrayDataset:
    boundary = "periodic" if periodic else "reflect"
    problem = Problem("waves", Grid(shape, 1.0, periodic), (Field("u"),), num_context_frames=1, boundary=boundary)
    return ArrayDataset(torch.randn(2, 6, *shape, 1), problem)


def test_one_periodic_axis_has_sizes_of_its_own() -> None:
    model = default_experiment(dataset((16,)), "factformer_plus", 10).model
    assert {key: getattr(model, key) for key in ALONG_ONE_AXIS} == ALONG_ONE_AXIS


@pytest.mark.parametrize("data", [dataset((8, 8)), dataset((6, 6, 6)), dataset((16,), periodic=False)])
def test_other_grids_keep_the_models_own(data: ArrayDataset) -> None:
    model = default_experiment(data, "factformer_plus", 10).model
    assert {key: getattr(model, key) for key in ALONG_ONE_AXIS} == {
        key: getattr(Config(), key) for key in ALONG_ONE_AXIS
    }


def test_what_the_user_says_wins() -> None:
    given = default_experiment(dataset((16,)), Config(heads=2), 10, ["model.dim=32"]).model
    assert (given.heads, given.dim, given.kernel_dim) == (2, 32, ALONG_ONE_AXIS["kernel_dim"])


def test_other_models_keep_theirs() -> None:
    model = default_experiment(dataset((16,)), "ffno", 10).model
    assert model.model_dump(exclude={"residual"}) == type(model)().model_dump(exclude={"residual"})
