"""Files of other people: each kind is written as they write it and read back as the same numbers."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from scipy.io import savemat

from factformer.data import convert, import_dataset, open_dataset
from factformer.data.convert import parse_trajectories
from factformer.data.formats.well_statistics import FILE_NAME
from factformer.errors import UserError

FLOW = {
    "name": "flow",
    "num_axes": 2,
    "state": {"vorticity": 1},
    "extent": [1.0, 2.0],
    "periodic": True,
    "frame_dt": 0.5,
    "num_context_frames": 2,
    "horizon": 3,
}
BOX = {**FLOW, "name": "box", "state": {"density": 1, "velocity": 2}, "periodic": False, "boundary": "zero"}
STEADY = {
    "name": "steady",
    "num_axes": 2,
    "state": {"sol": 1},
    "static": {"coeff": 1},
    "boundary": "zero",
    "num_context_frames": 0,
}


@pytest.fixture
def frames() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(4, 6, 8, 5, 1)).astype("f4")


def write_matlab_73(path: Path, **arrays: np.ndarray) -> None:
    """As MATLAB's ``save -v7.3`` does: HDF5 behind a header, with the axes the other way round."""
    with h5py.File(path, "w", userblock_size=512) as file:
        for name, values in arrays.items():
            file.create_dataset(name, data=values.T)
            file[name].attrs["MATLAB_class"] = np.bytes_("single")
    with open(path, "r+b") as raw:
        raw.write(b"MATLAB 7.3 MAT-file".ljust(512))


def test_parameters_of_others_are_recorded_and_checked(frames: np.ndarray, tmp_path: Path) -> None:
    np.save(tmp_path / "run.npy", frames)
    out = convert(tmp_path / "run.npy", tmp_path / "out", "kolmogorov_flow", settings=["parameters.reynolds=500"])
    assert open_dataset(out).provenance["parameters"] == {"reynolds": 500}
    again = convert(out, tmp_path / "again", "kolmogorov_flow", settings=["parameters.drag=0.2"])
    assert open_dataset(again).provenance["parameters"] == {"reynolds": 500, "drag": 0.2}
    for problem, setting, message in (
        ("kolmogorov_flow", "parameters.reynold=500", "did you mean 'parameters.reynolds'"),
        (FLOW, "parameters.reynolds=500", "'flow' is none"),
    ):
        with pytest.raises(UserError, match=message):
            convert(tmp_path / "run.npy", tmp_path / "bad", problem, settings=[setting])


def test_npy(frames: np.ndarray, tmp_path: Path) -> None:
    np.save(tmp_path / "run.npy", frames)
    out = convert(tmp_path / "run.npy", tmp_path / "out" / "train.hdf5", FLOW)
    data = open_dataset(tmp_path / "out")
    assert out == tmp_path / "out" / "train.hdf5"
    assert np.array_equal(data.read(slice(None)), frames)
    assert data.problem.grid.shape == (8, 5)
    assert data.problem.grid.extent == (1.0, 2.0)
    assert (data.problem.frame_dt, data.problem.num_context_frames, data.problem.horizon) == (0.5, 2, 3)
    assert float(data.normalizer().state_std[0]) == pytest.approx(frames.std(), rel=1e-5)
    assert (tmp_path / "out" / FILE_NAME).exists()


def test_a_problem_of_the_catalog_needs_its_name_only(tmp_path: Path) -> None:
    vorticity = np.random.default_rng(0).normal(size=(2, 30, 16, 16)).astype("f4")
    np.save(tmp_path / "run.npy", vorticity)
    convert(tmp_path / "run.npy", tmp_path / "test.hdf5", "kolmogorov_flow", settings=["frame_dt=0.25"])
    data = open_dataset(tmp_path / "test.hdf5")
    assert data.split == "test"
    assert np.array_equal(data.read([1])[0, ..., 0], vorticity[1])
    assert data.problem.frame_dt == 0.25
    assert all(data.problem.grid.periodic)
    assert [f.name for f in data.problem.state] == ["vorticity"]


def test_npz_with_an_array_for_each_field(frames: np.ndarray, tmp_path: Path) -> None:
    velocity = np.concatenate([frames, -frames], axis=-1).astype("f8")
    np.savez(tmp_path / "run.npz", velocity=velocity, rho=frames[..., 0], unrelated=np.arange(3))
    convert(tmp_path / "run.npz", tmp_path / "out", BOX, fields={"density": "rho"}, split="test")
    read = open_dataset(tmp_path / "out", "test").read(slice(None))
    assert np.array_equal(read, np.concatenate([frames, frames, -frames], axis=-1))
    with pytest.raises(UserError, match=r"no array 'density' .* rho \(4, 6, 8, 5\)"):
        convert(tmp_path / "run.npz", tmp_path / "other", BOX)
    with pytest.raises(UserError, match="did you mean 'density'"):
        convert(tmp_path / "run.npz", tmp_path / "other", BOX, fields={"densty": "rho"})


@pytest.mark.parametrize("version", ["5", "7.3"])
def test_matlab_with_time_last(frames: np.ndarray, version: str, tmp_path: Path) -> None:
    values = np.moveaxis(frames[..., 0], 1, -1)  # (trajectory, x, y, frame), as in FNO's files
    if version == "5":
        savemat(tmp_path / "run.mat", {"u": values})
    else:
        write_matlab_73(tmp_path / "run.mat", u=values)
    convert(tmp_path / "run.mat", tmp_path / "train.hdf5", FLOW, layout="nxyt")
    assert np.array_equal(open_dataset(tmp_path).read(slice(None)), frames)


@pytest.mark.parametrize("version", ["5", "7.3"])
def test_matlab_pairs_of_a_steady_problem_thinned_out(version: str, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    arrays = {name: random.normal(size=(3, 9, 9)).astype("f4") for name in ("coeff", "sol", "Kcoeff")}
    if version == "5":
        savemat(tmp_path / "pairs.mat", arrays)
    else:
        write_matlab_73(tmp_path / "pairs.mat", **arrays)
    convert(tmp_path / "pairs.mat", tmp_path / "train.hdf5", STEADY, resolution=5)
    data = open_dataset(tmp_path)
    assert np.array_equal(data.read(slice(None))[:, 0, ..., 0], arrays["sol"][:, ::2, ::2])
    assert np.array_equal(data.read(slice(None), part="static")[..., 0], arrays["coeff"][:, ::2, ::2])
    assert data.problem.grid.extent == (1.0, 1.0)
    with pytest.raises(UserError, match="cannot be thinned out to 6"):
        convert(tmp_path / "pairs.mat", tmp_path / "other.hdf5", STEADY, resolution=6)


def test_parts_of_a_file_become_splits(frames: np.ndarray, tmp_path: Path) -> None:
    np.save(tmp_path / "run.npy", frames)
    convert(tmp_path / "run.npy", tmp_path / "out", FLOW, split="train", trajectories=slice(0, 3))
    convert(tmp_path / "run.npy", tmp_path / "out", FLOW, split="test", trajectories=slice(3, None))
    assert np.array_equal(open_dataset(tmp_path / "out", "train").read(slice(None)), frames[:3])
    assert np.array_equal(open_dataset(tmp_path / "out", "test").read(slice(None)), frames[3:])
    assert open_dataset(tmp_path / "out", "test").normalizer().state_std[0] > 0
    with pytest.raises(UserError, match="no trajectory left"):
        convert(tmp_path / "run.npy", tmp_path / "out", FLOW, split="valid", trajectories=slice(9, 12))


@pytest.mark.parametrize(("text", "expected"), [("7", slice(None, 7)), ("2:5", slice(2, 5)), ("2:", slice(2, None))])
def test_trajectory_ranges(text: str, expected: slice) -> None:
    assert parse_trajectories(text) == expected


@pytest.mark.parametrize("text", ["a", "1:2:3", "-1", "1:x"])
def test_wrong_trajectory_ranges(text: str) -> None:
    with pytest.raises(UserError, match="a number or a range"):
        parse_trajectories(text)


def test_pdebench_compressible_flow_describes_itself(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    path = tmp_path / "2D_CFD_Rand_M0.1_Eta0.01_Zeta0.01_periodic_Train.hdf5"
    values = {name: random.normal(size=(3, 5, 8, 6)).astype("f4") for name in ("density", "pressure", "Vx", "Vy")}
    with h5py.File(path, "w") as file:
        for name, array in values.items():
            file[name] = array
        file["x-coordinate"] = ((np.arange(8) + 0.5) / 8).astype("f4")
        file["y-coordinate"] = ((np.arange(6) + 0.5) / 3).astype("f4")
        file["t-coordinate"] = (0.05 * np.arange(6)).astype("f4")  # one more than there are frames
    convert(path, tmp_path / "out")
    data = open_dataset(tmp_path / "out")
    assert [(f.name, f.num_channels) for f in data.problem.state] == [
        ("density", 1),
        ("pressure", 1),
        ("velocity", 2),
    ]
    assert data.problem.frame_dt == pytest.approx(0.05, rel=1e-5)
    assert data.problem.grid.periodic == (True, True)
    assert data.problem.grid.extent == pytest.approx((1.0, 2.0), rel=1e-6)
    expected = np.stack([values[name] for name in ("density", "pressure", "Vx", "Vy")], axis=-1)
    assert np.array_equal(data.read(slice(None)), expected)
    walled = import_dataset(path, settings=["periodic=false", "points=cells", "extent=[1.0, 2.0]", "boundary=zero"])
    assert walled.problem.grid.points == ("cells", "cells")
    assert walled.problem.padding == ("zero", "zero")


def test_pdebench_scalar_on_one_axis(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(3, 5, 16)).astype("f4")
    with h5py.File(tmp_path / "1D_Burgers_Sols_Nu0.01.hdf5", "w") as file:
        file["tensor"] = values
        file["x-coordinate"] = ((np.arange(16) + 0.5) / 16).astype("f4")
        file["t-coordinate"] = (0.01 * np.arange(6)).astype("f4")
    data = import_dataset(tmp_path / "1D_Burgers_Sols_Nu0.01.hdf5")
    assert np.array_equal(data.read(slice(None))[..., 0], values)
    assert data.problem.grid.periodic == (True,)


def test_pdebench_darcy_is_a_steady_problem(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    solution, coefficient = (random.normal(size=(3, *lead, 8, 8)).astype("f4") for lead in ((1,), ()))
    path = tmp_path / "2D_DarcyFlow_beta1.0_Train.hdf5"
    with h5py.File(path, "w") as file:
        file["tensor"], file["nu"] = solution, coefficient
        for name in "xy":
            file[f"{name}-coordinate"] = ((np.arange(8) + 0.5) / 8).astype("f4")
    convert(path, tmp_path / "out")
    data = open_dataset(tmp_path / "out")
    assert data.problem.steady
    assert data.problem.boundary == "zero"
    assert data.problem.grid.points == ("cells", "cells")
    assert np.array_equal(data.read(slice(None))[:, 0, ..., 0], solution[:, 0])
    assert np.array_equal(data.read([2, 0], part="static")[..., 0], coefficient[[2, 0]])


def test_pdebench_samples_in_groups(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(3, 5, 8, 6, 2)).astype("f4")
    path = tmp_path / "2D_diff-react_NA_NA.h5"
    with h5py.File(path, "w") as file:
        for index, sample in enumerate(values):
            group = file.create_group(f"{index:04d}")
            group["data"] = sample
            group["grid/t"] = np.linspace(0, 2, 5).astype("f4")
            group["grid/x"] = np.linspace(-1, 1, 8).astype("f4")
            group["grid/y"] = np.linspace(-1, 1, 6).astype("f4")
    convert(path, tmp_path / "train.hdf5")
    data = open_dataset(tmp_path / "train.hdf5")
    assert np.array_equal(data.read(slice(None)), values)
    assert data.problem.boundary == "reflect"
    assert data.problem.frame_dt == pytest.approx(0.5)
    assert data.problem.grid.axis(0)[0] == -1


def test_pdebench_incompressible_flow(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    velocity, particles = (random.normal(size=(2, 4, 8, 8, channels)).astype("f4") for channels in (2, 1))
    with h5py.File(tmp_path / "ns_incom_inhom.h5", "w") as file:
        file["velocity"], file["particles"] = velocity, particles
        file["force"] = np.zeros((2, 8, 8, 2))
        file["t"] = np.tile(np.arange(4) * 0.2, (2, 1))
    data = import_dataset(tmp_path / "ns_incom_inhom.h5")
    assert np.array_equal(data.read(slice(None)), np.concatenate([velocity, particles], axis=-1))
    assert data.problem.frame_dt == pytest.approx(0.2)


def test_our_own_files_can_be_converted_with_other_settings(decay, tmp_path: Path) -> None:
    from factformer.data import generate

    generate(decay, tmp_path / "a", splits=["train"])
    convert(tmp_path / "a" / "train.hdf5", tmp_path / "b", settings=["horizon=1", "frame_dt=2.0"])
    ours, changed = open_dataset(tmp_path / "a"), open_dataset(tmp_path / "b")
    assert torch.equal(ours.read(slice(None)), changed.read(slice(None)))
    assert (changed.problem.horizon, changed.problem.frame_dt) == (1, 2.0)


def test_a_problem_file_in_yaml(frames: np.ndarray, tmp_path: Path) -> None:
    np.save(tmp_path / "run.npy", frames)
    (tmp_path / "flow.yaml").write_text(
        "name: flow\nnum_axes: 2\nstate: {vorticity: 1}\nextent: 6.28\nperiodic: [true, false]\nboundary: reflect\n"
    )
    data = import_dataset(tmp_path / "run.npy", tmp_path / "flow.yaml")
    assert data.problem.padding == ("periodic", "reflect")
    (tmp_path / "flow.yaml").write_text("name: flow\nnum_axes: 2\nstat: {vorticity: 1}\n")
    with pytest.raises(
        UserError, match=r"flow\.yaml: unknown key 'stat'; did you mean 'state'\? Choices: boundary, coor"
    ):
        import_dataset(tmp_path / "run.npy", tmp_path / "flow.yaml")
    with pytest.raises(UserError, match="no problem file"):
        import_dataset(tmp_path / "run.npy", tmp_path / "none.yaml")


def test_bad_files_are_named_and_leave_nothing_behind(frames: np.ndarray, tmp_path: Path) -> None:
    out = tmp_path / "out"
    np.save(tmp_path / "good.npy", frames)
    bad = frames.copy()
    bad[2, 3, 1, 1] = np.nan
    np.save(tmp_path / "nan.npy", bad)
    content = (tmp_path / "good.npy").read_bytes()
    (tmp_path / "short.npy").write_bytes(content[: len(content) // 2])
    (tmp_path / "short.npz").write_bytes(b"PK\x03\x04 no archive")
    (tmp_path / "short.mat").write_bytes(b"MATLAB 5.0 MAT-file" + b" " * 40)
    (tmp_path / "text.csv").write_text("1,2,3")
    for name, message in [
        ("nan.npy", "nan.npy: trajectory 2 holds NaN or infinite values in frame 3"),
        ("short.npy", "short.npy is damaged"),
        ("short.npz", "short.npz is damaged"),
        ("short.mat", "not a readable MATLAB file"),
        ("text.csv", "must end in one of"),
        ("none.npy", "no file"),
    ]:
        with pytest.raises(UserError, match=message) as error:
            convert(tmp_path / name, out, FLOW)
        assert "\n" not in str(error.value)
        assert not out.exists() or not list(out.iterdir())
    with pytest.raises(UserError, match="does not say what it holds"):
        convert(tmp_path / "good.npy", out)
    with pytest.raises(UserError, match="does not fit array"):
        convert(tmp_path / "good.npy", out, FLOW, layout="nxyt")
    with pytest.raises(UserError, match="does not look like"):
        convert(tmp_path / "good.npy", out, {**FLOW, "num_axes": 1, "extent": 1.0})
    with pytest.raises(UserError, match="has 1 channels, needs 3"):
        convert(tmp_path / "good.npy", out, BOX)
    convert(tmp_path / "good.npy", out, FLOW)
    with pytest.raises(UserError, match="exists already"):
        convert(tmp_path / "good.npy", out, FLOW)
    convert(tmp_path / "good.npy", out, FLOW, overwrite=True)
