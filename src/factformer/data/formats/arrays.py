"""Arrays by name from npy, npz, MATLAB (v5 and v7.3) and plain HDF5 files, read where they are indexed."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import h5py
import numpy as np

from factformer.data.hdf5 import open_hdf5
from factformer.errors import UserError

SUFFIXES = (".npy", ".npz", ".mat", ".hdf5", ".h5")
NUMBERS = "fiubc"  # kinds of dtype: floating, integer, unsigned, boolean and, to be refused where wanted, complex
MATLAB_CLASS = "MATLAB_class"


class LazyArray(Protocol):
    """What all sources offer: a shape, a type, and values where they are indexed."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> np.dtype[Any]: ...

    def __getitem__(self, index: Any) -> Any: ...


class Transposed:
    """An HDF5 dataset of MATLAB with its axes as MATLAB shows them: HDF5 has them the other way round."""

    def __init__(self, source: h5py.Dataset) -> None:
        self._source = source

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(reversed(self._source.shape))

    @property
    def dtype(self) -> np.dtype[Any]:
        found: np.dtype[Any] = self._source.dtype
        return found

    def __getitem__(self, index: Any) -> Any:
        parts = index if isinstance(index, tuple) else (index,)
        full = parts + (slice(None),) * (len(self.shape) - len(parts))
        return np.asarray(self._source[tuple(reversed(full))]).T


def open_arrays(path: Path) -> Mapping[str, LazyArray]:
    """The numeric arrays of a file by name; those in groups are named ``group/name``."""
    if not path.is_file():
        raise UserError(f"no file {path}")
    if path.suffix not in SUFFIXES:
        raise UserError(f"cannot read {path}: its name must end in one of {', '.join(SUFFIXES)}")
    if path.suffix in (".npy", ".npz"):
        found = _numpy_arrays(path)
    elif path.suffix == ".mat" and not h5py.is_hdf5(path):
        found = _matlab_arrays(path)
    else:
        found = _hdf5_arrays(path)
    if not found:
        raise UserError(f"{path} holds no array of numbers")
    return found


def _numpy_arrays(path: Path) -> dict[str, LazyArray]:
    try:
        if path.suffix == ".npy":
            arrays = {path.stem: np.load(path, mmap_mode="r")}
        else:
            with np.load(path) as archive:
                arrays = {name: archive[name] for name in archive.files}
    except (ValueError, EOFError, OSError, zipfile.BadZipFile) as error:
        raise UserError(f"{path} is damaged, truncated or holds objects: {_short(error)}") from None
    return {name: values for name, values in arrays.items() if values.dtype.kind in NUMBERS}


def _matlab_arrays(path: Path) -> dict[str, LazyArray]:
    from scipy.io import loadmat

    try:
        contents = loadmat(path)
    except Exception as error:  # a broken file makes scipy raise anything, IndexError and zlib.error too
        raise UserError(f"{path} is not a readable MATLAB file: {_short(error)}") from None
    return {
        name: values
        for name, values in contents.items()
        if not name.startswith("__") and isinstance(values, np.ndarray) and values.dtype.kind in NUMBERS
    }


def _hdf5_arrays(path: Path) -> dict[str, LazyArray]:
    file = open_hdf5(path)
    found: dict[str, LazyArray] = {}

    def visit(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset) and item.ndim > 0 and (item.dtype.kind in NUMBERS or is_complex(item)):
            found[name] = Transposed(item) if MATLAB_CLASS in item.attrs else item

    file.visititems(visit)
    return found


def is_complex(array: LazyArray) -> bool:
    return array.dtype.kind == "c" or array.dtype.names == ("real", "imag")  # the second way is MATLAB's in HDF5


def describe_arrays(arrays: Mapping[str, LazyArray]) -> str:
    """Names and shapes in one line."""
    shown = [f"{name} {tuple(array.shape)}" for name, array in list(arrays.items())[:12]]
    return ", ".join(shown) + (", …" if len(arrays) > 12 else "")


def _short(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
