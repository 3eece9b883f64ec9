"""The queue of GPU work: every run is a valid experiment, every command exists, and what is there is not done again."""

import json
import shlex
import sys
import time
from pathlib import Path

import pytest

from factformer.studies.scales import experiment_of
from lab.campaign.datasets import DATA
from lab.campaign.entries import Entry
from lab.campaign.run_groups import find_entries
from lab.campaign.spacing_runs import LIKELY, PROBLEMS, SPACING_ROUNDS, chosen, error_at, spacing
from lab.owed import __main__ as owed
from lab.owed.queue import Check, missing, queue

ROOT = Path(__file__).parents[2]


def test_every_run_is_a_valid_experiment_on_known_data():
    found = queue()
    paths = [path for one in found for path in one.paths]
    assert len(set(paths)) == len(paths) > 250
    for one in found:
        if not isinstance(one.work, Entry):
            continue
        experiment_of(one.work.run, "paper", "data", minutes=None)
        assert {one.work.data_name, *one.work.judged_on} <= set(DATA)
        name = f"{one.work.group}/{one.work.path.removesuffix('.json')}"
        assert find_entries([name]) == [one.work]
        assert all(path.isascii() for path in one.paths)


def test_every_check_is_a_module_that_takes_its_words():
    import importlib

    for one in queue():
        if isinstance(one.work, Check):
            line = one.work.line(Path("r"), Path("w"), "paper")
            assert "{" not in line
            words = shlex.split(line)
            module = words[words.index("-m") + 1]
            assert callable(importlib.import_module(module).main) if module != "factformer" else "&&" in words


def test_runs_on_the_same_data_are_made_together_and_only_what_fits():
    found = list(owed.batches(missing(Path("nowhere"))))
    names = [[one.work.data_name for one in batch if isinstance(one.work, Entry)] for batch in found]
    assert all(len(set(batch)) <= 1 for batch in names)
    assert sum(map(len, found)) == len(queue())
    batch = next(batch for batch, own in zip(found, names, strict=True) if len(own) > 5)
    some = owed.fitting(batch, 300.0)
    assert 0 < len(some) < len(batch)
    assert owed.seconds_of(some) <= 300 < owed.seconds_of(batch[: len(some) + 1])
    assert owed.fitting(batch, 10.0) == []
    long = next(batch for batch in found if isinstance(batch[0].work, Entry) and batch[0].work.in_segments)
    assert owed.fitting(long[:1], 300.0) == long[:1]


def test_what_has_a_file_is_not_owed(tmp_path):
    first = queue()[0]
    path = tmp_path / first.paths[0]
    path.parent.mkdir(parents=True)
    path.write_text("{}")
    assert first not in missing(tmp_path)
    assert {one.topic for one in missing(tmp_path, ["paper"])} == {"paper"}


def test_a_command_that_does_not_end_is_ended():
    began = time.monotonic()
    assert owed.do("sleep 60 & sleep 60", 1.0) == 124
    assert time.monotonic() - began < 30
    assert owed.do("exit 3", 10.0) == 3


def test_what_is_new_is_packed_and_what_failed_is_said(tmp_path, monkeypatch, capsys):
    write = f"{sys.executable} -c \"import pathlib; pathlib.Path({str(tmp_path / 'a.json')!r}).write_text('[]')\""
    checks = [Check("house", "good", 1, "a.json", write, write), Check("house", "bad", 1, "b.json", "false", "false")]
    items = [owed.Owed("house", c.title, 1.0, (c.path,), c) for c in checks]
    monkeypatch.setattr(owed, "missing", lambda results, topics: items)
    words = ["next", "--results", tmp_path, "--pack", tmp_path / "out", "--scale", "tiny", "--seconds", "60"]
    monkeypatch.setattr(sys, "argv", ["owed", *map(str, words)])
    assert owed.main() == 1
    assert "not done, or not to its end: bad" in capsys.readouterr().out
    from lab.campaign.segments import read_archive

    assert read_archive(tmp_path / "out" / "results.tar") == {"results/a.json": b"[]"}


def test_what_measures_no_time_runs_several_at_a_time(tmp_path, monkeypatch, capsys):
    write = f"{sys.executable} -c \"import time, pathlib; time.sleep(2); pathlib.Path('{{out}}').write_text('[]')\""
    checks = [Check("house", f"check {n}", 1, f"{n}.json", write, write, beside=n < 4) for n in range(5)]
    items = [owed.Owed("house", c.title, 1.0, (c.path,), c) for c in checks]
    monkeypatch.setattr(owed, "missing", lambda results, topics: items)
    monkeypatch.setattr(owed.shutil, "which", lambda name: None)
    words = ["beside", "--results", tmp_path, "--pack", tmp_path / "out", "--scale", "tiny", "--jobs", "4"]
    monkeypatch.setattr(sys, "argv", ["owed", *map(str, words)])
    began = time.monotonic()
    assert owed.main() == 0, capsys.readouterr().out
    assert time.monotonic() - began < 7, "one after the other they take eight seconds"
    from lab.campaign.segments import read_archive

    found = read_archive(tmp_path / "out" / "results.tar")
    assert sorted(found) == [f"results/{n}.json" for n in range(4)], "the fifth is held against the clock"


def test_only_runs_of_so_many_updates_share_a_gpu():
    for one in queue():
        if isinstance(one.work, Entry):
            given = [text for text in one.work.run.settings if text.startswith("training.updates=")]
            assert one.beside == (bool(given) and not one.work.in_segments), one.title
    assert {one.topic for one in queue() if one.beside} == {"conditions", "benchmarks"}


def test_the_combination_that_wins_is_the_best_at_equal_times(tmp_path):
    name = "Kolmogorov 128"
    assert chosen(name, tmp_path) == LIKELY[name]
    entries = {entry.title: entry for entry in spacing()}
    winner = PROBLEMS[name][2][3]
    for entry in entries.values():
        if not entry.title.startswith(name):
            continue
        stride = entry.longest_stride
        # Errors grow with time; a long stride has no early frames, which must not count against it.
        rate = 0.5 if entry.title.startswith(f"{name}, {winner.title}") else 1.0
        curve = [rate * stride * (frame + 1) for frame in range(16 // stride)]
        field = {"relative_l2_per_frame": curve, "relative_l2": sum(curve) / len(curve)}
        result = {"frame_dt": stride / 16, "stride": stride, "fields": {"vorticity": field}}
        path = tmp_path / entry.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(result))
    assert chosen(name, tmp_path) == winner
    every = {"frame_dt": 1 / 16, "fields": {"v": {"relative_l2_per_frame": [1.0, 2.0, 3.0, 4.0]}}}
    assert error_at(every, 2 / 16) == pytest.approx(3.0)
    assert sum(len(part.ideas) for part in SPACING_ROUNDS) == len(spacing())
