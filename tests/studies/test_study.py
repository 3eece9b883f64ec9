"""A user's study: what it is, one table over seeds, killed and resumed, side by side and through submitit."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import factformer
from commands import run
from factformer import catalog
from factformer._support.lock import locked
from factformer._support.run_names import CHECKPOINTS
from factformer.cli import main
from factformer.errors import InUse, UserError
from factformer.studies.combinations import Study
from factformer.studies.launchers import run_on_cluster
from factformer.studies.running import STUDY_FILE, read_study, run_study, variants

TINY = {"recipes": ["kolmogorov"], "models": ["factformer", "fno"], "seeds": 2, "scale": "tiny"}
COSTS = ("seconds_per_sequence", "peak_memory_mb", "training_seconds")


def errors_of(rows):
    """What does not depend on the clock."""
    return [{key: value for key, value in row.items() if key not in COSTS} for row in rows]


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    folder = tmp_path_factory.mktemp("study")
    return run_study(Study.parse(TINY), folder, device="cpu")


def test_a_study_gives_mean_and_spread_over_seeds(done):
    runs = done.run_rows
    assert [(row["model"], row["seed"]) for row in runs] == [
        ("factformer", 0), ("factformer", 1), ("fno", 0), ("fno", 1),
    ]  # fmt: skip
    for index, row in enumerate(done):
        a, b = (run["vorticity.relative_l2"] for run in runs[2 * index : 2 * index + 2])
        assert a != b
        assert row["vorticity.relative_l2"] == pytest.approx((a + b) / 2)
        assert row["vorticity.relative_l2.deviation"] == pytest.approx(abs(a - b) / 2**0.5)
        assert row["seeds"] == 2 and row["status"] == "done" and row["updates"] == 4
    text = done.table().to_markdown()
    assert f"{done[0]['vorticity.relative_l2']:.4f} ± {done[0]['vorticity.relative_l2.deviation']:.4f}" in text


def test_a_study_is_read_by_pandas_as_a_table(done):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(done)
    assert list(frame["model"]) == ["factformer", "fno"] and frame["vorticity.relative_l2"].notna().all()


def test_the_files_of_a_study_hold_what_the_table_says(done):
    assert {path.name for path in done.folder.iterdir()} == {
        "data", "runs", "report", "study.yaml", "table.md", "table.csv", "table.json", "runs.csv",
    }  # fmt: skip
    kept = json.loads((done.folder / "table.json").read_text(encoding="utf-8"))
    assert kept["complete"] and kept["rows"] == done.rows and len(kept["runs"]) == 4
    assert "vorticity.relative_l2.deviation" in (done.folder / "table.csv").read_text(encoding="utf-8").split("\n")[0]
    page = (done.folder / "report" / "report.html").read_text(encoding="utf-8")
    data = json.loads(page.split('id="data">', 1)[1].split("</script>", 1)[0])
    line = data["trend"]["vorticity"][0]
    assert all(low <= y <= high for low, y, high in zip(line["low"], line["y"], line["high"], strict=True))
    assert "against the time to predict" in page


def test_finished_runs_are_found_and_more_seeds_are_added(done):
    said = []
    more = run_study(
        Study.parse({**TINY, "seeds": 3, "models": ["fno"]}), done.folder, device="cpu", report=said.append
    )
    assert sum(": found in" in line for line in said) == 2 and sum(": training in" in line for line in said) == 1
    assert more[0]["seeds"] == 3
    again = run_study(Study.parse(TINY), done.folder, device="cpu")
    assert again.rows == done.rows


COMMAND = [sys.executable, "-m", "factformer", "study", "kolmogorov", "--models", "fno", "--seeds", "2"]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_study_killed_in_a_training_resumes_to_the_same_table(done, tmp_path, number):
    words = [*COMMAND, "--scale", "tiny", "--device", "cpu", "--out", str(tmp_path / "out"), "--json"]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:  # the second run has begun, the first is done
        if "training.seed=1: training in" in line:
            break
    process.send_signal(number)
    process.communicate(timeout=120)
    assert process.returncode == (3 if number == signal.SIGTERM else -signal.SIGKILL) or finished(tmp_path / "out")
    ended = subprocess.run(words, capture_output=True, text=True, timeout=300, check=True)
    assert errors_of(json.loads(ended.stdout)["rows"]) == errors_of(done.rows[1:])


def finished(folder: Path) -> bool:
    """The signal came too late: the study was done."""
    return (folder / "table.json").exists()


def test_runs_side_by_side_give_the_same_errors(done, tmp_path):
    beside = run_study(Study.parse({**TINY, "models": ["fno"]}), tmp_path, device="cpu", jobs=2)
    assert errors_of(beside.rows) == errors_of(done.rows[1:])


def test_a_run_whose_process_is_killed_fails_alone(tmp_path, monkeypatch):
    plugin = tmp_path / "deadly.py"
    plugin.write_text(DEADLY, encoding="utf-8")
    study = Study.parse({**TINY, "models": ["fno", "deadly"], "seeds": 1, "plugins": [str(plugin)]})
    summary = run_study(study, tmp_path / "out", device="cpu", jobs=2)
    assert summary[0]["status"] == "done"
    assert summary[1]["status"] == "failed (its process ended with signal 9)"
    assert "deadly" not in catalog.names("models")


@pytest.mark.skipif(os.name != "posix", reason="elsewhere a worker does not watch the study")
def test_runs_side_by_side_end_with_a_study_that_is_killed_and_the_next_one_resumes_them(done, tmp_path):
    folder = tmp_path / "out"
    words = [*COMMAND, "--scale", "tiny", "--updates", "200", "--device", "cpu", "--jobs", "2", "--out", str(folder)]
    folder.mkdir()
    (folder / "data").symlink_to(done.folder / "data")
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    soon = time.monotonic() + 240
    while len(begun := {path.parents[1] for path in folder.glob(f"runs/*/{CHECKPOINTS}/*")}) < 2:
        assert process.poll() is None and time.monotonic() < soon
        time.sleep(0.02)
    process.kill()
    process.wait()
    while any(is_in_use(one) for one in begun) and time.monotonic() < soon:
        time.sleep(0.02)
    assert not list(folder.glob("runs/*/done.json")), "the runs came to their end after their study was killed"
    ended = subprocess.run([*words, "--json"], capture_output=True, text=True, timeout=300, check=True)
    (row,) = json.loads(ended.stdout)["rows"]
    assert (row["seeds"], row["updates"], row["status"]) == (2, 200, "done")


def is_in_use(folder: Path) -> bool:
    """Whether a process holds the run in that folder."""
    try:
        with locked(folder):
            return False
    except InUse:
        return True


def test_a_run_that_another_process_has_is_left_alone_and_the_study_can_be_resumed(done, tmp_path, capsys):
    (tmp_path / "data").symlink_to(done.folder / "data")
    words = ["study", "kolmogorov", "--models", "fno", "--scale", "tiny", "--device", "cpu", "--out", tmp_path]
    mine = done.groups[1].ended[0].folder
    with locked(tmp_path / "runs" / Path(mine).name, "another study"):
        code, table, said = run(capsys, *words)
    assert code == 3
    assert "left alone: " in said and f"is in use by process {os.getpid()}" in said
    assert "not run" in table and "failed" not in said + table
    code, table, _ = run(capsys, *words)
    assert code == 0 and "done" in table


DEADLY = """
import os, signal
from typing import Literal
from factformer.models import Backbone, ModelConfig

class Config(ModelConfig):
    name: Literal["deadly"] = "deadly"

class Deadly(Backbone):
    config_class = Config
    def __init__(self, config, problem):
        super().__init__(config, problem)
    def forward(self, z, grid):
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_study_of_which_a_run_diverged_writes_its_table_and_exits_with_1(done, tmp_path, capsys):
    (tmp_path / "data").symlink_to(done.folder / "data")
    file = tmp_path / "mine.yaml"
    file.write_text(
        "recipes: [kolmogorov]\nmodels: [fno]\nscale: tiny\nsettings: {good: [], bad: [training.learning_rate=1e30]}\n",
        encoding="utf-8",
    )
    code, printed, _ = run(capsys, "study", file, "--device", "cpu", "--out", tmp_path, "--json")
    assert code == 1
    good, bad = json.loads(printed)["rows"]
    assert good["status"] == "done" and bad["status"].startswith("failed (the loss went to")
    assert json.loads((tmp_path / "table.json").read_text(encoding="utf-8"))["rows"] == [good, bad]
    assert "| bad |" in (tmp_path / "table.md").read_text(encoding="utf-8")
    assert (tmp_path / "report" / "report.html").is_file()


def test_submitit_runs_the_same_study(done, tmp_path):
    pytest.importorskip("submitit")
    (tmp_path / "data").symlink_to(done.folder / "data")
    (tmp_path / STUDY_FILE).write_text(Study.parse({**TINY, "models": ["fno"]}).to_yaml(), encoding="utf-8")
    ended = run_on_cluster(tmp_path / STUDY_FILE, range(2), tmp_path / "jobs", cluster="local", jobs=2)
    assert [one.word for one in ended] == ["done", "done"]
    found = [one.result["fields"]["vorticity"]["relative_l2"] for one in ended]
    assert found == [row["vorticity.relative_l2"] for row in done.run_rows[2:]]


def test_strides_are_compared_at_equal_times(tmp_path, done):
    (tmp_path / "data").symlink_to(done.folder / "data")
    short = ["protocol.marching_steps=2", "data.num_context_frames=2"]
    strides = {f"stride {n}": [f"protocol.stride={n}", *short] for n in (1, 2)}
    study = Study.parse({**TINY, "models": ["fno"], "settings": strides})
    summary = run_study(study, tmp_path, device="cpu")
    kept = [
        [json.loads((Path(one.folder) / "evaluation.json").read_text())["fields"]["vorticity"] for one in group.ended]
        for group in summary.groups
    ]
    # Four frames each: of the first those at the times of the second's first two are left.
    for row, seeds, frames in zip(summary, kept, (slice(1, 4, 2), slice(0, 2)), strict=True):
        errors = [seed["relative_l2_per_frame"][frames] for seed in seeds]
        assert all(len(one) == 2 for one in errors)
        assert row["vorticity.relative_l2"] == pytest.approx(sum(map(sum, errors)) / 4)
        assert row["vorticity.relative_l2_final"] == pytest.approx(sum(one[-1] for one in errors) / 2)
        assert row["status"] == "done"
    assert summary[0]["seconds_per_sequence"] and summary[1]["seconds_per_sequence"] is None
    assert json.loads((tmp_path / "table.json").read_text())["times"] == {"kolmogorov": {"interval": 0.125, "count": 2}}
    assert "2 times that all of them predict" in (tmp_path / "table.md").read_text()
    page = (tmp_path / "report" / "report.html").read_text(encoding="utf-8")
    data = json.loads(page.split('id="data">', 1)[1].split("</script>", 1)[0])
    assert data["player"]["frames"] == 2 and data["timing"]["dt"] == 0.125
    first, second = data["trend"]["vorticity"][:2]
    assert first["x"] == pytest.approx([n / 16 for n in (1, 2, 3, 4)]) and len(first["low"]) == 4
    assert second["x"] == pytest.approx([n / 8 for n in (1, 2, 3, 4)])


def test_a_study_for_slurm_says_in_one_line_that_there_is_none_before_any_work(tmp_path, capsys, monkeypatch):
    pytest.importorskip("submitit")
    monkeypatch.setenv("PATH", str(tmp_path))
    out = tmp_path / "out"
    code, _, said = run(capsys, "study", "kolmogorov", "--scale", "tiny", "--launcher", "slurm", "--out", out)
    assert code == 2 and not out.exists()
    assert said.count("\n") == 1 and "no srun here" in said and "--launcher local" in said


def test_a_study_in_use_is_locked(done):
    with locked(done.folder, "another"), pytest.raises(UserError, match="is in use by process"):
        run_study(Study.parse(TINY), done.folder)


def test_variants_are_made_of_lists_of_values():
    assert variants({"": []}, ["model.dim=8,16", "training.batch_size=2"]) == {
        "model.dim=8": ["model.dim=8", "training.batch_size=2"],
        "model.dim=16": ["model.dim=16", "training.batch_size=2"],
    }
    assert variants({"wide": ["model.dim=32"]}, ["model.dilations=[1, 2]"]) == {
        "wide": ["model.dim=32", "model.dilations=[1, 2]"]
    }


def test_the_command_line_wins_over_the_file(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("recipes: [darcy]\nmodels: [fno]\nseeds: [3, 5]\nupdates: 7\n", encoding="utf-8")
    study = read_study(str(file), {"models": ["ffno"], "budget_minutes": 2.0, "updates": None})
    assert (study.recipes, study.models, study.seed_numbers) == (("darcy",), ("ffno",), (3, 5))
    assert study.budget_minutes == 2.0 and study.updates is None


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"recipes": []}, "recipes"),
        ({"recipes": ["kolmogorow"]}, "did you mean 'kolmogorov'"),
        ({"models": ["fmo"]}, "did you mean 'fno'"),
        ({"models": ["fno", "fno"]}, "twice"),
        ({"seeds": 0}, "seeds"),
        ({"budget_minutes": 1, "updates": 5}, "equal minutes or at equal updates"),
        ({"settings": {"wide": ["model.dimm=3"]}}, "kolmogorov, factformer, latent_marching, wide: "),
        ({"scale": "huge"}, "scale"),
        ({"nodels": ["fno"]}, "nodels"),
    ],
)
def test_a_mistake_in_a_study_is_named_before_anything_begins(tmp_path, changes, said):
    with pytest.raises(UserError, match=said):
        run_study(Study.parse({**TINY, **changes}), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_study_from_python_and_from_the_command_line(done, capsys):
    summary = factformer.study("kolmogorov", models=["factformer", "fno"], seeds=2, scale="tiny", out=done.folder)
    with pytest.raises(SystemExit) as ended:
        main(["study", str(done.folder / STUDY_FILE), "--out", str(done.folder), "--json"])
    assert ended.value.code == 0
    assert json.loads(capsys.readouterr().out)["rows"] == summary.rows == done.rows
