"""Folders of frames and series of VTK files: every frame is looked at, and all times count."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from vtk_files import VtkWriter, write_collection

from factformer.data import import_dataset
from factformer.data.dataset import Dataset
from factformer.errors import UserError

FLOW = {"name": "flow", "num_axes": 2, "state": {"u": 1}, "num_context_frames": 2, "periodic": True}
FRAMES = np.random.default_rng(0).normal(size=(2, 7, 6, 5)).astype("f4")
EVEN, UNEVEN = 0.5 * np.arange(7), np.arange(7.0) ** 2


def npy(folder: Path, name: Callable[[int], str] = "{}.npy".format, frames: np.ndarray = FRAMES[0]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for index, frame in enumerate(frames):
        np.save(folder / name(index), frame)
    return folder


def npz(folder: Path, times: np.ndarray, frames: np.ndarray = FRAMES[0]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for index, (frame, time) in enumerate(zip(frames, times, strict=True)):
        np.savez(folder / f"{index}.npz", u=frame, t=time)
    return folder


def vti(folder: Path, times: np.ndarray | None = None, frames: np.ndarray = FRAMES[0]) -> Path:
    for index, frame in enumerate(frames):
        time = None if times is None else float(times[index])
        VtkWriter().write(folder / f"u_{index}.vti", {"u": frame}, time=time)
    return folder


def edit(file: Path, old: bytes, new: bytes) -> None:
    content = file.read_bytes()
    assert old in content
    file.write_bytes(content.replace(old, new, 1))


def read(path: Path) -> Dataset:
    return import_dataset(path, FLOW)


def read_all(path: Path) -> None:
    data = read(path)
    data.read(range(data.num_trajectories))


def refused(path: Path, message: str) -> None:
    with pytest.raises(UserError, match=message):
        read_all(path)


def test_a_later_frame_of_complex_numbers_is_named(tmp_path: Path) -> None:
    folder = npy(tmp_path / "run")
    np.save(folder / "4.npy", FRAMES[0, 4] * 1j)
    refused(folder, r"4\.npy: frames holds complex numbers")
    folder = npz(tmp_path / "other", EVEN)
    np.savez(folder / "5.npz", u=FRAMES[0, 5] * 1j, t=EVEN[5])
    refused(folder, r"5\.npz: u holds complex numbers")


@pytest.mark.parametrize("place", ['Spacing="1 1 1"', 'Origin="0 0 0"'])
def test_a_later_frame_on_another_grid_is_named(place: str, tmp_path: Path) -> None:
    folder = vti(tmp_path / "run")
    files = {f"run/u_{index}.vti": 0.5 * index for index in range(7)}
    assert np.array_equal(read(folder).read([0])[0, ..., 0], FRAMES[0])
    edit(folder / "u_3.vti", place.encode(), place.replace('"0', '"9').replace('"1', '"2').encode())
    refused(folder, r"u_3\.vti has another grid")
    refused(write_collection(tmp_path / "run.pvd", files), r"u_3\.vti has another grid")


def test_one_frame_without_its_time_is_named(tmp_path: Path) -> None:
    folder = vti(tmp_path / "run", EVEN)
    assert read(folder).problem.frame_dt == 0.5
    VtkWriter().write(folder / "u_3.vti", {"u": FRAMES[0, 3]})
    refused(folder, r"u_3\.vti holds no time \(TimeValue\)")


def test_npz_frames_may_hold_their_times(tmp_path: Path) -> None:
    assert read(npz(tmp_path / "even", EVEN)).problem.frame_dt == 0.5
    refused(npz(tmp_path / "uneven", UNEVEN), "not evenly spaced in time")
    refused(npz(tmp_path / "text", np.array(list("abcdefg"))), "t holds text where times should be")
    moments = np.datetime64("2026-01-01T00:00:00") + np.arange(7).astype("timedelta64[m]")
    assert read(npz(tmp_path / "dates", moments)).problem.frame_dt == 60
    folder = npz(tmp_path / "part", EVEN)
    np.savez(folder / "4.npz", u=FRAMES[0, 4])
    refused(folder, r"4\.npz holds no single number t")


@pytest.mark.parametrize("write", [npz, vti])
def test_trajectories_of_different_times_are_refused(write: Callable[..., Path], tmp_path: Path) -> None:
    for index, frames in enumerate(FRAMES):
        write(tmp_path / "same" / f"r{index}", EVEN, frames)
        write(tmp_path / "others" / f"r{index}", EVEN * (1 + index), frames)
    assert read(tmp_path / "same").problem.frame_dt == 0.5
    refused(tmp_path / "others", "r0 and .*r1 hold different times of frames")


def test_times_of_the_folders_of_trajectories_count(tmp_path: Path) -> None:
    for index, frames in enumerate(FRAMES):
        npy(tmp_path / "run" / f"r{index}", frames=frames)
    np.save(tmp_path / "run" / "r0" / "time.npy", EVEN)
    refused(tmp_path / "run", "r1 holds no times of its frames, other trajectories do")
    np.save(tmp_path / "run" / "r1" / "time.npy", EVEN)
    assert read(tmp_path / "run").problem.frame_dt == 0.5
    np.save(tmp_path / "run" / "time.npy", UNEVEN)
    refused(tmp_path / "run", r"run/time\.npy and .*r0/time\.npy hold different times")


def test_a_file_of_times_counts_beside_vtk_files(tmp_path: Path) -> None:
    folder = vti(tmp_path / "run")
    np.save(folder / "time.npy", EVEN)
    assert read(folder).problem.frame_dt == 0.5
    np.save(folder / "t.npy", UNEVEN)
    refused(folder, r"t\.npy and .*time\.npy hold different times")
    (folder / "t.npy").unlink()
    refused(vti(folder, UNEVEN), r"time\.npy and .*run hold different times")


def test_files_without_a_number_among_numbered_ones_are_left_out(tmp_path: Path) -> None:
    folder = npy(tmp_path / "run")
    np.save(folder / "mask.npy", np.ones((6, 5)))
    data = read(folder)
    assert data.num_frames == 7 and data.provenance["left_out"] == ["mask.npy"]
    (folder / "3.npy").unlink()
    refused(folder, r"frames 2\.npy and 4\.npy are not 1 apart as the first; one is missing")


def test_names_may_hold_decimals(tmp_path: Path) -> None:
    for start, step in ((0.8, 0.1), (0.0, 0.5)):
        names = [f"u_{start + step * index:g}.npy" for index in range(7)]
        folder = npy(tmp_path / f"from{start}", names.__getitem__)
        assert np.array_equal(read(folder).read([0])[0, ..., 0], FRAMES[0])
    (folder / "u_1.5.npy").unlink()
    refused(folder, "one is missing")


def test_arrays_of_the_same_name_are_refused(tmp_path: Path) -> None:
    folder = vti(tmp_path / "run")
    content = (folder / "u_0.vti").read_bytes()
    array = content[content.index(b"<DataArray") : content.index(b"</DataArray>") + len(b"</DataArray>")]
    edit(folder / "u_0.vti", array, array + array)
    refused(folder, r"u_0\.vti holds several arrays called 'u'")
    np.savez(tmp_path / "u.npz", u=FRAMES)
    with zipfile.ZipFile(tmp_path / "u.npz", "a") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr("u.npy", archive.read("u.npy"))
    refused(tmp_path / "u.npz", r"u\.npz holds several arrays called 'u\.npy'")
