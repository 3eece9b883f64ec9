"""What a run tells while it goes on, and where else it can be logged."""

import io
import sys
import types

import pytest
from small_waves import tiny_experiment

from factformer.errors import UserError
from factformer.training.loop.train import train
from factformer.training.runfolder import trackers
from factformer.training.runfolder.reporting import LiveReporter, duration


class Recorder:
    def __init__(self):
        self.lines, self.closed = [], False

    def log(self, values, update):
        self.lines.append((update, values))

    def close(self):
        self.closed = True


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()])
def test_progress_says_how_training_goes(datasets, tmp_path, stream):
    recorder = Recorder()
    reporter = LiveReporter([recorder], stream=stream)
    train(tiny_experiment(updates=14), *datasets, folder=tmp_path / "run", reporter=reporter)
    text = stream.getvalue()
    if not stream.isatty():
        for part in ("update 14/14", "loss 0.", "held-out error", "samples/s", "0:00 left"):
            assert part in text
    else:
        assert "training" in text
    assert [update for update, _ in recorder.lines] == [7, 14]
    assert recorder.lines[-1][1].keys() >= {"loss", "validation", "learning_rate", "samples_per_second"}
    assert recorder.closed


def test_no_speed_is_told_of_the_first_update_which_the_clock_does_not_count(datasets, tmp_path):
    recorder, stream = Recorder(), io.StringIO()
    experiment = tiny_experiment(updates=3).override(["training.log_every=1"])
    train(experiment, *datasets, folder=tmp_path / "run", reporter=LiveReporter([recorder], stream=stream))
    assert [("samples_per_second" in values) for _, values in recorder.lines] == [False, True, True]
    first = next(line for line in stream.getvalue().splitlines() if line.startswith("update 1/3"))
    assert "samples/s" not in first
    assert "left" not in first


def test_a_silent_reporter_still_feeds_the_trackers(datasets, tmp_path):
    recorder, stream = Recorder(), io.StringIO()
    reporter = LiveReporter([recorder], silent=True, stream=stream)
    train(tiny_experiment(updates=7), *datasets, folder=tmp_path / "run", reporter=reporter)
    assert stream.getvalue() == ""
    assert len(recorder.lines) == 1


def test_trackers_are_opened_by_name(tmp_path, monkeypatch):
    calls = []
    run = types.SimpleNamespace(
        log=lambda values, step: calls.append((step, values)), finish=lambda: calls.append("finished")
    )
    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(init=lambda **_: run))
    writer = types.SimpleNamespace(
        add_scalar=lambda name, value, step: calls.append((name, value, step)),
        close=lambda: calls.append("closed"),
    )
    board = types.SimpleNamespace(SummaryWriter=lambda folder: writer)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", board)
    reporter = trackers.open_reporter(tmp_path, loggers=["tensorboard", "wandb"])
    for tracker in reporter.trackers:
        tracker.log({"loss": 0.5}, 3)
        tracker.close()
    assert calls == [("loss", 0.5, 3), "closed", (3, {"loss": 0.5}), "finished"]


@pytest.mark.parametrize(("option", "module"), [("tensorboard", "torch.utils.tensorboard"), ("wandb", "wandb")])
def test_a_tracker_that_is_not_installed_says_how_to_get_it(monkeypatch, tmp_path, option, module):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UserError, match=rf"factformer\[{option}\]"):
        trackers.open_reporter(tmp_path / "run", loggers=[option])
    assert not (tmp_path / "run").exists()


def test_durations_read_like_a_clock():
    assert [duration(s) for s in (0, 61, 3723)] == ["0:00", "1:01", "1:02:03"]


def test_fabric_announces_nothing(datasets, tmp_path, caplog, capfd):
    caplog.set_level("INFO")
    train(tiny_experiment(updates=1, precision="bf16-mixed"), *datasets, folder=tmp_path / "run")
    printed = capfd.readouterr()
    assert "Mixed Precision" not in caplog.text + printed.out + printed.err
