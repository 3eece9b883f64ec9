"""Zarr stores that are damaged: no chunk is read wrongly, and none is missing without a word."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from factformer.data.convert import convert
from factformer.data.formats.foreign import import_dataset
from factformer.data.opening import UnreadableFileError
from factformer.data.store import open_dataset

xarray = pytest.importorskip("xarray")
pytest.importorskip("zarr")

KEYS = {2: "2.0.0.0", 3: "c/2/0/0/0"}
"""The chunk of the third trajectory by the version of the format."""


def write_store(path: Path, version: int, *, values: np.ndarray | None = None, **encoding: object) -> np.ndarray:
    """Four trajectories, a chunk each."""
    frames = np.random.default_rng(0).normal(size=(4, 5, 8, 8)).astype("f4") if values is None else values
    xarray.Dataset(
        {"u": (("sample", "time", "x", "y"), frames)},
        coords={"time": np.arange(5.0), "x": np.arange(8.0), "y": np.arange(8.0)},
        attrs={"periodic": 1},
    ).to_zarr(path, zarr_format=version, consolidated=False, encoding={"u": {"chunks": (1, 5, 8, 8), **encoding}})
    return frames


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("kept", [0, 10, 200, -1, -4])
def test_a_chunk_that_is_cut_short_is_one_line(version: int, kept: int, tmp_path: Path) -> None:
    path = tmp_path / "flow.zarr"
    frames = write_store(path, version)
    assert np.array_equal(import_dataset(path).read(range(4)).numpy()[..., 0], frames)
    chunk = path / "u" / KEYS[version]
    chunk.write_bytes(chunk.read_bytes()[:kept])
    with pytest.raises(UnreadableFileError, match=r"flow\.zarr is damaged"):
        import_dataset(path).read(range(4))


@pytest.mark.parametrize("version", [2, 3])
def test_a_chunk_that_is_missing_is_told(version: int, tmp_path: Path) -> None:
    """Zarr leaves out chunks of zeros, so a missing chunk may be no damage."""
    path = tmp_path / "flow.zarr"
    values = np.random.default_rng(0).integers(1, 99, size=(4, 5, 8, 8)).astype("i4")
    values[2] = 0
    write_store(path, version, values=values)
    assert not (path / "u" / KEYS[version]).exists()
    convert(path, tmp_path / "train.hdf5")
    data = open_dataset(tmp_path / "train.hdf5")
    assert np.array_equal(data.read(range(4)).numpy()[..., 0], values)
    assert data.provenance["left_out"] == ["1 of 4 chunks of u (not in the store, read as 0)"]


@pytest.mark.parametrize("version", [2, 3])
def test_a_store_without_any_chunk_is_refused(version: int, tmp_path: Path) -> None:
    path = tmp_path / "flow.zarr"
    write_store(path, version, values=np.zeros((4, 5, 8, 8), "i4"))
    with pytest.raises(UnreadableFileError, match="holds no chunk of 'u'"):
        import_dataset(path)


def test_all_chunks_of_whole_stores_are_found(tmp_path: Path) -> None:
    write_store(tmp_path / "shards.zarr", 3, shards=(2, 5, 8, 8), values=np.ones((4, 5, 8, 8), "i4"))
    write_store(tmp_path / "parts.zarr", 2, chunks=(3, 2, 8, 5), values=np.ones((4, 5, 8, 8), "i4"))
    for name in ("shards", "parts"):
        assert "left_out" not in import_dataset(tmp_path / f"{name}.zarr").provenance
    chunk = tmp_path / "shards.zarr" / "u" / "c/1/0/0/0"
    chunk.unlink()
    told = import_dataset(tmp_path / "shards.zarr").provenance["left_out"]
    assert told == ["1 of 2 chunks of u (not in the store, read as 0)"]
