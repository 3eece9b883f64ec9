"""The page without a browser: it stands alone, escapes what it is given, and keeps to its size."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from report_samples import evaluation, make_run, plain_errors, save_run
from typer.testing import CliRunner

from factformer.errors import UserError
from factformer.evaluation.results import Floor
from factformer.report.figures import TrendLine, error_trend
from factformer.report.html import MAX_BYTES, report_runs, write_report
from factformer.report.runs import ReportRun, load_run
from killing import exit_code_when_killed


@pytest.fixture(scope="module")
def page(plane_run, rival_run, tmp_path_factory):
    return write_report(tmp_path_factory.mktemp("report"), title="Two models", runs=[plane_run, rival_run])


def embedded(path):
    text = path.read_text(encoding="utf-8")
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S).group(1))


def test_files_of_a_report(page):
    names = sorted(path.name for path in page.parent.iterdir())
    assert names == ["comparison.csv", "comparison.json", "comparison.md", "report.html"]


def test_page_refers_to_nothing_outside(page):
    text = page.read_text(encoding="utf-8")
    links = re.findall(r"""(?:src|href)\s*=\s*["']([^"']*)""", text)
    assert links
    assert all(link.startswith(("data:", "#")) for link in links)
    assert not re.search(r"@import|fetch\(|XMLHttpRequest|sendBeacon|WebSocket|import\(", text)
    assert "default-src 'none'" in text


def test_numbers_of_the_page_are_those_of_the_evaluation(page, plane_run, rival_run):
    data = embedded(page)
    names = [line["name"] for line in data["trend"]["vorticity"]]
    assert names == ["factformer (LM)", "ffno (AR)", "persistence"]
    for line, run in zip(data["trend"]["vorticity"], (plane_run, rival_run), strict=False):
        assert line["y"] == run.evaluation.to_dict()["fields"]["vorticity"]["relative_l2_per_frame"]
        assert line["x"] == [0.125 * (k + 1) for k in range(8)]
    assert [line["dash"] != "" for line in data["trend"]["vorticity"]] == [False, True, True]
    spectrum = plane_run.evaluation.to_dict()["fields"]["vorticity"]["spectrum"]
    assert data["spectra"]["vorticity"][0]["y"] == spectrum["truth"]
    assert data["spectra"]["vorticity"][1]["y"] == spectrum["prediction"]
    text = page.read_text(encoding="utf-8")
    error = plane_run.evaluation.to_dict()["fields"]["vorticity"]["relative_l2"]
    assert f'data-value="{error!r}"' in text
    assert f'data-key="vorticity.relative_l2">{error:.4f}<' in text


def test_page_says_what_was_evaluated(tmp_path, page, plane_run, rival_run):
    def facts(path):
        return re.search(r'<ul class="facts">(.*?)</ul>', path.read_text(encoding="utf-8")).group(1)

    assert "<li>2 test windows</li>" in facts(page)
    assert "averaged over 2 test windows." in page.read_text(encoding="utf-8")
    seen = replace(plane_run, evaluation=replace(plane_run.evaluation, split="train"))
    alone = write_report(tmp_path / "alone", title="t", runs=[seen])
    assert "<li>2 training windows</li>" in facts(alone)
    assert "test window" not in alone.read_text(encoding="utf-8")
    assert "<li>10 frames seen, 8 predicted</li>" in facts(alone)
    other = replace(
        rival_run,
        evaluation=replace(rival_run.evaluation, num_diverged=1, other_parameters="drag=0.2 instead of 0.1"),
        problem=replace(rival_run.problem, horizon=12),
    )
    fewer = write_report(tmp_path / "fewer", title="t", runs=[other])
    assert "<li>10 frames seen, 8 predicted</li>" in facts(fewer)
    assert "<li>other data than trained on: drag=0.2 instead of 0.1</li>" in facts(fewer)
    both = write_report(tmp_path / "both", title="t", runs=[seen, other])
    assert "<li>2 training windows (factformer (LM)), 2 test windows (ffno (AR))</li>" in facts(both)
    assert "<li>1 of those of ffno (AR) diverged</li>" in facts(both)
    assert "<li>other data than ffno (AR) was trained on: drag=0.2 instead of 0.1</li>" in facts(both)
    assert "in vorticity, over 2 training windows" in both.read_text(encoding="utf-8")
    rows = json.loads((tmp_path / "both" / "comparison.json").read_text())["rows"]
    assert [row["split"] for row in rows[:2]] == ["train", "test"]


def test_page_tells_how_to_repeat_it(page, plane_run):
    text = page.read_text(encoding="utf-8")
    assert plane_run.command in text
    assert "learning_rate: 0.0005" in text


def test_names_cannot_break_out_of_the_page(tmp_path):
    evil = '</script><script>alert("x")</script>'
    run = make_run(evil, shape=(8, 8), num_frames=2, num_samples=1)
    path = write_report(tmp_path, title=evil, runs=[run], subtitle=evil)
    text = path.read_text(encoding="utf-8")
    assert "<script>alert" not in text
    assert embedded(path)["player"]["runs"] == [f"{evil} (LM)"]


def test_numbers_that_are_not_finite_leave_valid_json(tmp_path, plane_run):
    found = evaluation(
        {"vorticity": plain_errors([float("nan"), 0.1, float("inf")], persistence=Floor(0.5, 0.5, [0.5] * 3))}
    )
    path = write_report(tmp_path, title="t", runs=[ReportRun("a", found)])
    assert embedded(path)["trend"]["vorticity"][0]["y"][-1] is None
    assert json.loads((tmp_path / "comparison.json").read_text())["rows"][0]["vorticity.relative_l2"] is None


def test_a_large_roll_out_stays_under_the_limit(tmp_path):
    rng = np.random.default_rng(0)  # noise: nothing for the compression to gain
    run = make_run(shape=(8, 8), num_frames=1, num_samples=1)
    noise = [rng.normal(size=(16, 192, 192, 1)).astype(np.float32) for _ in range(6)]
    rollouts = [type(run.rollouts[0])(noise[i], noise[i - 1]) for i in range(6)]
    large = ReportRun("a", run.evaluation, rollouts, run.fields)
    path = write_report(tmp_path, title="large", runs=[large])
    assert 1_000_000 < path.stat().st_size < MAX_BYTES
    assert 1 <= embedded(path)["player"]["samples"] < 6


def test_a_steady_problem_has_no_trend_and_no_transport(tmp_path):
    run = make_run(shape=(8, 8), num_frames=1, num_samples=1, protocol="steady")
    path = write_report(tmp_path, title="steady", runs=[run])
    text = path.read_text(encoding="utf-8")
    assert 'id="trend"' not in text
    assert '<div class="transport" hidden>' in text
    assert embedded(path)["trend"] == {}


def test_extra_figures_and_kernels_are_embedded(tmp_path):
    run = make_run(shape=(8, 8), num_frames=2, num_samples=1, kernels={"layer 1, x₁": np.eye(8)})
    trend = error_trend([TrendLine("a", [0.1, 0.2])], field="u")
    text = write_report(tmp_path, title="t", runs=[run], figures={"A figure": trend}).read_text(encoding="utf-8")
    assert text.count('src="data:image/png;base64,') == 2
    assert text.count('srcset="data:image/png;base64,') == 1  # the kernels for dark pages
    assert "<h2>A figure</h2>" in text


def test_an_existing_report_is_kept(tmp_path, plane_run):
    (tmp_path / "comparison.csv").write_text("mine")
    with pytest.raises(UserError, match="--overwrite"):
        write_report(tmp_path, title="t", runs=[plane_run])
    assert (tmp_path / "comparison.csv").read_text() == "mine"
    assert not (tmp_path / "report.html").exists()
    write_report(tmp_path, title="t", runs=[plane_run], overwrite=True)
    assert (tmp_path / "comparison.csv").read_text() != "mine"


def test_run_folders_make_the_same_page(tmp_path, plane_run, rival_run):
    folders = [save_run(tmp_path / run.name, run) for run in (plane_run, rival_run)]
    from_disk = report_runs(folders, tmp_path / "a", title="t")
    in_memory = write_report(tmp_path / "b", title="t", runs=[plane_run, rival_run])
    assert from_disk.read_bytes() == in_memory.read_bytes()


def test_a_run_evaluated_on_another_grid_shows_that_grid(tmp_path, plane_run):
    shown = plane_run.problem.grid
    trained = replace(plane_run, problem=plane_run.problem.with_grid(shown.resample(16)))
    folder = save_run(tmp_path / "run", trained, grid=np.array(json.dumps(shown.to_dict())))
    assert load_run(folder).problem.grid == shown


def test_the_command(tmp_path, plane_run):
    import typer

    from factformer.cli.report import report

    app = typer.Typer()
    app.command()(report)
    folder = save_run(tmp_path / "run", plane_run)
    result = CliRunner().invoke(app, [str(folder), "--out", str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    assert "factformer on kolmogorov flow" in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")


def test_bad_folders_are_named(tmp_path, plane_run):
    with pytest.raises(UserError, match="not a run folder"):
        load_run(tmp_path / "nowhere")
    with pytest.raises(UserError, match="factformer evaluate"):
        load_run(tmp_path)
    folder = save_run(tmp_path / "run", plane_run)
    (folder / "rollouts.npz").write_bytes(b"PK broken")
    with pytest.raises(UserError, match=r"rollouts\.npz is not readable"):
        load_run(folder)
    (folder / "rollouts.npz").unlink()
    assert list(load_run(folder).rollouts) == []
    (folder / "evaluation.json").write_text("{")
    with pytest.raises(UserError, match=r"evaluation\.json is not valid JSON"):
        load_run(folder)
    with pytest.raises(UserError, match="no run folder"):
        report_runs([], tmp_path / "out")
    with pytest.raises(UserError, match="name 2 channels"):
        ReportRun("a", plane_run.evaluation, plane_run.rollouts, [*plane_run.fields, *plane_run.fields])


@pytest.mark.parametrize("killed_at", range(1, 6))
def test_a_report_that_was_killed_can_be_repeated(tmp_path, plane_run, killed_at):
    whole = write_report(tmp_path / "whole", title="t", runs=[plane_run])
    out = tmp_path / "out"

    def write():
        write_report(out, title="t", runs=[plane_run])

    assert exit_code_when_killed(write, killed_at) == (9 if killed_at < 5 else 0)
    if killed_at < 5:
        write()
    assert {path.name: path.read_bytes() for path in out.iterdir()} == {
        path.name: path.read_bytes() for path in whole.parent.iterdir()
    }
    with pytest.raises(UserError, match="--overwrite"):
        write()


BILL = {
    "benchmark": "solver",
    "batch_size": 2,
    "hardware": "a machine",
    "rows": [
        {"method": "surrogate (ours)", "resolution": 8, "precision": "32-true", "start": None, "error": 0.1}
        | {"seconds_per_simulated_second": 0.5},
        {"method": "solver (reference)", "resolution": 16, "precision": "32-true", "start": None, "error": None}
        | {"seconds_per_simulated_second": 5.0},
        {"method": "solver (coarse)", "resolution": 8, "precision": "32-true", "start": "stored frame", "error": 0.3}
        | {"seconds_per_simulated_second": 0.7},
    ],
    "speedup_over_reference": 10.0,
    "speedup_at_equal_error": {"32-true": {"stored frame": {"factor": 1.4, "bound": "at least", "solver_seconds": 1}}},
    "effort": {"generation_seconds": 5.0, "training_seconds": 4.0, "total_seconds": 9.0},
    "break_even_solutions": {"32-true": {"reference": 2.0, "stored frame": 45.0}},
}


def test_a_run_with_a_solver_benchmark_shows_the_bill(tmp_path, plane_run, page):
    folder = save_run(tmp_path / "run", plane_run)
    (folder / "solver.json").write_text(json.dumps(BILL))
    text = report_runs([folder], tmp_path / "out").read_text(encoding="utf-8")
    assert "Against the solver" in text and "Against the solver" not in page.read_text(encoding="utf-8")
    assert "10 times as fast as the solver that made the data" in text
    assert "at least 1.4 times as fast as the solver of its error from the stored frame" in text
    assert "9 s of data and training are paid back after 2 solutions against the reference" in text
    (folder / "solver.json").write_text("[]")
    with pytest.raises(UserError, match=r"solver\.json"):
        report_runs([folder], tmp_path / "other")
