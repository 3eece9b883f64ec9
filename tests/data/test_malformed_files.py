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
CASES: dict[str, tuple[Callable[[Path], Path], str]] = {}


def case(words: str) -> Callable[[Callable[[Path], Path]], Callable[[Path], Path]]:
    """Register a maker of a bad file with words of the line that it must give; a problem goes with all but some."""

    def keep(make: Callable[[Path], Path]) -> Callable[[Path], Path]:
        CASES[make.__name__] = (make, words)
        return make

    return keep


def saved(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
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


@case("damaged, truncated or holds objects")
def npy_cut_in_its_header(folder: Path) -> Path:
    np.save(folder / "a.npy", FRAMES)
    return saved(folder / "a.npy", (folder / "a.npy").read_bytes()[:20])


@case("holds less than its shape")
def npy_cut_in_its_values(folder: Path) -> Path:
    np.save(folder / "a.npy", FRAMES)
    return saved(folder / "a.npy", (folder / "a.npy").read_bytes()[:-400])


@case("objects")
def npy_of_objects(folder: Path) -> Path:
    np.save(folder / "a.npy", np.array([{"u": 1}], dtype=object))
    return folder / "a.npy"


@case("complex numbers")
def npy_of_complex_numbers(folder: Path) -> Path:
    np.save(folder / "a.npy", FRAMES * 1j)
    return folder / "a.npy"


@case("does not look like")
def npy_with_too_few_axes(folder: Path) -> Path:
    np.save(folder / "a.npy", FRAMES[0, 0, 0])
    return folder / "a.npy"


@case("trajectory 1 holds NaN")
def npy_with_nan(folder: Path) -> Path:
    values = FRAMES.copy()
    values[1, 3, 2, 2] = np.nan
    np.save(folder / "a.npy", values)
    return folder / "a.npy"


@case("is damaged")
def npz_cut_in_half(folder: Path) -> Path:
    np.savez(folder / "a.npz", u=FRAMES)
    return saved(folder / "a.npz", (folder / "a.npz").read_bytes()[:-300])


@case("is no array")
def npz_with_a_text(folder: Path) -> Path:
    with zipfile.ZipFile(folder / "a.npz", "w") as archive:
        archive.writestr("u.txt", "1 2 3")
    return folder / "a.npz"


@case("has no array 'u'")
def npz_without_the_field(folder: Path) -> Path:
    np.savez(folder / "a.npz", v=FRAMES, w=FRAMES)
    return folder / "a.npz"


@case("not evenly spaced")
def npz_with_uneven_times(folder: Path) -> Path:
    np.savez(folder / "a.npz", u=FRAMES, t=np.arange(7.0) ** 2)
    return folder / "a.npz"


@case("its times have shape (5,), for 7 frames")
def npz_with_too_few_times(folder: Path) -> Path:
    np.savez(folder / "a.npz", u=FRAMES, t=np.arange(5.0))
    return folder / "a.npz"


@case("several arrays of times")
def npz_with_two_times(folder: Path) -> Path:
    np.savez(folder / "a.npz", u=FRAMES, t=np.arange(7.0), time=np.arange(7.0))
    return folder / "a.npz"


@case("not a readable MATLAB file")
def mat_of_noise(folder: Path) -> Path:
    return saved(folder / "a.mat", np.random.default_rng(1).bytes(4000))


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


@case("not an HDF5 file")
def hdf5_of_noise(folder: Path) -> Path:
    return saved(folder / "a.hdf5", np.random.default_rng(2).bytes(4000))


@case("truncated")
def hdf5_cut(folder: Path) -> Path:
    path = hdf5(folder / "a.hdf5", u=FRAMES)
    return saved(path, path.read_bytes()[:3000])


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


@case("of different shapes")
def pdebench_samples_that_differ(folder: Path) -> Path:
    return hdf5(folder / "none.h5", **{"0000/data": FRAMES[0, ..., None], "0001/data": FRAMES[0, :5, ..., None]})


@case("not evenly spaced in time")
def the_well_with_uneven_times(folder: Path) -> Path:
    write_well_file(folder / "none.hdf5")
    with h5py.File(folder / "none.hdf5", "r+") as file:
        file["dimensions/time"][2] = 50.0
    return folder / "none.hdf5"


@case("is not a NetCDF file")
def netcdf_of_noise(folder: Path) -> Path:
    return saved(folder / "a.nc", np.random.default_rng(3).bytes(4000))


@case("readable NetCDF file")
def netcdf3_cut(folder: Path) -> Path:
    path = netcdf(folder / "a.nc", engine="scipy")
    return saved(path, path.read_bytes()[:60])


@case("truncated file")
def netcdf4_cut(folder: Path) -> Path:
    path = netcdf(folder / "a.nc")
    return saved(path, path.read_bytes()[:2000])


@case("leads to other files")
def netcdf4_with_an_external_link(folder: Path) -> Path:
    path = netcdf(folder / "a.nc")
    with h5py.File(path, "r+") as file:
        file["more"] = h5py.ExternalLink("b.nc", "/u")
    return path


@case("does not say whether its axes are periodic")
def netcdf_without_a_word_on_its_axes(folder: Path) -> Path:
    return netcdf(folder / "none.nc")


@case("the axes of u of shape (2, 7, 6, 5) are not clear from their names")
def netcdf_with_unclear_dimensions(folder: Path) -> Path:
    return netcdf(folder / "a.nc", {"u": (("dim_0", "dim_1", "dim_2", "dim_3"), FRAMES)})


@case("not evenly spaced in time")
def netcdf_with_uneven_times(folder: Path) -> Path:
    return netcdf(folder / "a.nc", coords={"time": np.arange(7.0) ** 2})


@case("does not say what it holds")
def netcdf_without_a_time(folder: Path) -> Path:
    return netcdf(folder / "none.nc", {"u": (("x", "y"), FRAMES[0, 0])}, attrs={"periodic": 1})


@case("must be strictly increasing")
def netcdf_with_falling_coordinates(folder: Path) -> Path:
    return netcdf(folder / "a.nc", coords={"x": np.arange(6.0)[::-1], "y": np.arange(5.0)})


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


@case("defines entities")
def vtk_with_entities(folder: Path) -> Path:
    return saved(folder / "a.vti", b'<!DOCTYPE x [<!ENTITY a "b">]><VTKFile type="ImageData">&a;</VTKFile>')


@case("not a VTK XML file, or truncated")
def vtk_cut(folder: Path) -> Path:
    path = VtkWriter().write(folder / "a.vti", {"u": FRAMES[0, 0]})
    return saved(path, path.read_bytes()[:400])


@case("holds 10 numbers, its grid needs 30")
def vtk_with_too_few_numbers(folder: Path) -> Path:
    path = VtkWriter().write(folder / "a.vti", {"u": np.zeros((6, 5), "f4")})
    text = path.read_text().replace(" ".join(["0.0"] * 30), " ".join(["0.0"] * 10))
    path.write_text(text)
    return path


@case("holds 'UnstructuredGrid'")
def vtk_of_another_kind(folder: Path) -> Path:
    return saved(folder / "a.vti", b'<VTKFile type="UnstructuredGrid"><UnstructuredGrid/></VTKFile>')


@case("outside of its folder")
def vtk_collection_that_leads_out(folder: Path) -> Path:
    return write_collection(folder / "a.pvd", {"../../etc/secret.vti": 0.0})


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
