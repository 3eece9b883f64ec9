"""What `convert` and the store do with files that are not what they seem."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import yaml
from scipy.io import savemat
from well_files import write_well_file

from factformer.data import convert, import_dataset, open_dataset
from factformer.data.formats.well_statistics import FILE_NAME
from factformer.data.writer import SplitWriter
from factformer.errors import UserError

FLOW = {"name": "flow", "num_axes": 2, "state": {"density": 1}, "num_context_frames": 2, "horizon": 3}
SHAPE = (3, 6, 8, 5)


def noise(seed: int = 0, shape: tuple[int, ...] = SHAPE) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


def saved(path: Path, values: np.ndarray) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.save(path, values)
    return path


def replace_field(path: Path, name: str, values: np.ndarray) -> None:
    """Other numbers for a scalar field of a file in The Well's layout."""
    with h5py.File(path, "r+") as file:
        attributes = dict(file[f"t0_fields/{name}"].attrs)
        del file[f"t0_fields/{name}"]
        file[f"t0_fields/{name}"] = values
        file[f"t0_fields/{name}"].attrs.update(attributes)


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
    known = open_dataset(tmp_path, "train", state=["density"]).normalizer()
    assert float(known.state_mean[0]) == pytest.approx(values["density"].mean(), abs=1e-5)


def test_statistics_are_written_for_a_whole_training_split_only(tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 1)):
        source = saved(tmp_path / f"{name}.npy", (10 * seed + noise(seed)).astype("f4"))
        convert(source, tmp_path / "parts" / "train" / f"{name}.hdf5", FLOW)
        convert(source, tmp_path / "whole" / "train.hdf5", FLOW, overwrite=True)
    assert not list(tmp_path.glob(f"parts/**/{FILE_NAME}"))
    table = yaml.safe_load((tmp_path / "whole" / FILE_NAME).read_text())
    known = open_dataset(tmp_path / "whole").normalizer()
    assert table["mean"]["density"] == pytest.approx(float(known.state_mean[0]))


def test_what_float32_rounds_away_is_refused_on_every_way_in(tmp_path: Path) -> None:
    waves = noise()
    for name, values, message in (
        ("level", 300 + 1e-6 * waves, "channel 0 varies by .* around 300, of which float32 keeps too little"),
        ("integers", 2**40 + (10 * waves).astype("i8"), "float32 keeps too little"),
        ("large", 1e40 * waves, "beyond the numbers of float32; give them in another unit"),
    ):
        source = saved(tmp_path / f"{name}.npy", values)
        with pytest.raises(UserError, match=message):
            convert(source, tmp_path / "out", FLOW)
        well = tmp_path / f"{name}.hdf5"
        write_well_file(well)
        replace_field(well, "density", values)
        with pytest.raises(UserError, match=message):
            convert(well, tmp_path / "out")
        with pytest.raises(UserError, match=message):
            open_dataset(well).normalizer()
        with h5py.File(tmp_path / f"pdebench_{name}.h5", "w") as file:
            file["tensor"] = values
            file["x-coordinate"], file["y-coordinate"] = np.arange(8) / 8, np.arange(5) / 5
        with pytest.raises(UserError, match=message):
            convert(tmp_path / f"pdebench_{name}.h5", tmp_path / "out")
        assert not (tmp_path / "out").exists() or not list((tmp_path / "out").iterdir())
    convert(saved(tmp_path / "good.npy", 300 + waves), tmp_path / "out", FLOW)


def test_trajectories_that_vary_little_by_themselves_are_fine_together(tmp_path: Path) -> None:
    levels = np.arange(3).reshape(3, 1, 1, 1)
    out = convert(saved(tmp_path / "levels.npy", 300 + levels + 1e-6 * noise()), tmp_path / "train.hdf5", FLOW)
    assert float(open_dataset(out).normalizer().state_mean[0]) == pytest.approx(301, rel=1e-6)


def test_complex_arrays_are_refused_and_no_other_is_taken_instead(tmp_path: Path) -> None:
    spectrum = noise() + 1j * noise(1)
    np.savez(tmp_path / "both.npz", density=spectrum, other=noise())
    savemat(tmp_path / "both.mat", {"density": spectrum, "other": noise()})
    with h5py.File(tmp_path / "both.h5", "w") as file:
        file["density"], file["other"] = spectrum, noise()
    for name in ("both.npz", "both.mat", "both.h5"):
        with pytest.raises(UserError, match="array density holds complex numbers"):
            convert(tmp_path / name, tmp_path / "out", FLOW)
    np.savez(tmp_path / "unnamed.npz", spectrum=spectrum, other=noise())
    with pytest.raises(UserError, match="no array 'density'"):
        convert(tmp_path / "unnamed.npz", tmp_path / "out", FLOW)
    write_well_file(tmp_path / "well.hdf5")
    replace_field(tmp_path / "well.hdf5", "density", spectrum)
    with pytest.raises(UserError, match="t0_fields/density holds complex numbers"):
        open_dataset(tmp_path / "well.hdf5")


def test_what_is_called_after_a_split_is_of_it(tmp_path: Path) -> None:
    source = saved(tmp_path / "run.npy", noise())
    convert(source, tmp_path / "data" / "test", FLOW)
    assert open_dataset(tmp_path / "data", "test").num_trajectories == 3
    assert open_dataset(convert(source, tmp_path / "Valid.hdf5", FLOW)).split == "valid"
    assert convert(source, tmp_path / "viscosity_0.01", FLOW) == tmp_path / "viscosity_0.01" / "train.hdf5"
    with pytest.raises(UserError, match=r"a file that ends in \.hdf5, or a folder"):
        convert(source, tmp_path / "k" / "test.nc", FLOW)
    assert not (tmp_path / "k").exists()


def test_names_of_pdebench_alone_make_no_file_of_it(tmp_path: Path) -> None:
    velocity, particles = noise(0, (3, 6, 8, 5, 2)), noise(1)
    tracers = {**FLOW, "state": {"velocity": 2, "particles": 1}, "periodic": True}
    for name, times in (("even", np.arange(6) / 10), ("scalar", np.array(0.1))):
        path = tmp_path / f"{name}.npz"
        np.savez(path, velocity=velocity, particles=particles, t=times)
        if name == "scalar":
            with pytest.raises(UserError, match=r"its times have shape \(1,\), for 6 frames"):
                import_dataset(path, tracers)
        else:
            data = import_dataset(path, tracers)
            assert np.array_equal(data.read([2])[0, ..., 2], particles[2].astype("f4"))
        with pytest.raises(UserError, match="does not say what it holds"):
            convert(path, tmp_path / "out")
    density = {"density": noise(), "y-coordinate": np.arange(5.0)}
    for times, x, message in (
        (np.array(0.1), np.arange(8.0), r"its times have shape \(\), for 6 frames: correct them"),
        (np.arange(3.0), np.arange(8.0), r"its times have shape \(3,\), for 6 frames"),
        (np.arange(6.0), np.array(0.5), r"x-coordinate has shape \(\), for 8 points"),
    ):
        np.savez(tmp_path / "look_alike.npz", **{**density, "t-coordinate": times, "x-coordinate": x})
        with pytest.raises(UserError, match=message):
            convert(tmp_path / "look_alike.npz", tmp_path / "out", FLOW)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("extent=abc", "problem.extent.* valid number"),
        ("coordinates=3", "problem.coordinates: .* valid list"),
        ("frame_dt=abc", "problem.frame_dt: .* valid number"),
        ("frame_dt=null", "problem.frame_dt: .* valid number"),
        ("frame_dt=true", "problem.frame_dt: .* not true or false"),
        ("name=", "problem.name: .* valid string"),
        ("name=null", "problem.name: .* valid string"),
        ("name=3", "problem.name: .* valid string"),
        ("name=''", "problem.name: .* at least 1 character"),
        ("num_context_frames=2.5", "problem.num_context_frames: .* valid integer"),
    ],
)
def test_settings_are_checked_alike_for_every_kind_of_file(setting: str, message: str, sources: list[Path]) -> None:
    for source in sources:
        with pytest.raises(UserError, match=message):
            import_dataset(source, FLOW if source.suffix == ".npy" else None, settings=[setting])


def test_settings_mean_the_same_for_every_kind_of_file(sources: list[Path]) -> None:
    for source in sources:
        problem = FLOW if source.suffix == ".npy" else None
        data = import_dataset(source, problem, settings=["num_context_frames=2.0", "frame_dt=1", "coordinates=null"])
        assert repr(data.problem.num_context_frames) == "2"
    for change in ({"extent": "abc"}, {"coordinates": 3}, {"frame_dt": "abc"}):
        with pytest.raises(UserError, match=r"cannot .*abc|cannot be read with coordinates=3"):
            open_dataset(sources[-1], **change)


@pytest.fixture
def sources(tmp_path: Path) -> list[Path]:
    """The same kind of frames as an array, in a file of ours and in one of The Well."""
    array = saved(tmp_path / "run.npy", noise())
    write_well_file(tmp_path / "well.hdf5")
    return [array, convert(array, tmp_path / "ours.hdf5", FLOW), tmp_path / "well.hdf5"]


def test_a_single_trajectory_may_have_a_channel_axis(tmp_path: Path) -> None:
    values = noise(0, (6, 8, 5, 1)).astype("f4")
    data = import_dataset(saved(tmp_path / "run.npy", values), FLOW)
    assert (data.num_trajectories, data.num_frames) == (1, 6)
    assert np.array_equal(data.read([0])[0], values)
    several = import_dataset(saved(tmp_path / "several.npy", values[None, ..., 0]), FLOW)
    assert np.array_equal(several.read([0])[0], values)


def test_an_interrupted_conversion_notices_a_mended_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = noise(0, (3, 6, 40, 30)).astype("f4")
    source, out = saved(tmp_path / "run.npy", values), tmp_path / "train.hdf5"
    monkeypatch.setattr(sys.modules["factformer.data.convert"], "BYTES_AT_A_TIME", 1)
    written = SplitWriter.batch

    def interrupted(writer: SplitWriter, batch: range) -> Any:
        if batch.start == 2:
            raise KeyboardInterrupt
        return written(writer, batch)

    def interrupt() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(SplitWriter, "batch", interrupted)
            with pytest.raises(KeyboardInterrupt):
                convert(source, out, FLOW)

    interrupt()
    state = source.stat()
    before = import_dataset(source, FLOW).fingerprint
    for place in np.ndindex(*values.shape[1:]):  # a number that no sample has looked at
        mended = values.copy()
        mended[(0, *place)] += 1
        np.save(source, mended)
        if import_dataset(source, FLOW).fingerprint == before:
            break
    os.utime(source, ns=(state.st_atime_ns, state.st_mtime_ns + 10**9))
    with pytest.raises(UserError, match="unfinished work of other settings or another source"):
        convert(source, out, FLOW)
    convert(source, out, FLOW, overwrite=True)
    assert np.array_equal(open_dataset(out).read(slice(None))[..., 0], mended)
    out.unlink()
    interrupt()
    convert(source, out, FLOW)  # goes on where nothing has changed
    assert np.array_equal(open_dataset(out).read(slice(None))[..., 0], mended)
