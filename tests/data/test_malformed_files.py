"""Forty files that are damaged, dangerous or ambiguous: each one clear line, exit code 2, and nothing is written."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
import xarray
from scipy.io import savemat
from vtk_files import VtkWriter, write_collection
from well_files import write_well_file

from factformer.cli import main

FLOW = {"name": "flow", "num_axes": 2, "state": {"u": 1}, "num_context_frames": 2, "periodic": True}
FRAMES = np.random.default_rng(0).normal(size=(2, 7, 6, 5)).astype("f4")
PLAIN = {"u": (("sample", "time", "x", "y"), FRAMES)}


def saved(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def cut(path: Path, length: int) -> Path:
    return saved(path, path.read_bytes()[:length])


def npy(path: Path, values: np.ndarray) -> Path:
    np.save(path, values)
    return path


def npz(path: Path, **arrays: np.ndarray) -> Path:
    np.savez(path, **arrays)
    return path


def netcdf(path: Path, variables: dict | None = None, engine: str = "h5netcdf", **options) -> Path:
    xarray.Dataset(variables or PLAIN, **options).to_netcdf(path, engine=engine)
    return path


def zarr(path: Path, variables: dict | None = None, **options) -> Path:
    xarray.Dataset(variables or PLAIN, **options).to_zarr(path, zarr_format=2, consolidated=False)
    return path


def hdf5(path: Path, **arrays: np.ndarray) -> Path:
    with h5py.File(path, "w") as file:
        for name, values in arrays.items():
            file[name] = values
    return path


CASES: dict[str, tuple[Callable[[Path], Path], str]] = {
    "npy_cut_in_its_header": (
        lambda folder: cut(npy(folder / "a.npy", FRAMES), 20),
        "damaged, truncated or holds objects",
    ),
    "npy_cut_in_its_values": (lambda folder: cut(npy(folder / "a.npy", FRAMES), -400), "holds less than its shape"),
    "npy_of_objects": (lambda folder: npy(folder / "a.npy", np.array([{"u": 1}], dtype=object)), "objects"),
    "npy_of_complex_numbers": (lambda folder: npy(folder / "a.npy", FRAMES * 1j), "complex numbers"),
    "npy_with_too_few_axes": (lambda folder: npy(folder / "a.npy", FRAMES[0, 0, 0]), "does not look like"),
    "npz_cut_in_half": (lambda folder: cut(npz(folder / "a.npz", u=FRAMES), -300), "is damaged"),
    "npz_without_the_field": (lambda folder: npz(folder / "a.npz", v=FRAMES, w=FRAMES), "has no array 'u'"),
    "npz_with_uneven_times": (
        lambda folder: npz(folder / "a.npz", u=FRAMES, t=np.arange(7.0) ** 2),
        "not evenly spaced",
    ),
    "npz_with_too_few_times": (
        lambda folder: npz(folder / "a.npz", u=FRAMES, t=np.arange(5.0)),
        "its times have shape (5,), for 7 frames",
    ),
    "npz_with_two_times": (
        lambda folder: npz(folder / "a.npz", u=FRAMES, t=np.arange(7.0), time=np.arange(7.0)),
        "several arrays of times",
    ),
    "mat_of_noise": (
        lambda folder: saved(folder / "a.mat", np.random.default_rng(1).bytes(4000)),
        "not a readable MATLAB file",
    ),
    "hdf5_of_noise": (
        lambda folder: saved(folder / "a.hdf5", np.random.default_rng(2).bytes(4000)),
        "not an HDF5 file",
    ),
    "hdf5_cut": (lambda folder: cut(hdf5(folder / "a.hdf5", u=FRAMES), 3000), "truncated"),
    "pdebench_samples_that_differ": (
        lambda folder: hdf5(
            folder / "none.h5", **{"0000/data": FRAMES[0, ..., None], "0001/data": FRAMES[0, :5, ..., None]}
        ),
        "of different shapes",
    ),
    "netcdf_of_noise": (
        lambda folder: saved(folder / "a.nc", np.random.default_rng(3).bytes(4000)),
        "is not a NetCDF file",
    ),
    "netcdf3_cut": (lambda folder: cut(netcdf(folder / "a.nc", engine="scipy"), 60), "readable NetCDF file"),
    "netcdf4_cut": (lambda folder: cut(netcdf(folder / "a.nc"), 2000), "truncated file"),
    "netcdf_without_a_word_on_its_axes": (
        lambda folder: netcdf(folder / "none.nc"),
        "does not say whether its axes are periodic",
    ),
    "netcdf_with_unclear_dimensions": (
        lambda folder: netcdf(folder / "a.nc", {"u": (("dim_0", "dim_1", "dim_2", "dim_3"), FRAMES)}),
        "the axes of u of shape (2, 7, 6, 5) are not clear from their names",
    ),
    "netcdf_with_uneven_times": (
        lambda folder: netcdf(folder / "a.nc", coords={"time": np.arange(7.0) ** 2}),
        "not evenly spaced in time",
    ),
    "netcdf_without_a_time": (
        lambda folder: netcdf(folder / "none.nc", {"u": (("x", "y"), FRAMES[0, 0])}, attrs={"periodic": 1}),
        "does not say what it holds",
    ),
    "netcdf_with_falling_coordinates": (
        lambda folder: netcdf(folder / "a.nc", coords={"x": np.arange(6.0)[::-1], "y": np.arange(5.0)}),
        "must be strictly increasing",
    ),
    "vtk_with_entities": (
        lambda folder: saved(
            folder / "a.vti", b'<!DOCTYPE x [<!ENTITY a "b">]><VTKFile type="ImageData">&a;</VTKFile>'
        ),
        "defines entities",
    ),
    "vtk_cut": (
        lambda folder: cut(VtkWriter().write(folder / "a.vti", {"u": FRAMES[0, 0]}), 400),
        "not a VTK XML file, or truncated",
    ),
    "vtk_of_another_kind": (
        lambda folder: saved(folder / "a.vti", b'<VTKFile type="UnstructuredGrid"><UnstructuredGrid/></VTKFile>'),
        "holds 'UnstructuredGrid'",
    ),
    "vtk_collection_that_leads_out": (
        lambda folder: write_collection(folder / "a.pvd", {"../../etc/secret.vti": 0.0}),
        "outside of its folder",
    ),
}
"""A maker of a bad file by its name, with words of the line that it must give; a problem goes with all but some."""


def case(words: str) -> Callable[[Callable[[Path], Path]], Callable[[Path], Path]]:
    """Add a maker to the table."""

    def keep(make: Callable[[Path], Path]) -> Callable[[Path], Path]:
        CASES[make.__name__] = (make, words)
        return make

    return keep


@case("trajectory 1 holds NaN")
def npy_with_nan(folder: Path) -> Path:
    values = FRAMES.copy()
    values[1, 3, 2, 2] = np.nan
    np.save(folder / "a.npy", values)
    return folder / "a.npy"


@case("is no array")
def npz_with_a_text(folder: Path) -> Path:
    with zipfile.ZipFile(folder / "a.npz", "w") as archive:
        archive.writestr("u.txt", "1 2 3")
    return folder / "a.npz"


@case("holds no array of numbers")
def mat_with_a_text(folder: Path) -> Path:
    savemat(folder / "a.mat", {"u": "text"})
    return folder / "a.mat"


@case("the axes of array u of shape (5, 6, 7, 2) are not clear")
def mat_v73_without_an_order(folder: Path) -> Path:
    with h5py.File(folder / "a.mat", "w", userblock_size=512) as file:
        file["u"] = FRAMES
        file["u"].attrs["MATLAB_class"] = np.bytes_("single")
    return folder / "a.mat"


@case("leads to other files")
def hdf5_with_an_external_link(folder: Path) -> Path:
    hdf5(folder / "b.hdf5", u=FRAMES)
    with h5py.File(folder / "a.hdf5", "w") as file:
        file["u"] = h5py.ExternalLink("b.hdf5", "/u")
    return folder / "a.hdf5"


@case("never written in full")
def hdf5_with_missing_chunks(folder: Path) -> Path:
    with h5py.File(folder / "a.hdf5", "w") as file:
        file.create_dataset("u", shape=FRAMES.shape, dtype="f4", chunks=(1, 1, 6, 5))
    return folder / "a.hdf5"


@case("not evenly spaced in time: interpolate them to even times before, or correct dimensions/time")
def the_well_with_uneven_times(folder: Path) -> Path:
    write_well_file(folder / "none.hdf5")
    with h5py.File(folder / "none.hdf5", "r+") as file:
        file["dimensions/time"][-1] = 50.0
    return folder / "none.hdf5"


@case("leads to other files")
def netcdf4_with_an_external_link(folder: Path) -> Path:
    path = netcdf(folder / "a.nc")
    with h5py.File(path, "r+") as file:
        file["more"] = h5py.ExternalLink("b.nc", "/u")
    return path


@case("is no zarr store")
def zarr_without_metadata(folder: Path) -> Path:
    (folder / "a.zarr").mkdir()
    return folder / "a.zarr"


@case("values packed with 'pickle' are not read")
def zarr_packed_as_pickle(folder: Path) -> Path:
    path = zarr(folder / "a.zarr")
    values = json.loads((path / "u" / ".zarray").read_text())
    (path / "u" / ".zarray").write_text(json.dumps({**values, "filters": [{"id": "pickle"}]}))
    return path


@case("values packed with 'pickle' are not read")
def zarr_packed_as_pickle_by_its_summary(folder: Path) -> Path:
    path = folder / "a.zarr"
    xarray.Dataset(PLAIN).to_zarr(path, zarr_format=2, consolidated=True)
    summary = json.loads((path / ".zmetadata").read_text())
    summary["metadata"]["u/.zarray"]["filters"] = [{"id": "pickle"}]
    (path / ".zmetadata").write_text(json.dumps(summary))
    return path


@case("is a link")
def zarr_with_a_link_out_of_it(folder: Path) -> Path:
    path = zarr(folder / "a.zarr")
    (path / "v").symlink_to(folder)
    return path


@case("is not valid JSON")
def zarr_with_broken_metadata(folder: Path) -> Path:
    path = zarr(folder / "a.zarr")
    (path / "u" / ".zarray").write_text('{"shape": [2,')
    return path


@case("holds 10 numbers, its grid needs 30")
def vtk_with_too_few_numbers(folder: Path) -> Path:
    path = VtkWriter().write(folder / "a.vti", {"u": np.zeros((6, 5), "f4")})
    text = path.read_text().replace(" ".join(["0.0"] * 30), " ".join(["0.0"] * 10))
    path.write_text(text)
    return path


@case("one is missing")
def folder_with_a_frame_missing(folder: Path) -> Path:
    (folder / "a").mkdir()
    for index in (0, 1, 2, 4):
        np.save(folder / "a" / f"u{index}.npy", FRAMES[0, index])
    return folder / "a"


@case("as in the first frame; got (4, 5)")
def folder_with_another_grid_in_one_frame(folder: Path) -> Path:
    (folder / "a").mkdir()
    for index in range(4):
        np.save(folder / "a" / f"u{index}.npy", FRAMES[0, index][: 4 if index == 2 else 6])
    return folder / "a"


@case("several formats")
def folder_of_two_formats(folder: Path) -> Path:
    (folder / "a").mkdir()
    np.save(folder / "a" / "u0.npy", FRAMES[0, 0])
    VtkWriter().write(folder / "a" / "u1.vti", {"u": FRAMES[0, 1]})
    return folder / "a"


@case("holds no frames")
def folder_without_frames(folder: Path) -> Path:
    (folder / "a").mkdir()
    saved(folder / "a" / "notes.txt", b"nothing")
    return folder / "a"


def test_there_are_forty() -> None:
    assert len(CASES) >= 40


@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_bad_file_is_one_clear_line(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make, words = CASES[name]
    (tmp_path / "in").mkdir()
    path = make(tmp_path / "in")
    (tmp_path / "flow.yaml").write_text(json.dumps(FLOW), encoding="utf-8")
    problem = [] if path.stem == "none" else ["--problem", str(tmp_path / "flow.yaml")]
    with pytest.raises(SystemExit) as stopped:
        main(["convert", str(path), *problem, "--out", str(tmp_path / "out" / "train.hdf5")])
    said = [line for line in capsys.readouterr().err.splitlines() if "convert " not in line[:8]]
    assert stopped.value.code == 2
    assert len(said) == 1 and words in said[0] and len(said[0]) < 500, said
    assert not any((tmp_path / "out").rglob("*"))
