"""Writing files so that a name never stands for half a file, and system errors in one line."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from factformer.errors import UserError

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT)


@contextmanager
def explained(path: Path, advice: str = "") -> Iterator[None]:
    """Turn a full disk or an unwritable folder into one line about ``path``."""
    try:
        yield
    except (OSError, RuntimeError) as error:  # HDF5 raises RuntimeError when closing a file fails
        number = error_number(error)
        tail = f"; {advice}" if advice else ""
        if number in FULL:
            raise UserError(f"the disk is full while writing {path}: free some space, try again{tail}") from error
        if number in FORBIDDEN:
            raise UserError(f"cannot write {path}: {os.strerror(number)}; choose another folder") from error
        if number in (errno.ENOTDIR, errno.EEXIST):
            raise UserError(f"cannot write {path}: a part of this path is a file, not a folder") from error
        raise


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A name beside ``path`` to write to; the file gets its own name when it is whole, and is gone if it never is."""
    partial = path.with_name(f".{path.stem}.{os.getpid()}.partial{path.suffix}")
    with explained(path):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            yield partial
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)


def size_text(num_bytes: float) -> str:
    """A number of bytes as people say it: ``12.3 MB``."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if num_bytes < 1000:
            return f"{num_bytes:.3g} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.3g} TB"


def error_number(error: BaseException) -> int:
    """The system's error number, which HDF5 and NumPy keep in the text only; 0 when there is none."""
    if isinstance(error, OSError) and error.errno:
        return error.errno
    if re.search(r"\d+ requested and \d+ written", str(error)):
        return errno.ENOSPC
    found = re.search(r"errno = (\d+)", str(error))
    return int(found.group(1)) if found else 0


def write_atomically(path: Path, text: str) -> None:
    """Write a small text file under a temporary name, then give it its own."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


def write_all(descriptor: int, content: bytes, offset: int) -> None:
    """Write everything at ``offset``; the system may take it in parts."""
    view = memoryview(content)
    while view:
        count = os.pwrite(descriptor, view, offset)
        view, offset = view[count:], offset + count


def sync_folder(folder: Path) -> None:
    """Make renames in ``folder`` survive a power failure."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
