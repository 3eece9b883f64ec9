"""Work is done once: found again, resumed, failed or left for later, and said so in the table."""

import json
import signal
import subprocess
import sys
import time

import pytest

from factformer.errors import UserError
from factformer.studies import reproduce_target, work
from factformer.studies.cells import Cell, Training
from factformer.studies.result import cell_row, find_value
from factformer.studies.scales import data_name, experiment_of
from factformer.studies.work import Done, Stopped, Workshop


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder in which one target is finished."""
    out = tmp_path_factory.mktemp("reproduce")
    reproduce_target("ablation-heads", scale="tiny", out=out, device="cpu")
    return out


def forbid(*arguments, **options):
    raise AssertionError("finished work is done again")


def test_a_finished_target_repeats_nothing(folder, monkeypatch):
    first = json.loads((folder / "ablation-heads-tiny" / "result.json").read_text())
    for name in ("run_experiment", "evaluate_run", "generate", "measure"):
        monkeypatch.setattr(work, name, forbid)
    again = reproduce_target("ablation-heads", scale="tiny", out=folder, device="cpu").to_dict()
    assert again["cells"] == first["cells"]
    assert again["complete"]


def test_the_files_hold_what_the_table_shows(folder):
    result = json.loads((folder / "ablation-heads-tiny" / "result.json").read_text())
    assert {"command", "commit", "hardware", "seed", "wall_seconds"} <= set(result)
    for cell in result["cells"]:
        assert cell["status"].startswith("reduced (16² grid, 2 training samples, 4 updates")
        assert cell["hardware"]
        assert cell["wall_seconds"] > 0
        assert (folder / "runs" / cell["run"] / "bundle" / "model.safetensors").is_file()
    markdown = (folder / "ablation-heads-tiny" / "table.md").read_text()
    assert f"{result['cells'][0]['ours']:.4f}" in markdown
    rows = (folder / "ablation-heads-tiny" / "table.csv").read_text().splitlines()
    assert len(rows) == 1 + len(result["cells"])
    assert repr(result["cells"][0]["ours"]) in rows[1]
    assert (folder / "ablation-heads-tiny" / "figures" / "ablation.png").is_file()


def test_an_interrupted_target_does_only_what_is_missing(tmp_path, monkeypatch):
    real, calls = work.run_experiment, []

    def stop_at_second(experiment, out, **options):
        calls.append(out)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(experiment, out, **options)

    monkeypatch.setattr(work, "run_experiment", stop_at_second)
    first = reproduce_target("ablation-heads", scale="tiny", out=tmp_path, device="cpu")
    assert [row["status"] == "not run" for row in first.rows()] == [False, True]
    second = reproduce_target("ablation-heads", scale="tiny", out=tmp_path, device="cpu")
    assert second.rows()[0] == first.rows()[0]
    assert second.rows()[1]["ours"] is not None
    assert calls[1] == calls[2]
    assert len(calls) == 3


def test_a_run_stopped_midway_goes_on_to_the_same_numbers(folder, tmp_path):
    run = Training("kolmogorov", settings=("model.heads=1",))
    straight = Workshop(folder, "tiny", device="cpu").train(run)
    workshop = Workshop(tmp_path, "tiny", device="cpu")
    workshop.make_data(run, tmp_path / "data" / data_name(run, "tiny"))
    workshop.deadline = time.monotonic()
    experiment = experiment_of(run, "tiny", tmp_path / "data" / data_name(run, "tiny"), minutes=None)
    place = tmp_path / "runs" / straight.folder.rsplit("/", 1)[-1]
    with pytest.raises(Stopped):
        workshop.run_training(experiment, place)
    assert not (place / "bundle").exists()
    resumed = Workshop(tmp_path, "tiny", device="cpu").train(run)
    assert resumed.folder == str(place)
    assert resumed.result["fields"] == straight.result["fields"]


def test_without_time_nothing_is_begun(tmp_path):
    outcome = reproduce_target("seeds", scale="tiny", out=tmp_path, budget_minutes=1e-9, device="cpu")
    assert {row["status"] for row in outcome.rows()} == {"not run"}
    assert not (tmp_path / "runs").exists()
    assert not json.loads((tmp_path / "seeds-tiny" / "result.json").read_text())["complete"]


def test_a_failure_is_a_status_and_the_others_go_on(folder, monkeypatch):
    def fail(*arguments, **options):
        raise UserError("the moon is in the way")

    monkeypatch.setattr(work, "evaluate_run", fail)
    outcome = reproduce_target("ablation-kernel-dim", scale="tiny", out=folder, device="cpu")
    failed, shared = outcome.rows()
    assert (failed["status"], failed["ours"]) == ("failed (the moon is in the way)", None)
    # The other value is what tiny models have anyway: that run is shared with the finished ablation.
    assert shared["status"].startswith("reduced")
    assert shared["ours"] > 0


def test_out_of_memory_and_divergence_are_said(tmp_path, monkeypatch):
    monkeypatch.setattr(work, "measure", lambda case: {"status": "OOM", "model": case.model})
    outcome = reproduce_target("figure-cost-2d", scale="tiny", out=tmp_path, device="cpu")
    assert {row["status"] for row in outcome.rows()} == {"failed (OOM)"}
    assert not (tmp_path / "costs").exists()  # it is tried again the next time
    cell = Cell("row", "error", Training("kolmogorov"), "fields.vorticity.relative_l2", 0.5)
    diverged = cell_row(cell, Done("paper scale", {"fields": {"vorticity": {"relative_l2": None}}}))
    assert diverged["status"] == "failed (the roll-out diverged)"
    good = cell_row(cell, Done("paper scale", {"fields": {"vorticity": {"relative_l2": 0.25}}}))
    assert (good["ours"], good["ratio"], good["status"]) == (0.25, 0.5, "paper scale")


@pytest.mark.slow
def test_a_signal_ends_the_command_and_the_next_one_goes_on(tmp_path):
    """SIGINT while a table is made, then the same command again: each run is trained once."""
    words = [sys.executable, "-m", "factformer.cli", "reproduce", "table1", "--scale", "tiny", "--out", str(tmp_path)]
    words += ["--device", "cpu"]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    said = []
    for line in process.stderr:
        said.append(line)
        if sum("training in" in text for text in said) == 3:
            process.send_signal(signal.SIGINT)
            break
    said += process.stderr.read().splitlines(keepends=True)
    assert process.wait(60) == 0
    assert len(list((tmp_path / "runs").iterdir())) <= 4
    again = subprocess.run(words, capture_output=True, text=True, timeout=300, check=True)
    begun = [line for line in [*said, *again.stderr.splitlines()] if "training in" in line]
    assert "found in" in again.stderr
    assert len(begun) <= 8 + 1  # the one that was stopped is begun and goes on
    assert all((run / "done.json").is_file() for run in (tmp_path / "runs").iterdir())


def test_values_are_found_by_path():
    result = {"kernels": [{"x": 1}, {"x": 2}], "nothing": None, "bad": float("nan")}
    assert find_value(result, "kernels.1.x") == 2
    for path in ("kernels.7.x", "nothing", "bad", "kernels.x", "absent.key"):
        assert find_value(result, path) is None
