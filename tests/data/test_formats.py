"""NetCDF, zarr, VTK and folders of frames: what they hold arrives, with names, grid and times."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
import xarray
from vtk_files import VtkWriter, write_collection

import factformer
from factformer import Grid
from factformer.data import convert, import_dataset, open_dataset
from factformer.data.formats.foreign import xarray_dataset
from factformer.data.formats.parts import Parts
from factformer.data.formats.vtk import read_grid
from factformer.errors import UserError
from factformer.prediction.context import read_context

TINY = {"model.dim": 8, "model.depth": 1, "model.heads": 2, "model.head_dim": 4, "model.kernel_dim": 4}
FLOW = {"name": "flow", "num_axes": 2, "state": {"u": 1}, "num_context_frames": 2, "periodic": True}


def ocean(periodic: str | None = "false", **coordinates) -> xarray.Dataset:
    random = np.random.default_rng(0)
    y, x = np.array([0.0, 0.1, 0.3, 0.6, 1.0, 1.5]), 0.2 * np.arange(5)
    return xarray.Dataset(
        {
            "height": (("member", "time", "lat", "lon"), random.normal(size=(3, 8, 6, 5)), {"units": "m"}),
            "wind": (("member", "time", "lat", "lon", "component"), random.normal(size=(3, 8, 6, 5, 2))),
            "depth": (("lat", "lon"), random.normal(size=(6, 5))),
            "slope": (("member",), np.array([1.0, 2.0, 3.0])),
            "total": (("time",), np.arange(8.0)),
        },
        coords={"time": ("time", 6.0 * np.arange(8), {"units": "hours since 2000-01-01"}), "lat": y, "lon": x}
        | coordinates,
        attrs={} if periodic is None else {"periodic": periodic},
    )


@pytest.mark.parametrize("kind", ["netcdf4", "netcdf3", "zarr2", "zarr3"])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_names_coordinates_and_units_become_a_problem(kind: str, tmp_path: Path) -> None:
    given = ocean()
    path = tmp_path / ("sea.zarr" if "zarr" in kind else "sea.nc")
    if "zarr" in kind:
        given.to_zarr(path, zarr_format=int(kind[-1]))
    else:
        given.to_netcdf(path, engine="h5netcdf" if kind == "netcdf4" else "scipy")
    stored = open_dataset(convert(path, tmp_path / "train.hdf5"))
    problem = stored.problem
    assert {f.name: f.num_channels for f in problem.state} == {"height": 1, "wind": 2}
    height, wind = (problem.state_slices[name] for name in ("height", "wind"))
    assert ([f.name for f in problem.static], problem.parameters) == (["depth"], ("slope",))
    assert np.allclose(problem.grid.axis(0), given["lat"]) and np.allclose(problem.grid.axis(1), given["lon"])
    assert problem.grid.periodic == (False, False) and problem.grid.is_even(1) and not problem.grid.is_even(0)
    assert (problem.frame_dt, problem.boundary) == (6.0, "reflect")
    assert np.allclose(stored.read([1], slice(2, 4))[..., height], given["height"].values[1:2, 2:4, ..., None])
    assert np.allclose(stored.read([2])[..., wind], given["wind"][2:])
    assert np.allclose(stored.read([0], part="static")[..., 0], given["depth"].values[None])
    assert stored.provenance["left_out"] == ["total"] and stored.provenance["assumed"] == ["boundary"]
    assert stored.provenance["units"] == {"height": "m", "time": "hours since 2000-01-01"}


@pytest.mark.parametrize("said", ["[false, true]", "False,True", "0 1", [0, 1], [np.False_, np.True_], ["no", "yes"]])
def test_one_attribute_may_speak_of_each_axis(said: object) -> None:
    given = ocean(None)
    given.attrs["periodic"] = said
    assert xarray_dataset(given, {}).problem.grid.periodic == (False, True)


def test_whether_axes_are_periodic_must_be_said(tmp_path: Path) -> None:
    ocean(None).to_netcdf(tmp_path / "sea.nc", engine="h5netcdf")
    with pytest.raises(UserError, match=r"does not say whether its axes are periodic: add --set periodic=true"):
        import_dataset(tmp_path / "sea.nc")
    assert import_dataset(tmp_path / "sea.nc", settings=["periodic=false"]).problem.grid.periodic == (False, False)
    circular = ocean(None, lon=("lon", 72.0 * np.arange(5), {"topology": "circular"}))
    circular["lat"].attrs["periodic"] = 0
    circular.to_netcdf(tmp_path / "globe.nc", engine="h5netcdf")
    grid = import_dataset(tmp_path / "globe.nc").problem.grid
    assert grid.periodic == (False, True) and grid.extent[1] == pytest.approx(360.0)


@pytest.mark.parametrize("package", ["xarray", "h5netcdf"])
def test_a_missing_package_names_its_extra(package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ocean().to_netcdf(tmp_path / "sea.nc", engine="h5netcdf")
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UserError, match=rf"this needs the package {package}: pip install 'factformer\[xarray\]'"):
        import_dataset(tmp_path / "sea.nc")


def test_fit_takes_xarray(tmp_path: Path) -> None:
    given = ocean()
    options = {"updates": 1, "settings": TINY, "progress": False}
    fitted = factformer.fit(given, valid=given.isel(member=[0]), fields=["height"], frame_dt=0.25, **options)
    assert [f.name for f in fitted.problem.state] == ["height"] and fitted.problem.frame_dt == 0.25
    assert fitted.problem.parameters == ("slope",)
    moments = np.datetime64("2000-01-01", "ns") + np.arange(8) * np.timedelta64(30, "s")
    dates = given["height"].assign_coords(time=moments)
    assert factformer.fit(dates, grid=Grid((6, 5), 1.0, True), **options).problem.frame_dt == 30.0
    said = given["height"].assign_attrs(periodic=[0, 0])
    assert factformer.fit(said, **options).problem.grid.periodic == (False, False)
    with pytest.raises(UserError, match="does not say whether its axes are periodic: give grid="):
        factformer.fit(ocean(None)["height"], **options)
    with pytest.raises(UserError, match="has no name"):
        factformer.fit(given["height"].rename(None), **options)
    with pytest.raises(UserError, match="unknown variable over time 'hight'; did you mean 'height'"):
        factformer.fit(ocean(), fields=["hight"], **options)
    with pytest.raises(UserError, match="put static into a Dataset"):
        factformer.fit(given, static={"depth": given["depth"].values}, **options)


FORMS = [
    VtkWriter(),
    *(VtkWriter(f, compressed=c, header=h) for f, c, h in itertools.product(
        ("binary", "appended-raw", "appended-base64"), (False, True), ("UInt32", "UInt64"))),
    VtkWriter("binary", split=True),
]  # fmt: skip


@pytest.mark.parametrize("writer", FORMS, ids=lambda w: f"{w.form}-{w.compressed}-{w.header}-{w.split}")
def test_every_encoding_of_vtk(writer: VtkWriter, tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    fields = {"p": random.normal(size=(4, 3, 2)).astype("f4"), "U": random.normal(size=(4, 3, 2, 3))}
    writer.appended = b""
    axes = [np.array([0, 1, 3, 7.0]), np.array([0, 1, 5.0]), np.array([0.5, 1.0])]
    grid = read_grid(writer.write(tmp_path / "a.vtr", fields, axes=axes, shape=(4, 3, 2), time=2.5))
    assert all(np.array_equal(grid.fields[name], values) for name, values in fields.items())
    assert all(np.array_equal(a, b) for a, b in zip(grid.axes, axes, strict=True)) and grid.time == 2.5


def test_a_series_of_vtk_files(tmp_path: Path) -> None:
    frames = np.random.default_rng(2).normal(size=(12, 6, 5)).astype("f4")
    velocity = np.random.default_rng(3).normal(size=(12, 6, 5, 3)).astype("f4")
    for index in range(12):  # natural order: 9 comes before 10
        fields = {"p": frames[index], "U": velocity[index]}
        VtkWriter().write(tmp_path / "run" / f"out_{index}.vti", fields, time=0.5 * index)
    data = import_dataset(tmp_path / "run", settings=["periodic=true"])
    assert np.array_equal(data.read([0])[0, ..., 0], frames) and np.array_equal(data.read([0])[0, ..., 1:], velocity)
    assert data.problem.frame_dt == 0.5 and data.problem.grid == Grid((6, 5), (6.0, 5.0), True)
    plane = {**FLOW, "state": {"velocity": 2}}
    two = import_dataset(tmp_path / "run", plane, fields={"velocity": "U.0,U.1"})
    assert np.array_equal(two.read([0], slice(9, 11))[0], velocity[9:11, ..., :2])
    assert two.provenance["left_out"] == ["p", "U.2"]
    pvd = write_collection(tmp_path / "run.pvd", {f"run/out_{index}.vti": 0.1 * index for index in (3, 1, 2)})
    named = import_dataset(pvd, settings=["periodic=true"])
    assert np.array_equal(named.read([0])[0, ..., 0], frames[1:4]) and named.problem.frame_dt == pytest.approx(0.1)
    cells = VtkWriter().write(tmp_path / "cells.vti", {"p": frames[0]}, place="CellData")
    assert read_grid(cells).axes[0].tolist() == [0.5, 1.5, 2.5, 3.5, 4.5, 5.5]


def test_folders_of_frames(tmp_path: Path) -> None:
    frames = np.random.default_rng(4).normal(size=(2, 11, 6, 5)).astype("f4")
    for trajectory, index in itertools.product(range(2), range(11)):
        folder = tmp_path / "runs" / f"case{trajectory}"
        folder.mkdir(parents=True, exist_ok=True)
        np.save(folder / f"u{index}.npy", frames[trajectory, index])
    data = import_dataset(tmp_path / "runs", FLOW)
    assert np.array_equal(data.read([1, 0])[..., 0], frames[[1, 0]])
    assert data.provenance["assumed"] == ["extent", "points", "frame_dt"]
    np.save(tmp_path / "runs" / "case0" / "time.npy", 0.25 * np.arange(11))
    single = import_dataset(tmp_path / "runs" / "case0", FLOW)
    assert single.num_trajectories == 1 and single.problem.frame_dt == 0.25
    assert np.array_equal(single.read([0], slice(8, 11))[0, ..., 0], frames[0, 8:])
    for index in range(3):
        np.savez(tmp_path / f"f{index}.npz", u=frames[0, index], v=frames[1, index])
    (tmp_path / "runs").rename(tmp_path.parent / f"{tmp_path.name}-away")
    both = import_dataset(tmp_path, {**FLOW, "state": {"u": 1, "v": 1}})
    assert np.array_equal(both.read([0])[0], np.moveaxis(frames[:, :3], 0, -1))
    context = read_context(tmp_path, both.problem)
    assert np.array_equal(context.batch.context[0], np.moveaxis(frames[:, 1:3], 0, -1))


def test_a_folder_without_frames_says_what_to_do_with_its_files(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    runs.mkdir()
    for index in range(2):
        ocean().to_netcdf(runs / f"run_{index}.nc", engine="h5netcdf")
    with pytest.raises(UserError, match=r"its 2 \.nc files one by one, each with --split .*data/train/run_0\.hdf5"):
        import_dataset(runs, FLOW)
    sea = tmp_path / "sea"
    convert(runs / "run_0.nc", sea / "train" / "run_0.hdf5")
    problem = open_dataset(convert(runs / "run_1.nc", sea / "train" / "run_1.hdf5")).problem
    assert open_dataset(sea, "train").num_trajectories == 6
    for name in ("train", "test"):
        convert(runs / "run_0.nc", tmp_path / "flat" / f"{name}.hdf5")
    for folder, named in ((sea, r"train.run_0\.hdf5"), (tmp_path / "flat", r"flat.test\.hdf5")):
        with pytest.raises(UserError, match=f"of a dataset, name a file: .*{named}$"):
            read_context(folder, problem)
    with pytest.raises(UserError, match=r"no other parts; numbers are given by --set parameters\.slope=1\.5$"):
        read_context(tmp_path / "flat" / "test.hdf5", problem, parts=Parts(parameters={"slope": "1.5"}))


def test_runs_stacked_in_a_folder_name_the_layout_that_fits(tmp_path: Path) -> None:
    runs = np.random.default_rng(7).normal(size=(3, 7, 6, 5)).astype("f4")
    for index, run in enumerate(runs):
        np.savez(tmp_path / f"run_{index}.npz", u=run)
    with pytest.raises(UserError, match=r"has 5 channels, needs 1; read as --layout ntxy, it would fit"):
        import_dataset(tmp_path, FLOW)
    assert np.array_equal(import_dataset(tmp_path, FLOW, layout="ntxy").read([2])[0, ..., 0], runs[2])


@pytest.mark.parametrize("name", ["u.npz", "u.nc"])
def test_a_file_to_convert_is_no_dataset(name: str, tmp_path: Path) -> None:
    if name == "u.npz":
        np.savez(tmp_path / name, u=np.zeros((2, 7, 6, 5)))
    else:
        ocean().to_netcdf(tmp_path / name, engine="h5netcdf")
    with pytest.raises(
        UserError, match="`factformer convert` reads npy, npz, mat, PDEBench, NetCDF, zarr and VTK files"
    ):
        open_dataset(tmp_path / name)


def test_uneven_frames_are_refused_or_interpolated(tmp_path: Path) -> None:
    times = np.array([0.0, 0.5, 1.0, 2.0, 3.0, 3.5, 4.0])
    random = np.random.default_rng(5)
    contents = {"u": random.normal(size=(2, 7, 6, 5)), "heat": random.normal(size=(2, 7, 6, 5)), "time": times}
    np.savez(tmp_path / "run.npz", **contents)
    for settings in ([], ["frame_dt=1"]):
        with pytest.raises(UserError, match=r"not evenly spaced in time: interpolate them .*--resample-time"):
            import_dataset(tmp_path / "run.npz", FLOW, settings=settings)
    parts = Parts(forcing={"heat": "heat"})
    data = import_dataset(tmp_path / "run.npz", FLOW, parts=parts, resample_time=True)
    even = np.linspace(0, 4, 7)
    for part, name in (("state", "u"), ("forcing", "heat")):
        wanted = np.apply_along_axis(lambda line: np.interp(even, times, line), 1, contents[name])
        assert np.allclose(data.read([1, 0], part=part)[..., 0], wanted[[1, 0]], atol=1e-6)
        assert np.allclose(data.read([1], slice(3, 5), part)[..., 0], wanted[[1], 3:5], atol=1e-6)
    assert data.problem.frame_dt == pytest.approx(4 / 6)
    assert data.provenance["resampled"] == "frames were interpolated to every 0.666667"


def test_frames_are_interpolated_to_the_interval_that_the_problem_says(tmp_path: Path) -> None:
    uneven, even = np.array([0.0, 0.5, 1.0, 2.0, 3.0, 3.5, 4.0]), 0.5 * np.arange(7)
    u = np.random.default_rng(5).normal(size=(2, 7, 6, 5))
    for times, frame_dt in ((uneven, 0.5), (uneven, 1.5), (even, 1.0)):
        np.savez(tmp_path / "run.npz", u=u, time=times)
        data = import_dataset(tmp_path / "run.npz", {**FLOW, "frame_dt": frame_dt}, resample_time=True)
        wanted = np.arange(0, times[-1] + 1e-6, frame_dt)
        expected = np.apply_along_axis(lambda line: np.interp(wanted, times, line), 1, u)  # noqa: B023
        assert (data.num_frames, data.problem.frame_dt) == (len(wanted), frame_dt)
        assert np.allclose(data.read([0, 1])[..., 0], expected, atol=1e-6)
    for frame_dt in (5.0, 1e-9):
        with pytest.raises(UserError, match="7 frames, from time 0 to 3, cannot be interpolated to every frame_dt"):
            import_dataset(tmp_path / "run.npz", {**FLOW, "frame_dt": frame_dt}, resample_time=True)


@pytest.mark.parametrize("resample", [False, True])
@pytest.mark.parametrize("said", [{}, {"frame_dt": 1.0}])
def test_times_that_decrease_or_are_too_few_are_always_refused(said: dict, resample: bool, tmp_path: Path) -> None:
    u = np.random.default_rng(5).normal(size=(2, 7, 6, 5))
    for times, message in (
        (np.arange(7.0)[::-1], "times do not increase from frame to frame: correct them"),
        (np.arange(6.0), r"times have shape \(6,\), for 7 frames: correct them"),
        (np.arange(8.0), r"times have shape \(8,\), for 7 frames: correct them"),
    ):
        np.savez(tmp_path / "run.npz", u=u, time=times)
        with pytest.raises(UserError, match=message):
            import_dataset(tmp_path / "run.npz", {**FLOW, **said}, resample_time=resample)


def test_external_links_of_plain_arrays_are_followed_when_allowed(tmp_path: Path) -> None:
    values = np.random.default_rng(6).normal(size=(2, 5, 6, 5)).astype("f4")
    with h5py.File(tmp_path / "far.h5", "w") as file:
        file["fields/u"], file["u"] = values, values + 1
    with h5py.File(tmp_path / "near.h5", "w") as file:
        file["u"] = h5py.ExternalLink("far.h5", "/u")
        file["more"] = h5py.ExternalLink("far.h5", "/fields")
    with pytest.raises(UserError, match="leads to other files"):
        import_dataset(tmp_path / "near.h5", FLOW)
    data = import_dataset(tmp_path / "near.h5", FLOW, fields={"u": "u"}, allow_external=True)
    assert np.array_equal(data.read([0])[..., 0], values[:1] + 1)
    more = import_dataset(tmp_path / "near.h5", FLOW, fields={"u": "more/u"}, allow_external=True)
    assert np.array_equal(more.read([0])[..., 0], values[:1])


def test_numbers_that_float32_keeps_as_zero_are_named(tmp_path: Path) -> None:
    values = np.random.default_rng(7).normal(size=(2, 5, 6, 5, 2))
    for scale in ((1e-60, 1e-60), (1.0, 1e-60)):
        np.save(tmp_path / "run.npy", values * np.array(scale))
        problem = {**FLOW, "state": {"u": 2}}
        with pytest.raises(UserError, match="which float32 keeps as zero; give them in another unit"):
            convert(tmp_path / "run.npy", tmp_path / "train.hdf5", problem)
        with pytest.raises(UserError, match="which float32 keeps as zero"):
            factformer.fit(values * np.array(scale), grid=Grid((6, 5), 1.0, True), fields={"u": 2}, updates=1)
    decayed = values.copy()
    decayed[1] *= 1e-60  # one trajectory that has come to rest is no reason to complain
    np.save(tmp_path / "run.npy", decayed)
    assert convert(tmp_path / "run.npy", tmp_path / "train.hdf5", {**FLOW, "state": {"u": 2}}).exists()
