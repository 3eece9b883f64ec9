"""The runner of studies: time, signals and failures become endings, and one run never costs the others."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from factformer.errors import UserError
from factformer.studies import runner
from factformer.studies.runner import Ended, OutOfTime, Runner, Stopped


def trained(reason="", surrogate=None):
    """Stands in for a training that ended so, and keeps what it was called with."""

    def train(*data, **options):
        train.options = options
        return SimpleNamespace(update=3, reason=reason, surrogate=surrogate)

    return train


def run(one, folder):
    return one.train(None, None, None, folder, command="", reporter=None)


def raising(error):
    def work():
        raise error

    return work


def test_what_work_returns_is_how_it_ended():
    ended = Ended("done", "paper scale", {"x": 1})
    assert Runner(device="cpu").attempt(lambda: ended) is ended
    assert ended.status == "paper scale"


def test_a_failure_is_one_line_and_the_next_piece_of_work_is_done():
    said = []
    one = Runner(device="cpu", say=said.append)
    failed = one.attempt(raising(UserError("the file is empty\nmore of it")), "a run")
    assert (failed.word, failed.status, failed.label) == ("failed", "failed (the file is empty)", "a run")
    assert said == ["failed: the file is empty"]
    assert one.attempt(lambda: Ended("done")).word == "done"


def test_our_own_bugs_are_not_a_status_unless_the_caller_says_so():
    with pytest.raises(KeyError):
        Runner(device="cpu").attempt(raising(KeyError("bug")))
    said = []
    assert (
        Runner(device="cpu", say=said.append, failures=(Exception,)).attempt(raising(KeyError("bug"))).word == "failed"
    )
    assert "Traceback" in said[0]


def test_nothing_is_begun_that_needs_more_than_the_time_left():
    one = Runner(device="cpu", seconds=100)
    one.check_time(50)
    with pytest.raises(OutOfTime, match="200 s needed, 100 s left"):
        one.check_time(200)
    ended = one.attempt(raising(OutOfTime("late")))
    assert (ended.word, ended.status) == ("no time", "not run")
    Runner(device="cpu").check_time(1e9)


def test_an_interruption_ends_the_work_and_all_that_would_follow():
    one = Runner(device="cpu")
    assert one.attempt(raising(KeyboardInterrupt())).word == "stopped"
    with pytest.raises(OutOfTime, match="interrupted"):
        one.check_time()


@pytest.mark.parametrize(("reason", "stopped"), [("received SIGTERM", "received SIGTERM"), ("2 minutes are over", "")])
def test_a_run_before_its_end_is_stopped_and_a_signal_stops_the_rest(tmp_path, monkeypatch, reason, stopped):
    monkeypatch.setattr(runner, "train", trained(reason))
    one = Runner(device="cpu")
    with pytest.raises(Stopped, match="after update 3"):
        run(one, tmp_path)
    assert one.stopped == stopped


def test_a_run_is_resumed_where_there_is_one_and_leaves_the_reserve(tmp_path, monkeypatch):
    train = trained(surrogate="the surrogate")
    monkeypatch.setattr(runner, "train", train)
    one = Runner(device="cpu", seconds=120)
    assert run(one, tmp_path / "new") == "the surrogate"
    assert not train.options["resume"]
    assert train.options["max_minutes"] == pytest.approx(2.0, abs=0.1)
    Path(tmp_path / "config.yaml").touch()
    one.train(None, None, None, tmp_path, command="", reporter=None, reserve=60.0)
    assert train.options["resume"]
    assert train.options["max_minutes"] == pytest.approx(1.0, abs=0.1)
