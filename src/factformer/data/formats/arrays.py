"""Arrays by name from npy, npz, MATLAB (v5 and v7.3) and plain HDF5 files, read where they are indexed."""

from __future__ import annotations

import math
import tokenize
import zipfile
import zlib
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Protocol

import h5py
import numpy as np
from numpy.typing import NDArray

from factformer._support.files import regular_file
from factformer._support.limits import require_memory
from factformer._support.text import cut, first_line
from factformer.data.opening import HDF5_ERRORS, is_hdf5, open_hdf5, require_readable, require_written
from factformer.errors import UserError

SUFFIXES = (".npy", ".npz", ".mat", ".hdf5", ".h5")
NUMBERS = "fiubc"  # kinds of dtype: floating, integer, unsigned, boolean and, to be refused where wanted, complex
MATLAB_CLASS = "MATLAB_class"
TIMES = ("t", "time", "times")
"""Names of an array beside the frames that holds their times."""
TIMES_ADVICE = "store a list of numbers there, one for each frame, or rename or leave it out and say frame_dt"
KINDS = {"b": "true and false", "c": "complex numbers", "V": "structures"}
MAGIC = b"\x93NUMPY"
NUMPY_ERRORS = (
    ValueError,
    TypeError,
    OSError,
    EOFError,
    KeyError,
    SyntaxError,
    MemoryError,
    OverflowError,
    RecursionError,
    RuntimeError,
    zipfile.BadZipFile,
    zlib.error,
    tokenize.TokenError,
)
"""What NumPy and zipfile raise on damaged files."""


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


def open_arrays(path: Path, *, allow_external: bool = False, any_times: bool = False) -> Mapping[str, LazyArray]:
    """The numeric arrays of a file by name; those in groups are named ``group/name``.

    With ``any_times`` also what is called as times are, be it dates, text or a single number: see `split_times`.
    """
    regular_file(path)
    if path.suffix not in SUFFIXES:
        raise UserError(f"cannot read {path}: its name must end in one of {', '.join(SUFFIXES)}")
    if path.suffix in (".npy", ".npz"):
        found = _numpy_arrays(path)
    elif path.suffix == ".mat" and not is_hdf5(path):
        found = _matlab_arrays(path)
    else:
        found = _hdf5_arrays(path, allow_external)
    kept = found if any_times else {name: array for name, array in found.items() if _is_numeric(array)}
    if not kept:
        raise UserError(f"{path} holds no array of numbers")
    return kept


def _is_numeric(array: LazyArray) -> bool:
    return (array.dtype.kind in NUMBERS or is_complex(array)) and (
        len(array.shape) > 0 or isinstance(array, np.ndarray)
    )


def _is_times(name: str) -> bool:
    """Whether an array has a name of times; ``T``, which is often a temperature, is one of a list of numbers only."""
    return name.rsplit("/")[-1] in TIMES


def _numpy_arrays(path: Path) -> dict[str, LazyArray]:
    try:
        if path.suffix == ".npy":
            with path.open("rb") as file:
                _require_whole(path, "it", file, path.stat().st_size)
            arrays = {path.stem: np.load(path, mmap_mode="r")}
        else:
            _require_room(path)
            with np.load(path) as archive:
                arrays = {name: archive[name] for name in archive.files}
    except UserError:
        raise
    except NUMPY_ERRORS as error:
        raise UserError(f"{path} is damaged, truncated or holds objects: {first_line(error)}") from None
    return {name: values for name, values in arrays.items() if values.dtype.kind in NUMBERS or _is_times(name)}


def _require_room(path: Path) -> None:
    """Raise where members of an archive are no arrays, hold less than they say, or unpack to more than the memory."""
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        total = sum(member.file_size for member in members)
        require_memory(total, f"{path} unpacked", "store its arrays as npy or HDF5 files, which are read in parts")
        names = [member.filename for member in members]
        for member in members:
            if names.count(member.filename) > 1:
                raise UserError(f"{path} holds several arrays called {member.filename!r}; keep one of them")
            with archive.open(member) as file:
                if not member.filename.endswith(".npy") or file.read(len(MAGIC)) != MAGIC:
                    raise UserError(
                        f"{path}: its member {member.filename!r} is no array; write such files with numpy.savez"
                    )
            with archive.open(member) as file:
                _require_whole(path, member.filename, file, member.file_size)


def _require_whole(path: Path, name: str, file: IO[bytes], size: int) -> None:
    """Raise where the header of an array says that it holds more than there are bytes."""
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(file)
    if not dtype.hasobject and math.prod(shape) * dtype.itemsize > size:
        raise UserError(f"{path} is damaged: {name} holds less than its shape {cut(shape)} says")


def _matlab_arrays(path: Path) -> dict[str, LazyArray]:
    from scipy.io import loadmat

    require_readable([path], "mat")
    try:
        contents = loadmat(path)
    except Exception as error:  # a broken file makes scipy raise anything, IndexError and zlib.error too
        raise UserError(f"{path} is not a readable MATLAB file: {first_line(error)}") from None
    return {
        name: values
        for name, values in contents.items()
        if not name.startswith("__")
        and isinstance(values, np.ndarray)
        and (values.dtype.kind in NUMBERS or _is_times(name))
    }


def _hdf5_arrays(path: Path, allow_external: bool) -> dict[str, LazyArray]:
    file = open_hdf5(path, allow_external=allow_external)
    found: dict[str, LazyArray] = {}

    def visit(name: str, item: Any) -> None:
        if not isinstance(item, h5py.Dataset) or item.shape is None:
            return
        if _is_times(name) or (item.ndim > 0 and (item.dtype.kind in NUMBERS or is_complex(item))):
            require_written(path, name, item)
            found[name] = Transposed(item) if MATLAB_CLASS in item.attrs else item

    try:
        file.visititems(visit)
        for name, item in _linked(file, path) if allow_external else ():
            visit(name, item)
    except UserError:
        raise
    except HDF5_ERRORS as error:
        raise UserError(f"{path} is damaged: {first_line(error)}; copy it again") from None
    return found


def _linked(file: h5py.File, path: Path) -> Iterator[tuple[str, Any]]:
    """The arrays that external links lead to, each file looked at first; links in linked files are not followed."""
    links: dict[str, str] = {}

    def collect(name: str, link: Any) -> None:
        if isinstance(link, h5py.ExternalLink):
            links[name] = link.filename

    file.visititems_links(collect)
    for name, target in links.items():
        require_readable([path.parent / target])
        item = file[name]
        members: dict[str, Any] = {"": item}
        if isinstance(item, h5py.Group):
            members = {}
            item.visititems(members.__setitem__)
        for member, values in members.items():
            yield f"{name}/{member}".rstrip("/"), values


def split_times(
    path: Path, arrays: Mapping[str, LazyArray], taken: Collection[str] = ()
) -> tuple[dict[str, LazyArray], NDArray[np.float64] | None]:
    """The arrays that may be fields, and the times of the frames where one called ``t`` or ``time`` holds them.

    ``taken`` are arrays that were said to be fields. Dates count in seconds from the first. What is called so and is
    neither times nor a field is refused: frames would be read as 1 apart.
    """
    fields = {name: array for name, array in arrays.items() if _is_numeric(array)}
    if not fields:
        raise UserError(f"{path} holds no array of numbers")
    names = [name for name in arrays if name.rsplit("/")[-1].lower() in TIMES and name not in taken]
    lines = {name: arrays[name] for name in names if is_line(arrays[name])}
    found = lines or {name: arrays[name] for name in names if _is_times(name) and _would_be_times(arrays, name)}
    rest = {name: array for name, array in fields.items() if name not in found}
    if not found or not rest:
        return fields, None
    if len(found) > 1:
        raise UserError(f"{path} holds several arrays of times: {', '.join(found)}; say frame_dt and leave them out")
    ((name, values),) = found.items()
    return rest, as_times(f"{path}: {name}", np.asarray(values[...]))


def as_times(name: str, values: NDArray[Any]) -> NDArray[np.float64]:
    """Times as a list of numbers, those of dates in seconds from the first.

    Those of each trajectory, ``(trajectory, frame)``, must be the same.
    """
    rows = values.reshape(-1, values.shape[-1]) if values.ndim > 1 and max(values.shape) < values.size else values
    if rows.ndim > 1 and rows.shape[0] and (rows == rows[:1]).all():
        values = rows[0]
    if sum(size != 1 for size in values.shape) > 1:
        raise UserError(f"{name} has shape {values.shape} and differs by trajectory; {TIMES_ADVICE}")
    values = values.reshape(-1)
    if values.dtype.kind in "mM":
        return (values - values[:1] if values.dtype.kind == "M" else values) / np.timedelta64(1, "s")
    if values.dtype.kind not in "fiu":
        raise UserError(f"{name} holds {KINDS.get(values.dtype.kind, 'text')} where times should be; {TIMES_ADVICE}")
    return values.astype(np.float64)


def _would_be_times(arrays: Mapping[str, LazyArray], name: str) -> bool:
    """Whether an array has the shape of times: at most one axis, or those of trajectories and frames of another."""
    shape = tuple(arrays[name].shape)
    others = (tuple(other.shape) for other in arrays.values())
    return sum(size != 1 for size in shape) <= 1 or any(len(other) > 2 and other[:2] == shape for other in others)


def is_line(array: LazyArray) -> bool:
    """Whether an array has one axis, but for those of one entry that MATLAB adds; a single number is none."""
    return len(array.shape) > 0 and array.dtype.kind in "fiu" and sum(size != 1 for size in array.shape) <= 1


def is_complex(array: LazyArray) -> bool:
    return array.dtype.kind == "c" or array.dtype.names == ("real", "imag")  # the second way is MATLAB's in HDF5


def describe_arrays(arrays: Mapping[str, LazyArray]) -> str:
    """Names and shapes in one line."""
    shown = [f"{name} {tuple(array.shape)}" for name, array in list(arrays.items())[:12]]
    return ", ".join(shown) + (", …" if len(arrays) > 12 else "")
