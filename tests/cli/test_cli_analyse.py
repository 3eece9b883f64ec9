"""evaluate, inspect, benchmark and reproduce as a user types them."""

import json

import pytest
import torch

from commands import run
from factformer import build_surrogate, load
from factformer.bundle import save_bundle
from factformer.data.generate.run import generate
from factformer.pdes import Preset, find_pde
from factformer.studies.targets import targets

TINY = ["--set", "model.dim=8", "--set", "model.depth=1", "--set", "model.heads=1"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A dataset of Kolmogorov flow and an untrained run on it."""
    root = tmp_path_factory.mktemp("analyse")
    preset = Preset(32, 32, 28, 1 / 16, {"train": 1, "test": 2}, batch_size=2)
    generate("kolmogorov_flow", root / "data", preset=preset)
    torch.manual_seed(0)
    problem = find_pde("kolmogorov_flow").problem(32)
    surrogate = build_surrogate(problem, dim=8, depth=2, heads=2, head_dim=8, kernel_dim=8)
    save_bundle(surrogate, root / "run" / "bundle", {"seed": 3})
    (root / "run" / "config.yaml").write_text(f"data:\n  path: {root / 'data'}\n")
    return root


def test_evaluate_prints_json_and_writes_the_run_folder(folder, capsys):
    code, out, _ = run(capsys, "evaluate", folder / "run", "--data", folder / "data", "--batch-size", "2", "--json")
    assert code == 0
    result = json.loads(out)
    field = result["fields"]["vorticity"]
    assert {"relative_l2", "relative_l2_final", "relative_l2_per_frame", "standard_error", "persistence"} <= set(field)
    assert result["persistence"]["vorticity"] == field["persistence"]["relative_l2"]
    assert result["parameters"] > 0
    assert result["seconds_per_sequence"] > 0
    assert json.loads((folder / "run" / "evaluation.json").read_text()) == result
    drawn = {path.name for path in (folder / "run" / "figures").iterdir()}
    assert drawn == {"error-vorticity.png", "spectrum-vorticity.png", "rollout-vorticity-0.png"}


def test_other_parameters_than_those_trained_on_are_told(folder, capsys, tmp_path):
    surrogate = load(folder / "run")
    for number, said in ((1000, False), (500, True)):
        bundle = save_bundle(surrogate, tmp_path / f"{number}", {"data_parameters": {"reynolds": number, "old": 1}})
        short = ["--data", folder / "data", "--frames", "2", "--starts", "1", "--no-figures"]
        code, out, error = run(capsys, "evaluate", bundle, *short)
        assert code == 0, error
        assert ("other data than it was trained on: reynolds=1000.0 instead of 500\n" in out) == said
        there = ["--input", folder / "data" / "test.hdf5", "--frames", "2", "--out", tmp_path / f"{number}.npy"]
        code, out, error = run(capsys, "rollout", bundle, *there)
        assert code == 0, error
        assert ("other data than it was trained on: reynolds=1000.0 instead of 500\n" in out) == said


def test_evaluate_prints_a_table(folder, capsys, tmp_path):
    options = ["--frames", "3", "--starts", "1", "--batch-size", "2", "--out", tmp_path, "--no-figures"]
    code, out, _ = run(capsys, "evaluate", folder / "run", *options)
    assert code == 0
    assert "vorticity" in out
    assert "parameters" in out
    assert not (tmp_path / "figures").exists()


def test_nothing_of_an_earlier_evaluation_stays_beside_a_new_one(folder, capsys, tmp_path):
    options = ["--starts", "1", "--batch-size", "2", "--out", tmp_path, "--overwrite"]
    assert run(capsys, "evaluate", folder / "run", *options, "--samples", "1")[0] == 0
    (tmp_path / "figures" / "mine.png").write_text("kept")
    assert run(capsys, "evaluate", folder / "run", *options, "--samples", "0", "--frames", "3")[0] == 0
    assert not (tmp_path / "rollouts.npz").exists()
    drawn = {path.name for path in (tmp_path / "figures").iterdir()}
    assert drawn == {"error-vorticity.png", "spectrum-vorticity.png", "mine.png"}
    assert run(capsys, "evaluate", folder / "run", *options, "--samples", "0", "--no-figures")[0] == 0
    assert {path.name for path in (tmp_path / "figures").iterdir()} == {"mine.png"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["evaluate", "{run}/nowhere"], "there is no bundle at"),
        (["evaluate", "{run}", "--split", "valid"], "no valid split"),
        (["evaluate", "{run}", "--frames", "99"], "ask for fewer"),
        (["evaluate", "{run}", "--data", "{run}/../data/train.hdf5", "--split", "test"], "is the train split"),
        (["inspect"], "name either a run or bundle"),
        (["inspect", "{run}", "--set", "model.dim=8"], "--set goes with --recipe"),
        (["inspect", "--recipe", "kolmogorow"], "did you mean 'kolmogorov'"),
        (["inspect", "--recipe", "demo", "--parameters", "--set", "model.dims=8"], "did you mean 'model.dim'"),
        (["benchmark", "inference"], "name its run or bundle"),
        (["benchmark", "attention", "--sizes", "a,b"], "whole numbers"),
        (["benchmark", "attention", "--sizes", "0"], "above 0"),
        (["benchmark", "attention", "--models", "fno"], "no use for --models"),
        (["benchmark", "attention", "--problem", "darcy_flow"], "no use for --problem"),
        (["benchmark", "model", "--over", "grid"], "no use for --over"),
        (["benchmark", "model", "--compare", "--precision", "32-true"], "no use for --precision"),
        (["reproduce", "table1", "--scale", "tiny", "--set", "model.dmi=3"], "did you mean 'model.dim'"),
        (["benchmark", "attention", "--over", "time"], "unknown --over"),
        (["benchmark", "model", "--set", "model.headz=2"], "did you mean 'model.heads'"),
        (["reproduce", "table1", "--scale", "tiny", "--set", "model.name=ffno"], "what the cells of a target"),
        (["reproduce", "tabel1"], "did you mean 'table1'"),
        (["reproduce"], "name what to reproduce"),
    ],
)
def test_wrong_use_is_one_line_and_code_2(folder, capsys, words, message):
    code, out, err = run(capsys, *[word.format(run=folder / "run") for word in words])
    assert code == 2
    assert message in err
    assert len(err.strip().splitlines()) == 1
    assert out == ""


def test_inspect_counts_the_parameters_of_a_recipe(capsys):
    code, out, _ = run(capsys, "inspect", "--recipe", "kolmogorov", "--parameters")
    assert code == 0
    assert int(out) == pytest.approx(3.4e6, rel=0.02)
    _, small, _ = run(capsys, "inspect", "--recipe", "kolmogorov", "--parameters", "--scale", "small")
    assert int(small) < 1e6
    _, wide, _ = run(capsys, "inspect", "--recipe", "kolmogorov", "--parameters", "--set", "model.dim=256")
    assert int(wide) > int(out)
    _, whole, _ = run(capsys, "inspect", "--recipe", "kolmogorov", "--json")
    assert json.loads(whole)["parameters"] == int(out)
    assert json.loads(whole)["experiment"]["model"]["name"] == "factformer"


def test_inspect_counts_parameters_before_there_are_data(capsys, tmp_path):
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / ".train.hdf5.partial").touch()
    words = ("inspect", "--recipe", "kolmogorov", "--parameters")
    counts = [run(capsys, *words, "--set", f"data.path={path}") for path in (tmp_path / "none", tmp_path / "begun")]
    assert [code for code, _, _ in counts] == [0, 0]
    assert counts[0][1] == counts[1][1]
    code, _, error = run(capsys, *words, "--set", f"data.path={tmp_path / 'none'}", "--set", "data.resolution=null")
    assert code == 2
    assert "no data at" in error


def test_inspect_writes_numbers_and_pictures(folder, capsys, tmp_path):
    code, out, _ = run(capsys, "inspect", folder / "run", "--samples", "3", "--out", tmp_path, "--json")
    assert code == 0
    summary = json.loads(out)
    assert summary["num_samples"] == 3
    assert len(summary["kernels"]) == 4
    assert {path.name for path in tmp_path.iterdir()} == {
        "attention.json",
        "kernels.npz",
        "energy-axis1.png",
        "energy-axis2.png",
        "kernels-layer1.png",
        "kernels-layer2.png",
    }
    _, count, _ = run(capsys, "inspect", folder / "run", "--parameters")
    assert int(count) > 1000
    again = ("inspect", folder / "run", "--samples", "2", "--out", tmp_path)
    code, _, err = run(capsys, *again)
    assert (code, "--overwrite" in err) == (2, True)
    assert json.loads((tmp_path / "attention.json").read_text())["num_samples"] == 3
    assert run(capsys, *again, "--overwrite")[0] == 0


def test_benchmarks_of_a_surrogate(folder, capsys, tmp_path, monkeypatch):
    code, out, _ = run(capsys, "benchmark", "inference", folder / "run", "--sizes", "1,2", "--json")
    assert code == 0
    assert [row["batch_size"] for row in json.loads(out)["rows"]] == [1, 2]
    monkeypatch.setenv("COLUMNS", "250")  # headings in one line
    file = tmp_path / "solver.json"
    code, out, _ = run(capsys, "benchmark", "solver", folder / "run", "--sizes", "32", "--out", file)
    assert code == 0
    assert "Simulated seconds per second" in out
    assert json.loads(file.read_text())["speedup_over_reference"] > 0
    assert "solver (coarse)" in file.with_suffix(".md").read_text()
    before = file.read_text()
    code, _, err = run(capsys, "benchmark", "solver", folder / "run", "--sizes", "32", "--out", file)
    assert (code, "--overwrite" in err, file.read_text() == before) == (2, True, True)
    assert file.with_suffix(".png").is_file()
    for _ in range(2):  # in the run folder a benchmark replaces an earlier one
        words = ("--sizes", "32", "--precision", "32-true")
        assert run(capsys, "benchmark", "solver", folder / "run", *words)[0] == 0
    assert json.loads((folder / "run" / "solver.json").read_text())["benchmark"] == "solver"
    for name in ("solver.json", "solver.md", "solver.png"):
        (folder / "run" / name).unlink()


def test_benchmark_of_fresh_models(capsys):
    words = ["--models", "factformer,fno", "--resolution", "16", "--batch-size", "1", *TINY, "--json"]
    code, out, err = run(capsys, "benchmark", "model", *words)
    assert code == 0
    rows = json.loads(out)["rows"]
    assert [(row["model"], row["status"]) for row in rows] == [("factformer", "ok"), ("fno", "ok")]
    assert all(row["training_seconds"] > 0 and row["forward_flops"] > 0 for row in rows)
    assert "factformer:" in err


def test_reproduce_lists_its_targets_and_honours_the_budget(capsys, tmp_path):
    code, out, _ = run(capsys, "reproduce", "--list")
    assert code == 0
    assert [line.split()[0] for line in out.strip().splitlines()] == list(targets())
    words = ["--scale", "tiny", "--budget-minutes", "1e-9", "--out", tmp_path, "--json"]
    code, out, _ = run(capsys, "reproduce", "table1", *words)
    assert code == 0
    assert {cell["status"] for cell in json.loads(out)["cells"]} == {"not run"}
