"""Folders of frames: one file for each frame, in the natural order of their names.

A folder of such folders holds one trajectory in each. Frames are npy, npz, vti or vtr files. An array called ``t``,
``time`` or ``times`` in a file of that name holds the times of all frames; npz, vti and vtr files may hold their own.
All trajectories have the same times. Where most names have numbers, files without one are no frames.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from factformer.data.formats.arrays import NUMBERS, TIMES, LazyArray, as_times, is_complex, open_arrays
from factformer.data.formats.arrays import SUFFIXES as ARRAYS
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
        if is_complex(arrays[self._name]) and self.dtype.kind != "c":
            raise UserError(f"{path}: {self._name} holds complex numbers, which it does not in the first frame")
        return arrays[self._name]


def describe_folder(path: Path) -> Found:
    """The frames of a folder, or of the folders in it, as arrays."""
    inner = [each for each in _entries(path) if each.is_dir()]
    folders = [_frame_files(each) for each in inner or [path]]
    files = [found for found, _ in folders]
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
    described = _described(path, files, single=not inner)
    others = dict.fromkeys(file.name for _, rest in folders for file in rest)
    return described.changed(left_out=(*described.left_out, *others))


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
    is_timed = len(files[0]) > 1 and times is None
    own = "" if is_vtk or not is_timed else _own_time(load(first))
    kept = [name for name, array in load(first).items() if name != own and array.dtype.kind in NUMBERS]
    arrays = {name: FrameStack(files, name, load, single=single) for name in kept}
    leading = "t" if single else "nt"
    layouts = dict.fromkeys(arrays, leading + REST)
    found = Found(path, arrays, {}, layouts=layouts, sources=tuple(file for each in files for file in each))
    lines = _times_beside(path, files, single=single) if is_timed and path.is_dir() else []
    if not is_vtk:
        lines += [(str(each[0].parent), _own_times(each, own)) for each in files if own]
        return found.changed(times=_common_times(lines), one_time_each=True)
    grid, moments = read_grid(first), [_moments(each, first, partly=not is_timed) for each in files]
    line = None if times is None else np.asarray(times)
    if is_timed:
        known = [
            (str(each[0].parent), moment) for each, moment in zip(files, moments, strict=True) if moment is not None
        ]
        if 0 < len(known) < len(files):
            raise UserError(f"some trajectories of {path} hold times (TimeValue) and some do not: write all of them")
        line = _common_times(lines + known)
    names = AXIS_NAMES[: len(grid.axes)]
    channels = {name: values.shape[-1] if values.ndim > len(names) else 1 for name, values in grid.fields.items()}
    described = {"name": path.stem, "num_axes": len(names), "state": channels, "num_context_frames": 4}
    return found.changed(
        coordinates=dict(zip(names, grid.axes, strict=True)),
        times=line,
        one_time_each=True,
        values=described if len(files[0]) > 1 else {},
        names={name: name for name in channels},
        assumed=("boundary", *(() if line is not None else ("frame_dt",))),
        left_out=grid.other,
        unsaid=("periodic",),
    )


def _own_time(arrays: Mapping[str, LazyArray]) -> str:
    """The name of the single number that is the time of a frame; nothing where there is none beside fields."""
    return next((name for name in arrays if name in TIMES and math.prod(arrays[name].shape) == 1 < len(arrays)), "")


def _own_times(files: Sequence[Path], name: str) -> NDArray[np.float64]:
    """The times that frames hold themselves, one in each."""
    found = []
    for file in files:
        array = open_arrays(file, any_times=True).get(name)
        if array is None or math.prod(array.shape) != 1:
            raise UserError(f"{file} holds no single number {name}, which is the time of the first frame")
        found.append(np.asarray(array[...]).reshape(-1))
    return as_times(f"{files[0].parent}: {name}", np.concatenate(found))


def _moments(files: Sequence[Path], first: Path, *, partly: bool) -> NDArray[np.float64] | None:
    """The times of one trajectory of VTK files, whose grid must be that of the ``first`` file; None without times.

    Some files may lack theirs where they are not needed: ``partly``.
    """
    grid, found = read_grid(first), []
    for file in files:
        other = read_grid(file)
        for line, own in zip(grid.axes, other.axes, strict=False):
            if line.shape == own.shape and not _alike(line, own):
                raise UserError(f"{file} has another grid (origin, spacing or coordinates) than {first}")
        found.append(other.time)
    missing = [file for file, time in zip(files, found, strict=True) if time is None]
    if missing and len(missing) < len(files) and not partly:
        raise UserError(f"{missing[0]} holds no time (TimeValue), other frames do: write all of them, or none")
    return None if missing else np.array(found, dtype=np.float64)


def _times_beside(
    path: Path, files: Sequence[Sequence[Path]], *, single: bool
) -> list[tuple[str, NDArray[np.float64]]]:
    """The times in files called so, of all trajectories and of each."""
    folders = [path] if single else [path, *(each[0].parent for each in files)]
    found = {folder: _lines_in(folder) for folder in folders}
    missing = [folder for folder in folders[1:] if not found[folder]]
    if missing and len(missing) < len(folders) - 1 and not found[path]:
        raise UserError(f"{missing[0]} holds no times of its frames, other trajectories do: write time.npy in {path}")
    return [line for lines in found.values() for line in lines]


def _lines_in(folder: Path) -> list[tuple[str, NDArray[np.float64]]]:
    files = [file for name in TIMES if (file := folder / f"{name}.npy").is_file()]
    arrays = [next(iter(open_arrays(file, any_times=True).values())) for file in files]
    return [(str(file), as_times(str(file), np.asarray(array[...]))) for file, array in zip(files, arrays, strict=True)]


def _alike(one: NDArray[np.float64], other: NDArray[np.float64]) -> bool:
    """Whether two lines of as many numbers are equal up to a thousandth of their mean distance."""
    apart = 1e-3 * float(np.ptp(one)) / len(one) if len(one) else 0.0
    return bool(np.array_equal(one, other, equal_nan=True) or np.allclose(one, other, rtol=0, atol=apart))


def _common_times(lines: Sequence[tuple[str, NDArray[np.float64]]]) -> NDArray[np.float64] | None:
    """The times that all of the ``lines`` hold, each with the name of where it is; None without any."""
    for where, line in lines[1:]:
        place, first = lines[0]
        if line.shape != first.shape or not _alike(line, first):
            raise UserError(
                f"{place} and {where} hold different times of frames: correct one, leave it out, or convert "
                "trajectories of different times one by one"
            )
    return lines[0][1] if lines else None


def _numpy_arrays(path: Path) -> Mapping[str, LazyArray]:
    arrays = open_arrays(path, any_times=path.suffix == ".npz")
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
    return bool(_frame_files(folder)[0])


def _frame_files(folder: Path) -> tuple[list[Path], list[Path]]:
    """The frames of one trajectory, and other files; no frame may be missing between the first and the last."""
    files = [each for each in _entries(folder) if each.suffix in SUFFIXES and each.stem not in TIMES]
    numbered = [file for file in files if re.search(r"\d", file.stem)]
    others = [file for file in files if file not in numbered] if 2 * len(numbered) > len(files) > 2 else []
    if len(files) < 3 or len(numbered) + len(others) < len(files):
        return files, []
    return _without_gaps(folder, numbered), others


def _without_gaps(folder: Path, files: list[Path]) -> list[Path]:
    """Files with numbers in their names, the last of which must be evenly spaced; these may be decimals, as in 0.5."""
    counts = [int(re.findall(r"\d+", file.stem)[-1]) for file in files]
    steps = [after - before for before, after in pairwise(counts)]
    uneven = next((index for index, step in enumerate(steps) if step != steps[0]), None)
    if uneven is None:
        return files
    decimals = {file: float(re.findall(r"\d+(?:\.\d+)?", file.stem)[-1]) for file in files}
    gaps = np.diff(sorted(decimals.values()))
    if any(value % 1 for value in decimals.values()) and gaps[0] > 0 and np.allclose(gaps, gaps[0], rtol=1e-3, atol=0):
        return sorted(files, key=decimals.__getitem__)
    before, after = files[uneven], files[uneven + 1]
    raise UserError(
        f"{folder}: frames {before.name} and {after.name} are not {steps[0]} apart as the first; one is missing, or "
        "files are called otherwise"
    )
