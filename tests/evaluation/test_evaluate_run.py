"""Run folders and bundles on disk: what is read, what is written, what is left alone."""

import json
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from factformer import Field, Grid, Problem, build_surrogate
from factformer.bundle import load, save_bundle
from factformer.data.dataset import ArrayDataset
from factformer.data.generate.run import generate
from factformer.data.hdf5 import SplitFile
from factformer.errors import UserError
from factformer.evaluation.inspection import inspect_run
from factformer.evaluation.results import read_evaluation
from factformer.evaluation.run import evaluate_run, save_samples
from factformer.pdes import Preset, find_pde
from factformer.report.analysis import write_evaluation_figures
from factformer.report.runs import load_run
from killing import exit_code_when_killed


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A dataset of Kolmogorov flow and an untrained run on it."""
    root = tmp_path_factory.mktemp("evaluate")
    preset = Preset(24, 24, 30, 1 / 16, {"train": 1, "test": 2}, batch_size=2)
    generate("kolmogorov_flow", root / "data", preset=preset, parameters={"forcing_wavenumber": 4})
    torch.manual_seed(0)
    surrogate = build_surrogate(
        find_pde("kolmogorov_flow").problem(24), dim=8, depth=1, heads=1, head_dim=8, kernel_dim=8
    )
    save_bundle(surrogate, root / "run" / "bundle", {"seed": 11})
    (root / "run" / "config.yaml").write_text(f"data:\n  path: {root / 'data'}\n")
    return root


def test_a_run_is_evaluated_on_what_it_was_trained_on(folder):
    result = evaluate_run(folder / "run", num_starts=2, batch_size=2, num_samples=2)
    assert result.to_dict() == json.loads((folder / "run" / "evaluation.json").read_text())
    assert result.num_windows == 4
    assert result.seed == 11
    assert result.wall_seconds > 0
    assert result.command and result.hardware
    with np.load(folder / "run" / "rollouts.npz") as file:
        assert file["truth"].shape == file["prediction"].shape == (2, 16, 24, 24, 1)
        assert file["truth"].dtype == np.float32
        assert json.loads(str(file["fields"])) == [["vorticity", 1]]
        assert float(file["frame_dt"]) == 1 / 16
    again = evaluate_run(folder / "run", num_starts=2, batch_size=2, num_samples=0)
    assert again.fields == result.fields


def test_the_file_that_a_run_trained_on_is_evaluated_only_if_asked_for(folder, tmp_path):
    file = folder / "data" / "train.hdf5"
    shutil.copytree(folder / "run" / "bundle", tmp_path / "run" / "bundle")
    (tmp_path / "run" / "config.yaml").write_text(f"data:\n  path: {file}\n")
    options = {"num_starts": 1, "batch_size": 2, "timing": False, "num_samples": 0, "overwrite": True}
    with pytest.raises(UserError, match=r"one file .*train\.hdf5: .*--data, or pass --split train"):
        evaluate_run(tmp_path / "run", **options)
    assert not (tmp_path / "run" / "evaluation.json").exists()
    assert evaluate_run(tmp_path / "run", split="train", **options).split == "train"
    assert evaluate_run(tmp_path / "run", file, **options).split == "train"
    assert evaluate_run(tmp_path / "run", folder / "data", **options).split == "test"


def test_a_run_is_inspected_on_the_file_that_it_trained_on(folder, tmp_path):
    shutil.copytree(folder / "run" / "bundle", tmp_path / "run" / "bundle")
    (tmp_path / "run" / "config.yaml").write_text(f"data:\n  path: {folder / 'data' / 'train.hdf5'}\n")
    unasked, asked = (inspect_run(tmp_path / "run", split=split, num_samples=2) for split in (None, "train"))
    assert unasked.summary["kernels"] == asked.summary["kernels"] != []


def test_a_training_split_without_statistics_is_not_read_for_them(folder, tmp_path, monkeypatch):
    shutil.copytree(folder / "data", tmp_path / "data")
    options = {"num_starts": 1, "batch_size": 2, "timing": False, "num_samples": 0}
    known = evaluate_run(folder / "run", tmp_path / "data", out=tmp_path / "known", **options)
    with h5py.File(tmp_path / "data" / "train.hdf5", "r+") as file:
        del file["statistics"]
    files, read = set(), SplitFile.read
    monkeypatch.setattr(
        SplitFile, "read", lambda self, *which, **how: (files.add(self.path.name), read(self, *which, **how))[1]
    )
    unknown = evaluate_run(folder / "run", tmp_path / "data", out=tmp_path / "unknown", **options)
    assert files == {"test.hdf5"}
    assert unknown.fields == known.fields


def test_another_evaluation_is_not_overwritten_unasked(folder):
    options = {"num_starts": 1, "batch_size": 2, "timing": False, "num_samples": 0}
    evaluate_run(folder / "run", folder / "data", out=folder / "other", **options)
    before = (folder / "other" / "evaluation.json").read_text()
    with pytest.raises(UserError, match=r"holds another evaluation.*--overwrite"):
        evaluate_run(folder / "run", folder / "data", out=folder / "other", num_frames=3, **options)
    with pytest.raises(UserError, match="num_windows"):
        evaluate_run(folder / "run", folder / "data", out=folder / "other", **{**options, "num_starts": 2})
    assert (folder / "other" / "evaluation.json").read_text() == before
    evaluate_run(folder / "run", folder / "data", out=folder / "other", num_frames=3, overwrite=True, **options)
    assert json.loads((folder / "other" / "evaluation.json").read_text())["num_frames"] == 3


def test_a_bundle_on_its_own_is_left_as_it_is(folder, tmp_path):
    bundle = tmp_path / "mine"
    bundle.mkdir()
    for file in (folder / "run" / "bundle").iterdir():
        (bundle / file.name).write_bytes(file.read_bytes())
    before = sorted(path.name for path in bundle.iterdir())
    result = evaluate_run(bundle, folder / "data", num_starts=1, batch_size=2, timing=False)
    assert result.fields["vorticity"].relative_l2 > 0
    assert sorted(path.name for path in bundle.iterdir()) == before
    with pytest.raises(UserError, match="name the dataset with --data"):
        evaluate_run(bundle)


def test_a_folder_that_takes_no_results_is_named_before_they_are_computed(folder, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setattr("factformer.evaluation.run.evaluate", lambda *_, **__: pytest.fail("computed all the same"))
    for call in (evaluate_run, inspect_run):
        with pytest.raises(UserError, match=r"cannot write results into .*inside.* --out DIR"):
            call(folder / "run", folder / "data", out=tmp_path / "file" / "inside")
    monkeypatch.setattr("os.access", lambda path, mode: not str(path).endswith("run"))
    with pytest.raises(UserError, match=r"cannot write results into .*run.* --out DIR"):
        evaluate_run(folder / "run", folder / "data")


@pytest.mark.parametrize(
    ("level", "spread", "kind"),
    [(0.0, 1.0, np.float16), (101325.0, 500.0, np.float32), (1000.0, 1.0, np.float32), (0.0, 1e-6, np.float32)],
)
def test_samples_of_boxes_are_halved_where_that_shows_them(level, spread, kind, tmp_path):
    problem = Problem("box", Grid((4, 4, 4), 1.0, True), (Field("p"),), num_context_frames=2, horizon=2)
    frames = level + spread * torch.randn(2, 6, 4, 4, 4, 1, generator=torch.Generator().manual_seed(0))
    dataset = ArrayDataset(frames, problem)
    small = {"dim": 8, "depth": 1, "heads": 2, "head_dim": 4, "kernel_dim": 4}
    surrogate = build_surrogate(problem, normalizer=dataset.normalizer(), **small)
    save_samples(tmp_path / "rollouts.npz", surrogate, dataset, 2, 1, "32-true")
    with np.load(tmp_path / "rollouts.npz") as file:
        assert file["truth"].dtype == file["prediction"].dtype == kind
        np.testing.assert_allclose(file["truth"][0], frames[0, 2:4].numpy(), atol=2e-3 * spread)


QUICK = {"num_starts": 1, "batch_size": 2, "timing": False}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("evaluation.json", b'{"my": "notes"}'),
        ("evaluation.json", b"not JSON"),
        ("rollouts.npz", b"mine"),
    ],
)
def test_evaluate_replaces_nothing_foreign(folder, tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    for overwrite in (False, True):
        with pytest.raises(UserError, match=name):
            evaluate_run(folder / "run", folder / "data", out=tmp_path, overwrite=overwrite, **QUICK)
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [(name, content)]


@pytest.mark.parametrize(
    ("name", "content"),
    [("attention.json", b'{"my": "notes"}'), ("attention.json", b"not JSON"), ("kernels.npz", b"mine")],
)
def test_inspect_replaces_nothing_foreign(folder, tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=name):
        inspect_run(folder / "run", folder / "data", out=tmp_path, num_samples=1)
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [(name, content)]


def test_an_inspection_can_be_repeated_in_its_folder(folder, tmp_path):
    for _ in range(2):
        inspect_run(folder / "run", folder / "data", out=tmp_path, num_samples=1)
    assert {path.name for path in tmp_path.iterdir()} == {"attention.json", "kernels.npz"}


def test_foreign_figures_stay_where_they_are(folder, tmp_path):
    (tmp_path / "figures").mkdir()
    foreign = tmp_path / "figures" / "error-mine.png"
    foreign.write_bytes(b"\x89PNG drawn elsewhere")
    for _ in range(2):
        evaluate_run(folder / "run", folder / "data", out=tmp_path, num_samples=1, overwrite=True, **QUICK)
        ours = write_evaluation_figures(tmp_path)
        assert foreign.read_bytes() == b"\x89PNG drawn elsewhere"
    evaluate_run(folder / "run", folder / "data", out=tmp_path, num_samples=0, overwrite=True, **QUICK)
    assert not any(path.exists() for path in ours)
    (tmp_path / "figures" / "error-vorticity.png").write_bytes(b"mine")
    with pytest.raises(UserError, match=r"error-vorticity\.png is not a figure of factformer"):
        write_evaluation_figures(tmp_path)
    assert (tmp_path / "figures" / "error-vorticity.png").read_bytes() == b"mine"


def test_a_figure_is_written_whole_or_not_at_all(folder, tmp_path, monkeypatch):
    evaluate_run(folder / "run", folder / "data", out=tmp_path, num_samples=0, **QUICK)
    figures = write_evaluation_figures(tmp_path)
    before = figures[0].read_bytes()

    def half(self, path, **options):
        Path(path).write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Figure, "savefig", half)
    with pytest.raises(UserError, match="the disk is full"):
        write_evaluation_figures(tmp_path)
    assert figures[0].read_bytes() == before
    assert sorted((tmp_path / "figures").iterdir()) == sorted(figures)


@pytest.mark.parametrize("killed_at", [1, 2])
def test_an_evaluation_killed_while_it_is_written_leaves_nothing_false_and_can_be_repeated(folder, tmp_path, killed_at):
    evaluate_run(folder / "run", folder / "data", out=tmp_path, num_frames=3, num_samples=1, **QUICK)

    def evaluate():
        evaluate_run(folder / "run", folder / "data", out=tmp_path, num_samples=1, overwrite=True, **QUICK)

    assert exit_code_when_killed(evaluate, killed_at) == 9
    with pytest.raises(UserError, match=r"no evaluation\.json; run `factformer evaluate"):
        load_run(tmp_path)
    evaluate_run(folder / "run", folder / "data", out=tmp_path, num_samples=1, **QUICK)
    assert load_run(tmp_path).evaluation.num_frames == 16
    assert sorted(path.name for path in tmp_path.iterdir()) == ["evaluation.json", "rollouts.npz"]


def test_running_out_of_memory_is_one_line(folder, tmp_path, monkeypatch):
    for error in (
        MemoryError(),
        torch.OutOfMemoryError("CUDA"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory"),
    ):

        def fail(*_, error=error, **__):
            raise error

        monkeypatch.setattr("factformer.evaluation.run.evaluate", fail)
        with pytest.raises(UserError, match="not enough memory: pass a smaller --batch-size"):
            evaluate_run(folder / "run", folder / "data", out=tmp_path, **QUICK)
    assert list(tmp_path.iterdir()) == []


def test_a_seed_that_is_no_number_does_not_spoil_the_evaluation(folder, tmp_path):
    bundle = save_bundle(load(folder / "run"), tmp_path / "bundle", {"seed": "many"})
    result = evaluate_run(bundle, folder / "data", out=tmp_path / "out", num_samples=0, **QUICK)
    assert result.seed is None
    assert read_evaluation(tmp_path / "out" / "evaluation.json").num_windows == result.num_windows


@pytest.mark.parametrize("text", ["data: 3", "data: {path: 3}", "[", "data: {path: ''}"])
def test_a_damaged_configuration_is_one_line(folder, tmp_path, text):
    shutil.copytree(folder / "run" / "bundle", tmp_path / "run" / "bundle")
    (tmp_path / "run" / "config.yaml").write_text(text)
    with pytest.raises(UserError, match=r"--data DIR|not valid YAML"):
        evaluate_run(tmp_path / "run")
