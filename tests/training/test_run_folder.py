"""The run folder: locked while a process works in it, never cleared of what others put there."""

import errno
import json
import os
import shutil
import subprocess
import sys

import pytest
import torch
from killable_runs import start_run
from small_waves import tiny_experiment

from factformer._support import lock
from factformer._support.lock import locked
from factformer.errors import UserError
from factformer.training.loop.train import train
from factformer.training.runfolder import checkpoint
from factformer.training.runfolder.folder import RunFolder, _is_ours
from factformer.training.runfolder.reporting import Reporter


def contents(folder):
    return {path.relative_to(folder): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture(scope="module")
def finished(datasets, tmp_path_factory):
    """A finished run; not to be changed."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    train(tiny_experiment(updates=2), *datasets, folder=folder)
    return folder


@pytest.fixture
def run(finished, tmp_path):
    """A copy of the finished run."""
    return shutil.copytree(finished, tmp_path / "run")


@pytest.mark.parametrize("name", ["bundle", "metrics.jsonl", "checkpoints"])
def test_resume_deletes_nothing_in_a_folder_without_a_checkpoint_of_ours(datasets, tmp_path, finished, name):
    folder = tmp_path / "d"
    folder.mkdir()
    if name == "bundle":
        (folder / name).mkdir()
        (folder / name / "bundle.json").write_bytes((finished / "bundle" / "bundle.json").read_bytes())
    elif name == "checkpoints":
        (folder / name).mkdir()
        (folder / name / "mine.pt").write_text("weights of somebody")
    else:
        (folder / name).write_text("mine\n")
    before = contents(folder)
    with pytest.raises(UserError, match=rf"no checkpoint to resume from, but holds {name}; --resume replaces nothing"):
        train(tiny_experiment(updates=2), *datasets, folder=folder, resume=True)
    assert contents(folder) == before


def test_a_log_whose_checkpoints_were_removed_is_not_emptied_by_resume(datasets, run):
    shutil.rmtree(run / "checkpoints")
    before = contents(run)
    with pytest.raises(UserError, match="no checkpoint to resume from"):
        train(tiny_experiment(updates=2), *datasets, folder=run, resume=True)
    assert contents(run) == before


@pytest.mark.parametrize(
    ("place", "text"),
    [
        ("checkpoints/mine.pt", "weights of somebody"),
        ("checkpoints/update-00000002/notes.txt", "mine"),
        ("bundle/thesis.tex", "mine"),
        ("metrics.jsonl", "loss,epoch\n"),
        ("environment.json", "{}"),
        ("config.yaml", "theirs: true\n"),
    ],
)
def test_overwrite_replaces_only_what_a_run_wrote(datasets, run, place, text):
    (run / place).write_text(text)
    before = contents(run)
    with pytest.raises(UserError, match="is not replaced"):
        train(tiny_experiment(updates=2), *datasets, folder=run, overwrite=True)
    assert contents(run) == before


def test_a_folder_in_use_names_the_process_that_uses_it(datasets, run):
    with locked(run, "factformer train somewhere"):
        before = contents(run)
        for option in ({"resume": True}, {"overwrite": True}, {}):
            with pytest.raises(UserError, match=rf"in use by process {os.getpid()} on .*\(factformer train"):
                train(tiny_experiment(updates=2), *datasets, folder=run, **option)
        assert contents(run) == before
    train(tiny_experiment(updates=2), *datasets, folder=run, resume=True)
    assert not (run / ".lock").exists()


def test_a_second_process_on_the_same_folder_writes_nothing(datasets, tmp_path):
    folder = tmp_path / "run"
    process = start_run(folder, resume=True, updates=10**6)
    try:
        while not (folder / "metrics.jsonl").exists():
            assert process.is_alive()
        with pytest.raises(UserError, match=rf"in use by process {process.pid}"):
            train(tiny_experiment(updates=10**6), *datasets, folder=folder, resume=True)
        with pytest.raises(UserError, match=rf"in use by process {process.pid}"):
            train(tiny_experiment(updates=2), *datasets, folder=folder, overwrite=True)
    finally:
        process.kill()
        process.join()
    assert (folder / ".lock").exists()  # what a killed process leaves is taken over
    train(tiny_experiment(updates=2), *datasets, folder=folder, overwrite=True)
    assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == ["update-00000000", "update-00000002"]
    assert not (folder / ".lock").exists()


def test_without_system_locks_a_lock_is_stale_when_its_process_is_gone_or_another(tmp_path, monkeypatch):
    monkeypatch.setattr(lock, "_lock", lambda descriptor: None)
    path = tmp_path / ".lock"
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    this = lock._this_process("now")
    for owner in ({**this, "pid": gone.pid}, {**this, "process_started": -1}, {}, "damaged"):
        path.write_text(json.dumps(owner))
        with locked(tmp_path):
            assert json.loads(path.read_text())["pid"] == os.getpid()
    for owner in (this, {**this, "host": "elsewhere"}):
        path.write_text(json.dumps(owner))
        with pytest.raises(UserError, match="in use by process"), locked(tmp_path):
            pass


def test_a_run_that_cannot_begin_leaves_no_folder(datasets, tmp_path):
    with pytest.raises(UserError, match="multiple"):
        train(tiny_experiment(accumulate=2, batch_size=3), *datasets, folder=tmp_path / "deep" / "run")
    assert list(tmp_path.iterdir()) == []


def test_a_read_only_folder_is_one_line(datasets, run, monkeypatch):
    def refuse(*_, **__):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    with monkeypatch.context() as patched:
        patched.setattr(lock.os, "open", refuse)
        with pytest.raises(UserError, match=r"cannot write in .*Read-only file system"):
            train(tiny_experiment(updates=2), *datasets, folder=run, resume=True)
    monkeypatch.setattr("factformer.training.runfolder.folder.write_atomically", refuse)
    with pytest.raises(UserError, match=r"cannot write .*Read-only file system"):
        train(tiny_experiment(updates=2), *datasets, folder=run, resume=True)


def test_hidden_leftovers_go_with_the_next_command(datasets, run):
    (run / ".bundle-abcd_123").mkdir()
    (run / ".removed-abc" / "bundle").mkdir(parents=True)
    (run / ".metrics.jsonl.123.tmp").write_text("half")
    (run / "checkpoints" / f"{checkpoint.HIDDEN}abc").mkdir()
    others = {".config.yaml.swp", ".bundle.mine", ".hidden-of-mine"}
    for name in others:
        (run / name).write_text("stays")
    train(tiny_experiment(updates=2), *datasets, folder=run, resume=True)
    assert {path.name for path in run.rglob(".*")} == others


def test_resume_under_another_setting_names_it_even_where_the_configuration_was_edited(datasets, run):
    config = run / "config.yaml"
    config.write_text(config.read_text().replace("learning_rate: 0.003", "learning_rate: 0.01"))
    experiment = RunFolder(run).read_config()
    assert experiment.training.learning_rate == 0.01
    with pytest.raises(UserError, match=r"update-00000002 .*training.learning_rate is 0.003 there and 0.01 here"):
        train(experiment, *datasets, folder=run, resume=True)
    free = tiny_experiment(updates=2).override(["training.keep_last=5", "data.residence=stream"])
    config.write_text(free.to_yaml())
    assert train(free, *datasets, folder=run, resume=True).finished


def test_another_number_of_threads_is_said(datasets, run):
    class Listener(Reporter):
        said: list[str] = []  # noqa: RUF012 - one listener

        def message(self, text):
            self.said.append(text)

    before = torch.get_num_threads()
    torch.set_num_threads(before + 1)
    try:
        train(tiny_experiment(updates=2), *datasets, folder=run, resume=True, reporter=Listener())
    finally:
        torch.set_num_threads(before)
    assert [text for text in Listener.said if f"had {before} threads and has {before + 1} now" in text]


@pytest.mark.parametrize(("text", "ours"), [("", True), ('{"up', True), ('{"update": 2, ', True), ('{"torn', False)])
def test_a_log_whose_first_line_was_torn_by_a_kill_is_still_a_runs_own(tmp_path, text, ours):
    log = tmp_path / "metrics.jsonl"
    log.write_text(text, encoding="utf-8")
    assert _is_ours(log) == ours
