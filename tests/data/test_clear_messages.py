"""What is wrong with a file of others is one line that names the file and what of it."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest
from vtk_files import VtkWriter

from factformer.data import import_dataset
from factformer.data.formats.vtk import read_grid
from factformer.errors import UserError

FLOW = {"name": "flow", "num_axes": 2, "state": {"u": 1}, "num_context_frames": 2, "periodic": True}
FRAMES = np.random.default_rng(0).normal(size=(2, 7, 6, 5)).astype("f4")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('header_type="UInt32"', 'header_type="UInt16"', "has a header_type 'UInt16'; write it with UInt32 or UInt64"),
        ('Spacing="1 1 1"', 'Spacing="1 1"', "its Spacing is '1 1', not 3 numbers"),
        ('Origin="0 0 0"', 'Origin="0 nan 0"', "its Origin is '0 nan 0', not 3 numbers"),
        ('Origin="0 0 0"', 'Origin="0 0 0" Direction="1 0 0"', "its Direction is '1 0 0', not 9 numbers"),
        ('NumberOfComponents="1"', 'NumberOfComponents="-1"', "'u' has -1 components; 1 or more are needed"),
        ('NumberOfComponents="1"', 'NumberOfComponents="two"', "its NumberOfComponents is 'two', not 1 whole number"),
        ('Extent="0 5', 'Extent="0 x', "its WholeExtent is '0 x 0 4 0 0', not 6 whole numbers"),
    ],
)
def test_an_attribute_of_vtk_that_cannot_be_is_named(old: str, new: str, message: str, tmp_path: Path) -> None:
    path = VtkWriter().write(tmp_path / "u.vti", {"u": FRAMES[0, 0]})
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(UserError, match=r"u\.vti:? ") as caught:
        read_grid(path)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("shape", "settings", "message"),
    [
        ((2, 7, 0, 5), [], "axis 0 needs at least 2 points, got 0"),
        ((2, 7, 6, 5), ["frame_dt=-1"], "frame_dt must be positive"),
        ((2, 1, 6, 5), ["num_context_frames=2"], "num_context_frames=2 asked for, but of 1 frames"),
    ],
)
def test_messages_name_the_file(shape: tuple[int, ...], settings: list[str], message: str, tmp_path: Path) -> None:
    np.save(tmp_path / "run.npy", np.zeros(shape, "f4"))
    with pytest.raises(UserError, match=rf"run\.npy: {message}"):
        import_dataset(tmp_path / "run.npy", FLOW, settings=settings)


def test_a_file_of_pdebench_may_hold_one_time_more_than_frames(tmp_path: Path) -> None:
    for num_times, is_good in ((7, True), (8, True), (9, False), (20, False), (6, False)):
        with h5py.File(tmp_path / f"{num_times}.hdf5", "w") as file:
            file["tensor"], file["t-coordinate"] = FRAMES, 0.5 * np.arange(num_times)
            file["x-coordinate"], file["y-coordinate"] = np.arange(6.0), np.arange(5.0)
        if is_good:
            assert import_dataset(tmp_path / f"{num_times}.hdf5").problem.frame_dt == 0.5
        else:
            with pytest.raises(UserError, match=rf"its times have shape \({num_times},\), for 7 frames"):
                import_dataset(tmp_path / f"{num_times}.hdf5")
