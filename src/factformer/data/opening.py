"""The door for files of others: regular files only, looked at by a child process first, and nothing outside of them.

A damaged HDF5 file can make its library loop for ever, a damaged MATLAB file can crash its reader, and an HDF5 file
can lead to any other file of the computer. So a child process with limits on time and memory reads what matters first
(`factformer.data._probe`). One look per file and process is enough, and files that this process wrote need none.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import h5py

from factformer._support.files import regular_file
from factformer._support.limits import available_memory
from factformer._support.text import first_line
from factformer.data import _probe
from factformer.errors import UserError

Kind = Literal["hdf5", "mat", "netcdf3", "zarr"]
SECONDS = 5
"""Processor time for a small file; importing h5py takes 0.1 s of it."""
WALL_SECONDS = 30
"""Time on the clock, which passes without work where a disk is slow or other programs are running."""
BYTES_PER_SECOND = 10_000_000
"""Speed at which large files are given time."""
HDF5_ERRORS = (
    OSError,
    RuntimeError,
    LookupError,
    ValueError,
    TypeError,
    AttributeError,
    ArithmeticError,
    MemoryError,
)
"""What h5py raises on damaged files; our own `UserError` is a ValueError and is to be caught before."""
SIGNATURE = b"\x89HDF\r\n\x1a\n"

CONVERT = "`factformer convert` reads npy, npz, mat, PDEBench, NetCDF, zarr and VTK files"

_looked_at: dict[tuple[str, int, int], tuple[str, ...]] = {}
"""What lies outside of each file that was found readable, by name, size and time of change."""


class UnreadableFileError(UserError):
    """A file that is damaged, no file of its format, or not to be trusted."""


def open_hdf5(path: Path, *, allow_external: bool = False) -> h5py.File:
    """Open for reading; what is wrong with the file is said in one line.

    Files that lead to other files are refused unless ``allow_external``.
    """
    require_inside(path, allow_external=allow_external)
    try:
        return h5py.File(path, "r", locking="best-effort")
    except FileNotFoundError:
        raise UnreadableFileError(f"no file {path}") from None
    except PermissionError:
        raise UnreadableFileError(f"cannot read {path}: permission denied") from None
    except OSError as error:
        text = str(error)
        if "signature not found" in text:
            advice = "" if path.suffix in (".hdf5", ".h5", ".mat") else f"; {CONVERT}"
            raise UnreadableFileError(f"{path} is not an HDF5 file (or an empty or broken one){advice}") from None
        what = "truncated" if "truncated" in text else "damaged"
        raise UnreadableFileError(f"{path} is {what}: {first_line(error)}; copy or generate it again") from None


def require_inside(path: Path, *, allow_external: bool = False) -> None:
    """Raise where an HDF5 file is not readable, or leads to other files and these are not allowed."""
    require_readable([path])
    outside = _looked_at[_state(path)]
    if outside and not allow_external:
        raise UnreadableFileError(
            f"{path} leads to other files: {outside[0]}; if you trust it, `factformer convert --allow-external` "
            "copies what it holds into one file"
        )


@contextmanager
def reading_hdf5(path: Path, *, allow_external: bool = False) -> Iterator[h5py.File]:
    """`open_hdf5` for a short look, in which the errors of the library are said in one line too."""
    with open_hdf5(path, allow_external=allow_external) as file:
        try:
            yield file
        except UserError:
            raise
        except HDF5_ERRORS as error:
            raise UnreadableFileError(f"{path} is damaged: {first_line(error)}; copy or generate it again") from None


def is_hdf5(path: Path) -> bool:
    """Whether the signature of HDF5 is at the start or, behind a header such as MATLAB's, at 512, 1024, 2048 …"""
    with regular_file(path).open("rb") as file:
        place, size = 0, os.fstat(file.fileno()).st_size
        while place < size:
            file.seek(place)
            if file.read(len(SIGNATURE)) == SIGNATURE:
                return True
            place = max(512, 2 * place)
    return False


def require_readable(paths: Sequence[Path], kind: Kind = "hdf5") -> None:
    """Raise where reading one of the files, or of the folders of zarr, would hang, crash or exhaust the memory."""
    states = {path: _state(path if kind == "zarr" else regular_file(path)) for path in paths}
    unknown = [path for path in paths if states[path] not in _looked_at]
    if not unknown:
        return
    answers, why = _look(unknown, kind)
    for path, answer in zip(unknown, answers, strict=False):
        if answer.get("memory"):
            raise UnreadableFileError(
                f"{path} is damaged or too large: reading it takes more memory than there is; copy it again"
            )
        _looked_at[states[path]] = tuple(answer.get("outside", ()))
    if len(answers) < len(unknown):
        raise UnreadableFileError(f"{unknown[len(answers)]} is damaged: {why}; copy or generate it again")


def require_written(path: Path, name: str, values: h5py.Dataset) -> None:
    """Raise where the file does not hold all the values of an array: HDF5 fills what is missing with zeros."""
    if not values.size or values.external or values.is_virtual:
        return
    stored = values.id.get_storage_size()
    if values.chunks is None:
        missing = stored < values.size * values.id.get_type().get_size()
    else:
        needed = math.prod(-(-size // chunk) for size, chunk in zip(values.shape, values.chunks, strict=True))
        missing = stored < needed or values.id.get_num_chunks() < needed
    if missing:
        raise UserError(
            f"{path} is incomplete: {name} of shape {values.shape} was never written in full, and missing values "
            "would be read as zeros; write or copy it again"
        )


def trust(path: Path) -> None:
    """Remember that this process has written the file itself."""
    _looked_at[_state(path)] = ()


def _state(path: Path) -> tuple[str, int, int]:
    found = path.stat()
    return str(path.resolve()), found.st_size, found.st_mtime_ns


def _look(paths: Sequence[Path], kind: Kind) -> tuple[list[dict[str, Any]], str]:
    """The answers about the first files, all of them if all goes well, and why there is none about the next."""
    extra = sum(path.stat().st_size for path in paths) // BYTES_PER_SECOND + len(paths) - 1
    task = {
        "kind": kind,
        "paths": [str(path.resolve()) for path in paths],
        "seconds": SECONDS + extra,
        "memory": available_memory() if kind == "mat" else 0,
    }
    command = [sys.executable, "-P", _probe.__file__]
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "PYTHONIOENCODING": "utf-8"}
    try:
        done = subprocess.run(
            command,
            input=json.dumps(task),
            env=environment,
            timeout=WALL_SECONDS + extra,
            capture_output=True,
            encoding="utf-8",
            check=False,
        )
    except subprocess.TimeoutExpired as late:
        output = late.stdout or b""
        text = output.decode() if isinstance(output, bytes) else output
        return _answers(text), "reading it does not end"
    answers = _answers(done.stdout)
    if len(answers) == len(paths):
        return answers, ""
    if done.returncode > 0 and "Traceback" in done.stderr:
        raise RuntimeError(f"cannot look at files in a child process: {done.stderr.strip()[-200:]}")
    if -done.returncode in (getattr(signal, "SIGXCPU", 0), signal.SIGTERM, getattr(signal, "SIGKILL", 9)):
        return answers, "reading it does not end"
    return answers, f"it crashes the library that reads it (signal {-done.returncode})"


def _answers(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]
