"""What `convert` and the store do with files that are not what they seem."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import yaml
from well_files import write_well_file

from factformer.data import convert, open_dataset
from factformer.data.well_statistics import FILE_NAME

FLOW = {"name": "flow", "num_axes": 2, "outputs": {"density": 1}, "num_context_frames": 2, "horizon": 3}
SHAPE = (3, 6, 8, 5)


def noise(seed: int = 0, shape: tuple[int, ...] = SHAPE) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


def saved(path: Path, values: np.ndarray) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.save(path, values)
    return path


def test_statistics_of_others_are_left_alone_and_ours_are_not_taken_for_theirs(tmp_path: Path) -> None:
    values = write_well_file(tmp_path / "data" / "train" / "a.hdf5")
    theirs = "mean: {density: 5.0}\nstd: {density: 2.0}\nmean_delta: {density: 0.0}\nstd_delta: {density: 0.5}\n"
    (tmp_path / FILE_NAME).write_text(theirs)
    other = saved(tmp_path / "other.npy", 100 + noise().astype("f4"))
    convert(tmp_path / "data" / "train" / "a.hdf5", tmp_path / "sample.hdf5", trajectories=slice(1))
    convert(other, tmp_path / "train.hdf5", FLOW)
    assert (tmp_path / FILE_NAME).read_text() == theirs
    (tmp_path / FILE_NAME).unlink()
    convert(other, tmp_path / "train.hdf5", FLOW, overwrite=True)
    assert list(yaml.safe_load((tmp_path / FILE_NAME).read_text())["factformer"]) == ["train.hdf5"]
    (tmp_path / "train.hdf5").unlink()
    known = open_dataset(tmp_path, "train", outputs=["density"]).normalizer()
    assert float(known.output_mean[0]) == pytest.approx(values["density"].mean(), abs=1e-5)


def test_statistics_are_written_for_a_whole_training_split_only(tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 1)):
        source = saved(tmp_path / f"{name}.npy", (10 * seed + noise(seed)).astype("f4"))
        convert(source, tmp_path / "parts" / "train" / f"{name}.hdf5", FLOW)
        convert(source, tmp_path / "whole" / "train.hdf5", FLOW, overwrite=True)
    assert not list(tmp_path.glob(f"parts/**/{FILE_NAME}"))
    table = yaml.safe_load((tmp_path / "whole" / FILE_NAME).read_text())
    known = open_dataset(tmp_path / "whole").normalizer()
    assert table["mean"]["density"] == pytest.approx(float(known.output_mean[0]))
