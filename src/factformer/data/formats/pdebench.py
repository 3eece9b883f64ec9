"""PDEBench's HDF5 files: fields, axes and frame interval from the names they use.

Three layouts are in circulation (doi 10.18419/darus-2986):

* arrays ``(sample, frame, *grid)`` named ``tensor``, or ``density``, ``pressure``, ``Vx``, ``Vy``, ``Vz``,
  with ``x-coordinate`` … and ``t-coordinate`` (which may hold one more entry than there are frames);
  a steady file has ``nu (sample, *grid)`` beside ``tensor``;
* groups ``0000, 0001, …``, each a sample with ``data (frame, *grid, channel)`` and ``grid/x``, ``grid/t``;
* ``velocity``, ``particles`` of incompressible flow, ``(sample, frame, *grid, channel)`` with ``t``.

The boundary is not in the files: flow called ``trans`` and grouped samples are read with zero gradient,
``nu`` with zero values, everything else as periodic; the caller may say otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from factformer._support.axes import evenly_spaced
from factformer.data.agreement import frame_stride
from factformer.data.formats.arrays import LazyArray, is_line, split_times
from factformer.data.formats.well import grid_from_axes, is_even, mean_interval
from factformer.data.layout import AXIS_NAMES
from factformer.errors import UserError
from factformer.grid import Grid

COMPONENTS = ("Vx", "Vy", "Vz")
SCALARS = ("density", "pressure", "tensor")
COORDINATE = "-coordinate"
INTERVAL = "frame_dt"
"""Name of the number that `factformer rollout` writes beside its frames."""


@dataclass(frozen=True)
class Found:
    """What a file of arrays says about itself: much in PDEBench's files, little or nothing in others.

    ``values`` describe the problem (`ProblemDescription`) and ``names`` say which array each field is; both are
    empty where the names are not PDEBench's. PDEBench's files may hold one time more than frames; elsewhere there is
    ``one_time_each``. ``values`` hold guesses at what the file does not say: ``assumed``; what is ``unsaid`` nobody
    can guess. ``layouts`` are the axes of arrays where the format names them, and ``sources`` the files that are read;
    ``dimensions`` are the names that it has for the axes.
    """

    path: Path
    arrays: Mapping[str, LazyArray]
    coordinates: Mapping[str, LazyArray]
    times: LazyArray | None = None
    interval: float | None = None
    one_time_each: bool = False
    values: Mapping[str, Any] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    assumed: tuple[str, ...] = ()
    unsaid: tuple[str, ...] = ()
    layouts: Mapping[str, str] | None = None
    units: Mapping[str, str] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()
    sources: tuple[Path, ...] = ()
    dimensions: Mapping[str, str] = field(default_factory=dict)

    def changed(self, **changes: Any) -> Found:
        """The same with some of it replaced."""
        return replace(self, **changes)

    def axes(self, shape: Sequence[int], *, needed: bool) -> list[NDArray[np.float64]] | None:
        """The coordinates of every axis; None in a file without any, or with too few where they are not ``needed``."""
        names = AXIS_NAMES[: len(shape)]
        missing = [name for name in names if name not in self.coordinates]
        if missing and needed and self.coordinates:
            raise UserError(f"{self.path} holds no {missing[0]}{COORDINATE} beside those of other axes: say extent")
        if missing:
            return None
        found = []
        for name, size in zip(names, shape, strict=True):
            array = self.coordinates[name]
            if tuple(array.shape) != (size,):
                raise UserError(f"{self.path}: {name}{COORDINATE} has shape {tuple(array.shape)}, for {size} points")
            found.append(np.asarray(array[:], dtype=np.float64))
        return found

    def grid(self, like: Grid, shape: Sequence[int]) -> Grid | None:
        """The grid of the coordinates, with the periodic axes and kinds of points of another one; None without any."""
        axes = self.axes(shape, needed=False)
        if axes is None:
            return None
        open_ = [wraps and not evenly_spaced(np.diff(x), x) for wraps, x in zip(like.periodic, axes, strict=True)]
        return grid_from_axes(
            axes,
            like.periodic,
            self.path,
            extent=[length if unknown else None for length, unknown in zip(like.extent, open_, strict=True)],
            points=[kind if like.is_uniform(m) else None for m, kind in enumerate(like.points)],
        )

    def overruled_box(self, grid: Grid) -> str | None:
        """The box of the coordinates where a user has said another one, that of ``grid``."""
        found = self.grid(grid, grid.shape)
        if found is None or np.allclose(found.extent, grid.extent, rtol=1e-3, atol=0):
            return None
        return " x ".join(f"{length:.4g}" for length in found.extent)

    def axis_lengths(self) -> dict[str, int]:
        """How long axes are by the arrays ``t``, ``x``, ``y`` …; nothing where the format says what axes are."""
        if self.layouts is not None:
            return {}
        lines = {name.rsplit("/")[-1].lower(): array for name, array in self.arrays.items() if is_line(array)}
        found = {letter: math.prod(lines[letter].shape) for letter in AXIS_NAMES if letter in lines}
        if self.times is not None and self.one_time_each:
            found["t"] = math.prod(self.times.shape)
        return {letter: size for letter, size in found.items() if size > 1}

    def frame_dt(self, num_frames: int) -> float | None:
        """The interval of the frames, of which there may be one fewer than times; None in a file without times."""
        if self.times is None:
            if self.interval is not None and not 0 < self.interval < math.inf:
                raise UserError(f"{self.path}: its {INTERVAL} is {self.interval:g} and must be more than 0")
            return self.interval
        times = self._increasing_times(num_frames)
        if self.interval is not None and not math.isclose(mean_interval(times), self.interval, rel_tol=1e-3):
            raise UserError(
                f"{self.path}: its times are {mean_interval(times):g} apart, its {INTERVAL} is {self.interval:g}: "
                "correct one of them, or leave it out of the file"
            )
        if not is_even(times):
            raise UserError(
                f"the frames of {self.path} are not evenly spaced in time: interpolate them to even times (convert "
                "--resample-time), or leave the times out and say frame_dt if they are wrong"
            )
        return mean_interval(times)

    def _increasing_times(self, num_frames: int) -> NDArray[np.float64]:
        """The times of the frames, of which there must be enough, in increasing order."""
        assert self.times is not None
        shape = tuple(self.times.shape)
        most = num_frames if self.one_time_each else num_frames + 1
        if len(shape) != 1 or not num_frames <= shape[0] <= most:
            raise UserError(
                f"{self.path}: its times have shape {shape}, for {num_frames} frames: correct them, "
                "say where the frames are with --layout, or leave the times out and say frame_dt"
            )
        times = np.asarray(self.times[:], dtype=np.float64)[:num_frames]
        if not np.isfinite(times).all() or (np.diff(times) <= 0).any():
            raise UserError(
                f"{self.path}: its times do not increase from frame to frame: correct them, or leave them out and say "
                "frame_dt"
            )
        return times

    @property
    def has_interval(self) -> bool:
        """Whether it says how far its frames are apart."""
        return self.times is not None or self.interval is not None

    def overruled(self, frame_dt: float, num_frames: int) -> str | None:
        """What the file says of its times where a user has said another interval, ``frame_dt``."""
        interval = self.frame_dt(num_frames) if self.has_interval and num_frames > 1 else None
        if interval is None or math.isclose(interval, frame_dt, rel_tol=1e-3):
            return None
        return f"frames {interval:g} apart"

    def times_to_resample(self, num_frames: int, frame_dt: float | None) -> NDArray[np.float64] | None:
        """The times of the frames where they are not evenly spaced, or not by ``frame_dt``; none where they are."""
        if self.times is None:
            raise UserError(f"{self.path} holds no times of its {num_frames} frames: leave out --resample-time")
        times = self._increasing_times(num_frames)
        as_wanted = frame_dt is None or num_frames < 2 or math.isclose(mean_interval(times), frame_dt, rel_tol=1e-3)
        return None if as_wanted and is_even(times) else times

    def frame_stride(self, num_frames: int, frame_dt: float) -> int:
        """How many of the file's frames one interval ``frame_dt`` is; raises where it says that this is no number.

        Frames of a file without times are ``frame_dt`` apart.
        """
        found = self.frame_dt(num_frames) if num_frames > 1 or self.times is None else None
        if found is None:
            return 1
        stride = frame_stride(frame_dt, found, tolerance=1e-3)
        if not stride:
            raise UserError(
                f"{self.path}: its frames are {found:g} apart in time and {frame_dt:g} is needed; take other frames, "
                "or leave the times out if they are wrong"
            )
        return stride


def one_number(path: Path, name: str, array: LazyArray) -> float:
    """The only number of an array."""
    values = np.asarray(array[...])
    if values.size != 1 or values.dtype.kind not in "fiu":
        raise UserError(f"{path}: {name} has shape {values.shape} and must be one number, the time between frames")
    return float(values.reshape(()))


class Samples:
    """The samples of a file with one group each, as one array ``(sample, frame, *grid, channel)``."""

    def __init__(self, arrays: list[LazyArray]) -> None:
        self._arrays = arrays

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self._arrays), *self._arrays[0].shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.result_type(*(array.dtype for array in self._arrays))

    def __getitem__(self, index: tuple[Any, ...]) -> Any:
        return np.stack([array[index[1:]] for array in self._arrays[index[0]]])


def describe_file(path: Path, arrays: Mapping[str, LazyArray], taken: Collection[str] = ()) -> Found:
    """What a file says about itself by the names of its arrays; ``taken`` are those that were said to be fields."""
    grouped = sorted(name for name in arrays if name.endswith("/data") and name.split("/")[0].isdigit())
    if grouped:
        return _describe_groups(path, arrays, grouped)
    if _is_incompressible(arrays):
        return _describe_incompressible(path, arrays)
    return _describe_arrays(path, arrays, taken)


def describe_times(path: Path, arrays: Mapping[str, LazyArray], taken: Collection[str]) -> Found:
    """The arrays that may be fields, with the times or the time interval that a file holds beside them."""
    fields, times = split_times(path, arrays, taken)
    number = fields.pop(INTERVAL) if INTERVAL in fields and INTERVAL not in taken and len(fields) > 1 else None
    interval = None if number is None else one_number(path, INTERVAL, number)
    return Found(path, fields, {}, times, interval, one_time_each=True)


def _is_incompressible(arrays: Mapping[str, LazyArray]) -> bool:
    """Whether arrays are not only called as in PDEBench's incompressible flow, but shaped so."""
    if "velocity" not in arrays or "particles" not in arrays:
        return False
    velocity, particles = (tuple(arrays[name].shape) for name in ("velocity", "particles"))
    times = tuple(arrays["t"].shape) if "t" in arrays else velocity[:2]
    return len(velocity) >= 4 and (particles, times) == ((*velocity[:-1], 1), velocity[:2])


def _describe_arrays(path: Path, arrays: Mapping[str, LazyArray], taken: Collection[str]) -> Found:
    fields = {name: array for name, array in arrays.items() if not name.endswith(COORDINATE)}
    given = {name.removesuffix(COORDINATE): array for name, array in arrays.items() if name.endswith(COORDINATE)}
    times = given.pop("t", None)
    found = replace(describe_times(path, fields, taken), coordinates=given)
    found = found if times is None else replace(found, times=times, one_time_each=False)
    scalars = [name for name in SCALARS if name in arrays]
    if "x" not in given or not scalars or len(arrays[scalars[0]].shape) < 3:
        return found
    shape = arrays[scalars[0]].shape
    components = [name for name in COMPONENTS if name in arrays]
    names = {name: name for name in scalars}
    state = dict.fromkeys(scalars, 1)
    if components:
        names["velocity"] = ",".join(components)
        state["velocity"] = len(components)
    steady = "nu" in arrays
    values = {"state": state, "periodic": not steady and "trans" not in path.stem.lower()}
    if steady:
        names["nu"] = "nu"
        values |= {"static": {"nu": 1}, "num_context_frames": 0, "boundary": "zero"}
    return _described(found, scalars[0], len(shape) - 2, values, names)


def _describe_groups(path: Path, arrays: Mapping[str, LazyArray], grouped: list[str]) -> Found:
    samples = [arrays[name] for name in grouped]
    for name, sample in zip(grouped, samples, strict=True):
        if sample.shape != samples[0].shape:
            raise UserError(
                f"the samples of {path} are of different shapes: {grouped[0]} {tuple(samples[0].shape)}, "
                f"{name} {tuple(sample.shape)}"
            )
    folder = f"{grouped[0].split('/')[0]}/grid/"
    given = {name.removeprefix(folder): array for name, array in arrays.items() if name.startswith(folder)}
    found = Found(path, {"data": Samples(samples)}, given, times=given.pop("t", None))
    shape = found.arrays["data"].shape
    values = {"state": {"data": shape[-1]}, "periodic": False}
    return _described(found, "data", len(shape) - 3, values, {"data": "data"})


def _describe_incompressible(path: Path, arrays: Mapping[str, LazyArray]) -> Found:
    fields = {name: array for name, array in arrays.items() if name != "t"}
    times = np.asarray(arrays["t"][:])[0] if "t" in arrays else None
    shape = arrays["velocity"].shape
    values = {"state": {"velocity": shape[-1], "particles": 1}, "points": "cells", "boundary": "zero"}
    names = {"velocity": "velocity", "particles": "particles"}
    return _described(Found(path, fields, {}, times), "velocity", len(shape) - 3, values, names)


def _described(found: Found, name: str, num_axes: int, values: dict[str, Any], names: dict[str, str]) -> Found:
    """With a problem of the usual context and horizon, and a list of what of it the file does not say."""
    shape = tuple(found.arrays[name].shape)
    if not 1 <= num_axes <= len(AXIS_NAMES):
        raise UserError(f"{found.path}: array {name} of shape {shape} is none of PDEBench's: (sample, frame, *grid)")
    assumed = ["periodic", "boundary"]
    assumed += [] if found.coordinates else ["extent", "points"]
    assumed += [] if found.times is not None or values.get("num_context_frames") == 0 else ["frame_dt"]
    common = {"name": found.path.stem, "num_axes": num_axes, "num_context_frames": max(1, min(10, shape[1] // 2))}
    return replace(found, values={**common, **values}, names=names, assumed=tuple(assumed))
