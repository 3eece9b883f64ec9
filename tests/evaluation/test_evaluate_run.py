"""Run folders and bundles on disk: what is read, what is written, what is left alone."""

import json
import shutil

import h5py
import numpy as np
import pytest
import torch

from factformer import Field, Grid, Problem, build_surrogate
from factformer.bundle import save_bundle
from factformer.data.generate.run import generate
from factformer.data.hdf5 import SplitFile
from factformer.data.store import ArrayDataset
from factformer.errors import UserError
from factformer.evaluation.inspection import inspect_run
from factformer.evaluation.run import evaluate_run, save_samples
from factformer.pdes import Preset, find_pde


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
    assert result == json.loads((folder / "run" / "evaluation.json").read_text())
    assert result["num_windows"] == 4
    assert result["seed"] == 11
    assert result["wall_seconds"] > 0
    assert {"command", "commit", "hardware"} <= set(result)
    with np.load(folder / "run" / "rollouts.npz") as file:
        assert file["truth"].shape == file["prediction"].shape == (2, 16, 24, 24, 1)
        assert file["truth"].dtype == np.float32
        assert json.loads(str(file["fields"])) == [["vorticity", 1]]
        assert float(file["frame_dt"]) == 1 / 16
    again = evaluate_run(folder / "run", num_starts=2, batch_size=2, num_samples=0)
    assert again["fields"] == result["fields"]


def test_the_file_that_a_run_trained_on_is_evaluated_only_if_asked_for(folder, tmp_path):
    file = folder / "data" / "train.hdf5"
    shutil.copytree(folder / "run" / "bundle", tmp_path / "run" / "bundle")
    (tmp_path / "run" / "config.yaml").write_text(f"data:\n  path: {file}\n")
    options = {"num_starts": 1, "batch_size": 2, "timing": False, "num_samples": 0, "overwrite": True}
    with pytest.raises(UserError, match=r"one file .*train\.hdf5: .*--data, or pass --split train"):
        evaluate_run(tmp_path / "run", **options)
    assert not (tmp_path / "run" / "evaluation.json").exists()
    assert evaluate_run(tmp_path / "run", split="train", **options)["split"] == "train"
    assert evaluate_run(tmp_path / "run", file, **options)["split"] == "train"
    assert evaluate_run(tmp_path / "run", folder / "data", **options)["split"] == "test"


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
    assert unknown["fields"] == known["fields"]


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
    assert result["fields"]["vorticity"]["relative_l2"] > 0
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
