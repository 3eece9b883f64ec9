"""Folders of frames: one file for each frame, in the natural order of their names.

A folder of such folders holds one trajectory in each. Frames are npy, npz, vti or vtr files. An array called ``t``,
``time`` or ``times`` in a file of that name holds the times of all frames.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from factformer.data.formats.arrays import SUFFIXES as ARRAYS
from factformer.data.formats.arrays import TIMES, LazyArray, open_arrays
from factformer.data.formats.importers import REST
from factformer.data.formats.pdebench import Found
from factformer.data.formats.vtk import SUFFIXES as VTK_SUFFIXES
from factformer.data.formats.vtk import read_collection, read_grid
from factformer.data.formats.xarray_files import SUFFIXES as XARRAY
from factformer.data.layout import AXIS_NAMES
from factformer.data.splits import SUFFIXES as STORED
from factformer.data.splits import split_names
from factformer.errors import UserError

SUFFIXES = (".npy", ".npz", *VTK_SUFFIXES)
MOST_FILES = 10**6
Loader = Callable[[Path], Mapping[str, LazyArray]]


class FrameStack:
    """One array ``([trajectory,] frame, …)`` of which every frame is in a file of its own, read when indexed."""

    def __init__(self, files: Sequence[Sequence[Path]], name: str, load: Loader, *, single: bool) -> None:
        self._files, self._name, self._load, self._single = files, name, load, single
        first = load(files[0][0])[name]
        self._frame, self.dtype = tuple(first.shape), first.dtype
        leading = (len(files[0]),) if single else (len(files), len(files[0]))
        self.shape = (*leading, *self._frame)

    def __getitem__(self, index: Any) -> NDArray[Any]:
        parts = index if isinstance(index, tuple) else (index,)
        parts = () if parts == (Ellipsis,) else parts
        chosen, rest = ((slice(0, 1), *parts[:1]), parts[1:]) if self._single else (parts[:2], parts[2:])
        chosen = (*chosen, *[slice(None)] * (2 - len(chosen)))
        rows = [self._read(files[chosen[1]], rest) for files in self._files[chosen[0]]]
        return rows[0] if self._single else np.stack(rows) if rows else np.empty((0, *self.shape[1:]), self.dtype)

    def _read(self, files: Sequence[Path], rest: tuple[Any, ...]) -> NDArray[Any]:
        frames = [np.asarray(self._one(path)[rest or ...]) for path in files]
        return np.stack(frames) if frames else np.empty((0, *self._frame), self.dtype)

    def _one(self, path: Path) -> LazyArray:
        arrays = self._load(path)
        if self._name not in arrays or tuple(arrays[self._name].shape) != self._frame:
            there = tuple(arrays[self._name].shape) if self._name in arrays else "none"
            raise UserError(
                f"{path}: {self._name} of shape {self._frame} is needed, as in the first frame; got {there}"
            )
        return arrays[self._name]


def describe_folder(path: Path) -> Found:
    """The frames of a folder, or of the folders in it, as arrays."""
    inner = [each for each in _entries(path) if each.is_dir()]
    files = [_frame_files(each) for each in inner] if inner else [_frame_files(path)]
    if inner and _is_frames(path):
        raise UserError(f"{path} holds frames and folders: keep frames alone, or one folder for each trajectory")
    if not all(files):
        empty = next((each for each, found in zip(inner, files, strict=False) if not found), path)
        raise UserError(
            f"{empty} holds no frames: {', '.join(SUFFIXES)} files, one for each{_instead_of_frames(empty)}"
        )
    for folder, found in zip(inner, files, strict=False):
        if len(found) != len(files[0]):
            raise UserError(
                f"{folder} holds {len(found)} frames, {inner[0].name} {len(files[0])}: they must be as many"
            )
    if len({file.suffix for found in files for file in found}) > 1:
        raise UserError(f"{path} holds frames of several formats: keep one")
    return _described(path, files, single=not inner)


def _instead_of_frames(folder: Path) -> str:
    """What to do with the files of a folder that are no frames; nothing where there are none that we read."""
    stored = [file for file in _entries(folder) if file.suffix in STORED and any(split_names(file))]
    if stored:
        named = next((file for file in stored if file.stem == "test"), stored[0])
        return f"; of a dataset, name a file: {named}"
    files = [file for file in _entries(folder) if file.suffix in (*ARRAYS, *XARRAY)]
    if not files:
        return ""
    return (
        f"; convert its {len(files)} {files[0].suffix} files one by one, each with --split and its own --out, such as "
        f"data/train/{files[0].stem}.hdf5, or stack them in one file"
    )


def describe_collection(path: Path, *, allow_external: bool = False) -> Found:
    """The frames that a ``.pvd`` file names."""
    files, times = read_collection(path, allow_external=allow_external)
    return _described(path, [files], single=True, times=times)


def describe_grid(path: Path) -> Found:
    """One file of VTK: a single frame."""
    return _described(path, [[path]], single=True)


def _described(
    path: Path, files: Sequence[Sequence[Path]], *, single: bool, times: Sequence[float] | None = None
) -> Found:
    first = files[0][0]
    is_vtk = first.suffix in VTK_SUFFIXES
    load = _vtk_arrays if is_vtk else _numpy_arrays
    arrays = {name: FrameStack(files, name, load, single=single) for name in load(first)}
    leading = "t" if single else "nt"
    layouts = dict.fromkeys(arrays, leading + REST)
    found = Found(path, arrays, {}, layouts=layouts, sources=tuple(file for each in files for file in each))
    if not is_vtk:
        beside = [file for name in TIMES if (file := path / f"{name}.npy").is_file()]
        values = np.asarray(next(iter(open_arrays(beside[0]).values()))[...], np.float64) if beside else None
        return found.changed(times=values, one_time_each=True)
    grids = [read_grid(file) for file in (files[0] if times is None else [first])]
    own = [grid.time for grid in grids if grid.time is not None]
    if times is None and own and len(own) == len(files[0]) > 1:
        times = own
    names = AXIS_NAMES[: len(grids[0].axes)]
    grid = grids[0]
    channels = {name: values.shape[-1] if values.ndim > len(names) else 1 for name, values in grid.fields.items()}
    described = {"name": path.stem, "num_axes": len(names), "state": channels, "num_context_frames": 4}
    return found.changed(
        coordinates=dict(zip(names, grid.axes, strict=True)),
        times=None if times is None else np.asarray(times),
        one_time_each=True,
        values=described if len(files[0]) > 1 else {},
        names={name: name for name in channels},
        assumed=("boundary", *(() if times is not None else ("frame_dt",))),
        left_out=grid.other,
        unsaid=("periodic",),
    )


def _numpy_arrays(path: Path) -> Mapping[str, LazyArray]:
    arrays = open_arrays(path)
    return {"frames": next(iter(arrays.values()))} if path.suffix == ".npy" else arrays


def _vtk_arrays(path: Path) -> Mapping[str, LazyArray]:
    """The fields and, where the grid is a plane, the components of vectors: those of VTK have three."""
    grid = read_grid(path)
    found: dict[str, LazyArray] = dict(grid.fields)
    for name, values in grid.fields.items():
        if values.ndim > len(grid.axes):
            found |= {f"{name}.{index}": values[..., index] for index in range(values.shape[-1])}
    return found


def _entries(folder: Path) -> list[Path]:
    """What a folder holds in natural order, without hidden files."""
    found = [each for each in folder.iterdir() if not each.name.startswith(".")]
    if len(found) > MOST_FILES:
        raise UserError(f"{folder} holds {len(found)} files: no trajectory has so many frames")
    return sorted(
        found,
        key=lambda each: [
            (not part.isdigit(), int(part) if part.isdigit() else 0, part) for part in re.split(r"(\d+)", each.name)
        ],
    )


def _is_frames(folder: Path) -> bool:
    return bool(_frame_files(folder))


def _frame_files(folder: Path) -> list[Path]:
    """The frames of one trajectory; none may be missing between the first and the last."""
    files = [each for each in _entries(folder) if each.suffix in SUFFIXES and each.stem not in TIMES]
    numbers = [re.findall(r"\d+", file.stem)[-1:] for file in files]
    if len(files) > 2 and all(numbers):
        counts = [int(number) for (number,) in numbers]
        step = counts[1] - counts[0]
        for before, after in pairwise(counts):
            if after - before != step:
                raise UserError(
                    f"{folder}: frames {before} and {after} are not {step} apart as the first; one is missing"
                )
    return files
