"""Times and coordinates of NetCDF that are not called as their dimensions are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray

from factformer.data import convert, import_dataset, open_dataset
from factformer.data.dataset import Dataset
from factformer.errors import UserError

UNEVEN = np.arange(7.0) ** 2


def write(path: Path, dims: tuple[str, ...] = ("sample", "time", "x", "y"), **beside: Any) -> Path:
    """A field with coordinates, or with ``variables``, beside it."""
    frames = np.random.default_rng(0).normal(size=(2, 7, 6, 5)).astype("f4")
    variables = {"u": (dims, frames), **beside.pop("variables", {})}
    xarray.Dataset(variables, coords=beside, attrs={"periodic": "false"}).to_netcdf(path, engine="h5netcdf")
    return path


def read(path: Path, **beside: Any) -> Dataset:
    return import_dataset(write(path / "run.nc", **beside))


AXES = {"x": np.arange(6.0), "y": np.arange(5.0)}


@pytest.mark.parametrize("name", ["t", "times"])
@pytest.mark.parametrize("kind", ["coordinate", "variable"])
def test_times_along_a_dimension_of_another_name_are_read(name: str, kind: str, tmp_path: Path) -> None:
    def along(values: np.ndarray) -> Dataset:
        line = {name: ("time", values)}
        return read(tmp_path, **AXES, **({"variables": line} if kind == "variable" else line))

    assert along(0.5 * np.arange(7)).problem.frame_dt == 0.5
    with pytest.raises(UserError, match="not evenly spaced in time"):
        along(UNEVEN)


def test_times_of_each_trajectory_must_be_alike(tmp_path: Path) -> None:
    dims = ("sample", "t", "x", "y")
    same = np.tile(0.5 * np.arange(7), (2, 1))
    assert read(tmp_path, dims=dims, **AXES, time=(("sample", "t"), same)).problem.frame_dt == 0.5
    with pytest.raises(UserError, match=r"run\.nc: 'time' has shape \(2, 7\) and differs by trajectory"):
        read(tmp_path, dims=dims, **AXES, time=(("sample", "t"), np.add(same, [[0], [1]])))


def test_times_that_are_text_name_the_file_and_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"run\.nc: 'time' holds text .* leave it out and say frame_dt$"):
        read(tmp_path, **AXES, time=list("abcdefg"))
    assert import_dataset(write(tmp_path / "run.nc", **AXES), settings=["frame_dt=2"]).problem.frame_dt == 2


def test_the_only_coordinate_of_an_axis_is_its_place(tmp_path: Path) -> None:
    grid = read(tmp_path, time=np.arange(7.0), lon=("x", UNEVEN[:6]), lat=("y", 0.5 * np.arange(5))).problem.grid
    assert np.allclose(grid.axis(0), UNEVEN[:6]) and np.allclose(grid.axis(1), 0.5 * np.arange(5))


@pytest.mark.parametrize(
    "beside",
    [
        {"lon": ("x", UNEVEN[:6])},
        {"lon": ("x", UNEVEN[:6]), "mile": ("x", np.arange(6.0)), "lat": ("y", np.arange(5.0))},
        {"lon": ("x", -UNEVEN[:6]), "lat": ("y", np.arange(5.0))},
    ],
    ids=["one axis", "two lines", "falling"],
)
def test_coordinates_that_are_not_used_are_told(beside: dict[str, Any], tmp_path: Path) -> None:
    convert(write(tmp_path / "run.nc", time=np.arange(7.0), **beside), tmp_path / "train.hdf5")
    stored = open_dataset(tmp_path / "train.hdf5")
    assert "extent" in stored.provenance["assumed"]
    assert sorted(stored.provenance["left_out"]) == sorted(beside)
