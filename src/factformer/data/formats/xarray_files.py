"""NetCDF files, zarr stores and xarray objects: their names, coordinates and units say what they hold.

A dimension is the time by its name or by CF's attributes (``axis="T"``, ``units="hours since …"``), trajectories and
channels by their names, and an axis of the grid where it has a coordinate or an axis's name. Variables that vary in
time and over the grid are predicted; those that only vary over the grid are static; numbers of each trajectory are
parameters. Coordinates cannot tell whether an axis is periodic: an attribute ``periodic`` does, or the user.
"""

from __future__ import annotations

import lzma
import math
import re
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from factformer._support.extras import import_extra
from factformer._support.files import regular_file
from factformer._support.silence import unwarned
from factformer._support.text import cut, first_line
from factformer.data.formats.arrays import NUMBERS, TIMES, LazyArray, as_times
from factformer.data.formats.pdebench import Found
from factformer.data.formats.zarr_store import missing_chunks, require_harmless
from factformer.data.layout import AXIS_NAMES
from factformer.data.opening import HDF5_ERRORS, UnreadableFileError, is_hdf5, require_inside, require_readable
from factformer.errors import UserError

SUFFIXES = (".nc", ".nc4", ".cdf", ".netcdf")
EXTRA = "xarray"
TRAJECTORIES = ("n", "trajectory", "sample", "member", "ensemble", "realization", "case", "run", "batch")
CHANNELS = ("c", "channel", "component", "vector")
SPACES = ("x", "y", "z", "w", "lon", "lat", "longitude", "latitude", "level", "lev", "height", "altitude", "depth", "r")
FLAGS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
READ_ERRORS = (RuntimeError, ValueError, OSError, EOFError, zlib.error, lzma.LZMAError)
"""What h5netcdf, and the codecs of zarr, raise where the bytes of values are damaged."""
SMALL = 2**24
"""Bytes of a variable that is read at once: a small read through xarray takes milliseconds."""


class Variable:
    """A variable of xarray, read where it is indexed."""

    def __init__(self, source: Any, path: Path) -> None:
        self._source, self._where = source.variable, f"{path} is damaged: {cut(str(source.name))}"
        self.shape: tuple[int, ...] = tuple(self._source.shape)
        self.dtype: np.dtype[Any] = np.dtype(self._source.dtype)
        self._values: NDArray[Any] | None = None

    def __getitem__(self, index: Any) -> NDArray[Any]:
        try:
            if self._values is None and math.prod(self.shape) * self.dtype.itemsize <= SMALL:
                self._values = np.asarray(self._source.values)
            return np.asarray(self._source[index].values if self._values is None else self._values[index])
        except READ_ERRORS as error:
            raise UnreadableFileError(f"{self._where} cannot be read ({first_line(error)}); copy it again") from None


def is_xarray(values: Any) -> bool:
    """Whether an object is a DataArray or a Dataset, without importing xarray."""
    return type(values).__module__.partition(".")[0] == "xarray" and hasattr(values, "dims")


def is_zarr(path: Path) -> bool:
    """Whether a folder is a zarr store, of version 2 or 3."""
    return path.is_dir() and any((path / name).is_file() for name in (".zgroup", ".zarray", "zarr.json", ".zmetadata"))


def describe_netcdf(path: Path, *, allow_external: bool = False) -> Found:
    """What a NetCDF file says: version 4 is HDF5, the older ones are of their own kind."""
    xarray = import_extra("xarray", EXTRA)
    options: dict[str, Any] = {"decode_times": False}
    if is_hdf5(path):
        import_extra("h5netcdf", EXTRA)
        require_inside(path, allow_external=allow_external)
        options |= {"engine": "h5netcdf", "phony_dims": "access"}
    elif _first_bytes(path) == b"CDF":
        require_readable([path], "netcdf3")
        options |= {"engine": "scipy"}
    else:
        raise UserError(f"{path} is not a NetCDF file (or an empty or broken one)")
    return describe_xarray(_opened(path, "NetCDF file", lambda: xarray.open_dataset(path, **options)), path)


def _first_bytes(path: Path) -> bytes:
    with regular_file(path).open("rb") as file:
        return file.read(3)


def describe_zarr(path: Path, *, allow_external: bool = False) -> Found:
    """What a zarr store says."""
    xarray = import_extra("xarray", EXTRA)
    zarr = import_extra("zarr", EXTRA)
    require_harmless(path, allow_external=allow_external)
    require_readable([path], "zarr")
    with unwarned("Failed to open Zarr store with consolidated metadata"):
        found = _opened(path, "zarr store", lambda: xarray.open_zarr(path, decode_times=False, chunks=None))
    left_out = missing_chunks(path, zarr.open_group(path, mode="r"))
    return describe_xarray(found[sorted(found.data_vars)], path).changed(left_out=left_out)  # folders have no order


def _opened(path: Path, what: str, opening: Callable[[], Any]) -> Any:
    """What xarray opens, with the coordinates of its axes read; its errors are said in one line."""
    try:
        found = opening()
        for name in found.sizes:
            if name in found.coords:
                found[name].load()
    except (*HDF5_ERRORS, *READ_ERRORS) as error:
        raise UnreadableFileError(f"{path} is not a readable {what}: {first_line(error)}") from None
    return found


def describe_xarray(given: Any, path: Path) -> Found:
    """What a DataArray or Dataset says; ``path`` names it in messages."""
    if hasattr(given, "to_dataset") and hasattr(given, "name"):
        if given.name is None:
            raise UserError(f"{path}: the DataArray has no name; give it one with .rename('height')")
        given = given.to_dataset().assign_attrs(given.attrs)
    variables = {str(name): values for name, values in given.data_vars.items() if values.dtype.kind in NUMBERS}
    if not variables:
        raise UserError(f"{path} holds no variable of numbers")
    roles = {str(name): _role(given, str(name)) for name in given.sizes}
    letters = _axis_letters(variables, roles)
    names = {**{name: role for name, role in roles.items() if role in "ntc"}, **letters}
    arrays: dict[str, LazyArray] = {name: Variable(values, path) for name, values in variables.items()}
    layouts = {
        name: "".join(names[str(dim)] for dim in values.dims)
        for name, values in variables.items()
        if all(str(dim) in names for dim in values.dims)
    }
    for name, layout in list(layouts.items()):
        if len(set(layout)) != len(layout):  # two dimensions of one kind, as of components
            del layouts[name]
    times = next((given[name] for name in names if names[name] == "t" and name in given.coords), None)
    beside = _times_beside(given, names, path) if times is None else None
    coordinates = _coordinates(given, letters)
    if beside is not None:
        times = beside
        arrays.pop(str(beside.name), None)
    lines = {letter: np.asarray(line.values, dtype=np.float64) for letter, line in coordinates.items()}
    found = Found(path, arrays, lines, layouts=layouts, sources=(path,), one_time_each=True)
    numbers, unit = (None, "") if times is None else _times(times, path)
    units = {name: str(values.attrs["units"]) for name, values in variables.items() if "units" in values.attrs}
    periodic = _periodic(given, letters)
    return found.changed(
        times=numbers,
        dimensions={name: " ".join(map(str, values.dims)) for name, values in variables.items()},
        units={**units, **({"time": unit} if unit else {})},
        values=_values(path, variables, layouts, "".join(letters.values()), periodic),
        names={name: name for name in variables},
        assumed=(
            "boundary",
            *(() if coordinates else ("extent", "points")),
            *(() if times is not None else ("frame_dt",)),
        ),
        unsaid=() if periodic is not None else ("periodic",),
        left_out=tuple(
            str(line.name)
            for name, letter in letters.items()
            for line in given.coords.values()
            if line.dims == (name,) and letter not in coordinates
        ),
    )


def _role(given: Any, name: str) -> str:
    """``n``, ``t`` or ``c``, ``x`` for an axis of the grid, ``?`` where neither name nor coordinate tells."""
    known = given[name] if name in given.coords else None
    attributes = {} if known is None else known.attrs
    word, unit = name.lower(), str(attributes.get("units", ""))
    if word in TIMES or attributes.get("axis") == "T" or attributes.get("standard_name") == "time" or " since " in unit:
        return "t"
    if known is not None and known.dtype.kind in "mM":
        return "t"
    if word in TRAJECTORIES or attributes.get("axis") == "E":
        return "n"
    if word in CHANNELS:
        return "c"
    return "x" if word in SPACES or (known is not None and known.dtype.kind in "fiu") else "?"


def _axis_letters(variables: Mapping[str, Any], roles: Mapping[str, str]) -> dict[str, str]:
    """The axes of the grid in the order of the variable that has most of them: ``x``, ``y`` …"""
    axes = max(([str(dim) for dim in v.dims if roles[str(dim)] == "x"] for v in variables.values()), key=len)
    return dict(zip(axes, AXIS_NAMES, strict=False)) if len(axes) <= len(AXIS_NAMES) else {}


def _values(
    path: Path, variables: Mapping[str, Any], layouts: Mapping[str, str], axes: str, periodic: Any
) -> dict[str, Any]:
    """A problem of what varies in time, what does not, and numbers of trajectories; empty where nothing varies."""
    kinds: dict[str, dict[str, int]] = {"state": {}, "static": {}}
    parameters = []
    for name, layout in layouts.items():
        width = int(variables[name].shape[layout.index("c")]) if "c" in layout else 1
        if axes and set(axes) <= set(layout):
            kinds["state" if "t" in layout else "static"][name] = width
        elif layout == "n" and name.isidentifier():
            parameters.append(name)
    if not kinds["state"]:
        return {}
    said = {} if periodic is None else {"periodic": periodic}
    return {
        "name": path.stem,
        "num_axes": len(axes),
        **kinds,
        **({"parameters": parameters} if parameters else {}),
        **said,
    }


def _periodic(given: Any, letters: Mapping[str, str]) -> list[bool] | None:
    """Whether the axes are periodic, by attributes of their coordinates or of the whole; None where one is not said.

    The attribute of the whole may hold a word or number for each axis, as a list or in one text: ``[true, false]``.
    """
    flags: list[bool | None] = []
    for index, name in enumerate(letters):
        attributes = given[name].attrs if name in given.coords else {}
        if attributes.get("topology") == "circular" or "modulo" in attributes:
            flags.append(True)
            continue
        said = attributes.get("periodic", given.attrs.get("periodic"))
        words = str(np.asarray(said).tolist()).lower()
        each = re.findall(r"[^\s,()\[\]'\"]+", words)
        word = each[index if len(each) > 1 else 0] if len(each) in (1, len(letters)) else ""
        flags.append(FLAGS.get(word))
    return None if not flags or None in flags else [bool(flag) for flag in flags]


def _coordinates(given: Any, letters: Mapping[str, str]) -> dict[str, Any]:
    """The coordinates of the axes by their letters.

    An axis without one of its own name has the only increasing line of numbers along it, where every axis has one.
    """
    own = {letter: given[name] for name, letter in letters.items() if name in given.coords}
    found = dict(own)
    for name, letter in letters.items():
        lines = [line for line in given.coords.values() if line.dims == (name,) and line.dtype.kind in "fiu"]
        lines = [line for line in lines if (np.diff(line.values.astype(np.float64)) > 0).all()]
        if letter not in own and len(lines) == 1:
            found[letter] = lines[0]
    return found if len(found) == len(letters) else own


def _times_beside(given: Any, names: Mapping[str, str], path: Path) -> Any:
    """What is called as times are, along an axis of time without a coordinate; None where nothing is."""
    frames = [name for name, role in names.items() if role == "t" and name in given.sizes]
    found = []
    for name, values in given.variables.items():
        dims = [str(dim) for dim in values.dims]
        along = [dim for dim in dims if names.get(dim) != "n"]
        if name in TIMES and along and along == frames:
            found.append(given[name])
    if len(found) > 1:
        there = ", ".join(str(values.name) for values in found)
        raise UserError(f"{path} holds several arrays of times: {there}; keep one of them")
    return found[0] if found else None


def _times(times: Any, path: Path) -> tuple[NDArray[np.float64], str]:
    """Times as numbers, and their unit; dates count in seconds from the first."""
    values = np.asarray(times.values)
    unit = "s" if values.dtype.kind in "mM" else str(times.attrs.get("units", ""))
    return as_times(f"{path}: {cut(str(times.name))}", values), unit
