"""More updates on a run, and weights of a bundle to begin with."""

import math
import shutil

import pytest
import torch
from small_waves import TINY_MODEL, tiny_experiment, wave_data, waves

import factformer
from factformer import Field, Grid, Problem
from factformer.data.dataset import ArrayDataset
from factformer.errors import UserError
from factformer.training import train
from factformer.training.experiment.options import fine_tuning
from factformer.training.runfolder.folder import RunFolder
from factformer.training.runfolder.reporting import Reporter

SETTINGS = {f"model.{key}": value for key, value in TINY_MODEL.items() if key != "name"}
EVEN = {"schedule": "constant", "warmup": 0.0, "ema_decay": 0.9, "log_every": 2, "checkpoint_every": 3}
AT_ONCE = ["protocol.curriculum=0", "protocol.pushforward=0"]


class Listener(Reporter):
    def __init__(self):
        self.said: list[str] = []

    def message(self, text):
        self.said.append(text)


def weights(surrogate):
    return {name: tensor for name, tensor in surrogate.state_dict().items() if not name.startswith("normalizer.")}


def same(first, second) -> bool:
    ours, theirs = weights(first), weights(second)
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_a_finished_run_goes_on_to_the_bits_of_a_longer_one(datasets, tmp_path):
    """Where nothing depends on how much of training is over: a constant learning rate, no curriculum."""
    short, long = (tiny_experiment(updates=n, **EVEN).override(AT_ONCE) for n in (5, 9))
    expected = train(long, *datasets, folder=tmp_path / "long")
    assert train(short, *datasets, folder=tmp_path / "run").finished
    listener = Listener()
    went_on = train(long, *datasets, folder=tmp_path / "run", resume=True, reporter=listener)
    assert went_on.update == 9
    assert same(went_on.surrogate, expected.surrogate)
    assert same(factformer.load(tmp_path / "run"), expected.surrogate)
    assert RunFolder(tmp_path / "run").read_config().training.updates == 9  # so that it can be resumed as it is
    (told,) = [text for text in listener.said if "training.updates was 5 and is 9 now" in text]
    assert "the learning rate goes on at 0.003, where the last line of the log has 0.003" in told


def test_a_falling_learning_rate_stretches_over_all_updates_and_that_is_said(datasets, tmp_path):
    listener = Listener()
    train(tiny_experiment(updates=6, log_every=6), *datasets, folder=tmp_path / "run")
    train(tiny_experiment(updates=12, log_every=6), *datasets, folder=tmp_path / "run", resume=True, reporter=listener)
    (told,) = [text for text in listener.said if "training.updates was 6 and is 12 now" in text]
    half = 3e-3 * (1 + math.cos(math.pi * (0.5 - 0.2) / 0.8)) / 2  # one cycle at half of the new length
    assert f"goes on at {half:.3g}" in told


def test_a_run_is_not_shortened_nor_changed_on_the_way(datasets, tmp_path):
    train(tiny_experiment(updates=4), *datasets, folder=tmp_path / "run")
    with pytest.raises(UserError, match=r"training.updates is 4 there and 3 here"):
        train(tiny_experiment(updates=3), *datasets, folder=tmp_path / "run", resume=True)
    with pytest.raises(UserError, match=r"training.learning_rate is 0.003 there and 0.1 here"):
        train(tiny_experiment(updates=8, learning_rate=0.1), *datasets, folder=tmp_path / "run", resume=True)


def test_fit_resumes_for_more_updates_more_than_once(tmp_path):
    """The intervals of log and checkpoints that followed from the first number of updates stay as they are."""
    dataset, held_out = wave_data()
    options = {"valid": held_out, "settings": SETTINGS, "progress": False, "out": tmp_path / "run"}
    factformer.fit(dataset, updates=4, **options)
    for updates in (300, 301):  # as a new run, these would be logged at every third
        factformer.fit(dataset, updates=updates, resume=True, callbacks=[lambda update, _: update % 2 == 0], **options)
        saved = RunFolder(tmp_path / "run").read_config().training
        assert (saved.updates, saved.log_every, saved.checkpoint_every) == (updates, 1, 1)


def test_fine_tuning_begins_with_the_weights_of_a_bundle(tmp_path):
    dataset, _ = wave_data()
    options = {"settings": SETTINGS, "progress": False}
    first = factformer.fit(dataset, updates=3, out=tmp_path / "first", **options)
    begun = []
    factformer.fit(
        dataset,
        init=tmp_path / "first",
        updates=1,
        progress=False,
        settings={"training.learning_rate": 1e-30},
        callbacks=[lambda update, surrogate: begun.append(weights(surrogate))],
    )
    for name, tensor in weights(first).items():
        torch.testing.assert_close(begun[0][name], tensor, rtol=0, atol=1e-6)


def test_what_does_not_fit_is_named_and_the_rest_is_taken(tmp_path):
    """Another grid and another number of fields: the encoder and the decoder differ, the layers between do not."""
    dataset, _ = wave_data()
    factformer.fit(dataset, updates=2, out=tmp_path / "first", settings=SETTINGS, progress=False)
    frames = torch.cat([waves(2, size=10), waves(2, size=10, first=3)], dim=-1)
    problem = Problem("two", Grid((10, 10), 6.28, True), (Field("u"), Field("v")), num_context_frames=3, horizon=4)
    listener = Listener()
    changes = ["data.resolution=null", "problem=two", *fine_tuning(tmp_path / "first")]
    experiment = tiny_experiment(updates=1).override(changes)
    outcome = train(experiment, ArrayDataset(frames, problem), folder=tmp_path / "second", reporter=listener)
    assert outcome.finished
    (count,) = [text for text in listener.said if text.startswith("began with")]
    named = [text for text in listener.said if "begins anew" in text or "has no place here" in text]
    assert any(text.startswith("encoder.") and "begins anew" in text for text in named)
    assert any("decoder." in text for text in named)
    assert not any("backbone." in text for text in named)
    taken, total = (int(word) for word in count.split() if word.isdigit())
    assert 0 < taken == total - sum("begins anew" in text for text in named)


def test_another_model_than_the_bundle_s_is_refused(datasets, tmp_path):
    train(tiny_experiment(updates=1), *datasets, folder=tmp_path / "run")
    experiment = tiny_experiment(updates=1, init=str(tmp_path / "run")).override(["model.name=fno"])
    with pytest.raises(UserError, match=r"holds the model 'factformer' and this run trains 'fno'; set model.name"):
        train(experiment, *datasets, folder=tmp_path / "other")
    assert not (tmp_path / "other" / "config.yaml").exists()


def test_a_resumed_run_needs_its_first_bundle_no_more(datasets, tmp_path):
    train(tiny_experiment(updates=1), *datasets, folder=tmp_path / "first")
    fine = tiny_experiment(updates=2, init=str(tmp_path / "first"))
    train(fine, *datasets, folder=tmp_path / "second")
    shutil.rmtree(tmp_path / "first")
    longer = tiny_experiment(updates=3, init=str(tmp_path / "first"))
    assert train(longer, *datasets, folder=tmp_path / "second", resume=True).update == 3
