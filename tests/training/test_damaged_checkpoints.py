"""A checkpoint whose checksums agree but whose contents are not those of the run is refused in one line."""

import dataclasses
import shutil

import pytest
import torch
from small_waves import tiny_experiment

from factformer.errors import UserError
from factformer.training.loop.train import train
from factformer.training.runfolder import checkpoint

WEIGHT = "weights.decoder.project.weight"
MOMENT = "optimizer.decoder.project.weight/exp_avg"


@pytest.fixture(scope="module")
def finished(datasets, tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished") / "run"
    train(tiny_experiment(updates=2), *datasets, folder=folder)
    return folder


def resume_from(datasets, finished, folder, change):
    """Resume a copy of the run whose last checkpoint was changed and written anew, checksums and all."""
    shutil.copytree(finished, folder)
    last = checkpoint.latest(folder / "checkpoints")
    snapshot = change(checkpoint.load(last))
    shutil.rmtree(last)
    checkpoint.save(folder / "checkpoints", snapshot).rename(last)
    return train(tiny_experiment(updates=2), *datasets, folder=folder, resume=True)


def with_tensor(name, change):
    def changed(snapshot):
        tensors = dict(snapshot.tensors)
        value = change(tensors.pop(name, torch.zeros(2)))
        return dataclasses.replace(snapshot, tensors=tensors if value is None else {**tensors, name: value})

    return changed


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (WEIGHT, lambda t: None, "project.weight is missing"),
        (WEIGHT, lambda t: t[..., :-1], "has shape"),
        (WEIGHT, lambda t: t.double(), "is of torch.float64, expected torch.float32"),
        (WEIGHT, lambda t: t * float("nan"), "holds NaN or infinite values"),
        ("weights.extra", lambda t: t, "the run has no tensor 'weights.extra'"),
        ("average.decoder.project.weight", lambda t: None, "is missing"),
        (MOMENT, lambda t: None, "exp_avg is missing"),
        (MOMENT, lambda t: t.mT.contiguous()[:1], "has shape"),
        (MOMENT, lambda t: t + float("inf"), "holds NaN or infinite values"),
        ("tally", lambda t: t[:-1], "has shape"),
        ("tally", lambda t: None, "tally is missing"),
        ("random.torch", lambda t: None, "random.torch is missing"),
        ("random.torch", lambda t: t[:0], "has shape"),
        ("random.torch", lambda t: torch.full_like(t, 255), "random generator is damaged"),
        ("random.python", lambda t: t * 0 - 1, "random generator is damaged"),
        ("random.numpy", lambda t: t.float(), "is of torch.float32"),
    ],
)
def test_tensors_that_are_not_those_of_the_run(datasets, finished, tmp_path, name, change, message):
    with pytest.raises(UserError, match=r"checkpoint .* is corrupted: .*" + message):
        resume_from(datasets, finished, tmp_path / "run", with_tensor(name, change))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"attempt_began": -1}, "attempt_began"),
        ({"tally_count": "3"}, "tally_count"),
        ({"seconds": float("nan")}, "seconds"),
        ({"best": "../../elsewhere"}, "best"),
        ({"last": []}, "last"),
        ({"problem": {}}, "description"),
        ({"experiment": {"problem": "waves", "model": {"name": "factformer"}, "training": 3}}, "training"),
    ],
)
def test_counters_that_are_none(datasets, finished, tmp_path, values, message):
    with pytest.raises(UserError, match=message):
        resume_from(datasets, finished, tmp_path / "run", lambda s: dataclasses.replace(s, state={**s.state, **values}))


def test_a_checkpoint_under_the_name_of_another_is_refused(datasets, finished, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    checkpoint.latest(folder / "checkpoints").rename(folder / "checkpoints" / "update-00000009")
    with pytest.raises(UserError, match="it says that it is of update 2"):
        train(tiny_experiment(updates=2), *datasets, folder=folder, resume=True)


def test_a_tensor_that_the_description_does_not_name_is_refused(finished, tmp_path, monkeypatch):
    snapshot = checkpoint.load(checkpoint.latest(finished / "checkpoints"))
    described = checkpoint._describe(snapshot.tensors)
    described.pop(MOMENT)
    with monkeypatch.context() as patched:
        patched.setattr(checkpoint, "_describe", lambda tensors: described)
        path = checkpoint.save(tmp_path, snapshot)
    with pytest.raises(UserError, match=r"holds other tensors than checkpoint.json says"):
        checkpoint.load(path)
