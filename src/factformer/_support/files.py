"""Writing files so that a name never stands for half a file, reading regular files only, and system errors in one line.

Temporary files lie beside the file they become. Their names cannot be guessed, they are never opened through a link,
and `clean_leftovers` knows them: ``.<stem>.<mark>.partial<suffix>`` and ``.<name>.<mark>.tmp``, where the mark is
``<computer>-<process>-<random>``.
"""

from __future__ import annotations

import errno
import hashlib
import os
import platform
import re
import secrets
import shutil
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from factformer.errors import UserError

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT)
MARK = r"([0-9a-f]{8})-(\d+)-[0-9a-f]{16}"
"""Which computer and which process made a temporary file or folder."""
LEFTOVER = re.compile(rf"\..+\.{MARK}\.(tmp|partial(\.[^.]+)?)")
"""Names of our temporary files."""
ABANDONED_AFTER = 24 * 3600.0
"""Seconds without a change after which a temporary file of another computer belongs to no running command."""


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
    with explained(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.stem[:50]}.{_process_mark()}.partial{path.suffix}")
        os.close(_create(partial))
        try:
            yield partial
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)


def regular_file(path: Path) -> Path:
    """``path``, if it is a regular file or a link to one; a FIFO or a device would never end, and is refused."""
    try:
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(f"no file {path}") from None
    except (OSError, ValueError) as error:  # a name that is too long or holds a null character
        raise UserError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None
    if stat.S_ISDIR(mode):
        raise UserError(f"{path} is a folder, not a file")
    if not stat.S_ISREG(mode):
        raise UserError(f"{path} is not a regular file: FIFOs, sockets and devices are not read; copy it to a file")
    return path


def read_text(path: Path, longest: int = 2**26) -> str:
    """The text of a regular UTF-8 file of at most ``longest`` bytes."""
    size = os.stat(regular_file(path)).st_size
    if size > longest:
        raise UserError(f"{path} holds {size_text(size)}, at most {size_text(longest)} are read: it is no such file")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise UserError(f"{path} is not UTF-8 text: save it as UTF-8") from None
    except PermissionError:
        raise UserError(f"cannot read {path}: permission denied") from None


def clean_leftovers(folder: Path) -> list[Path]:
    """Remove temporary files that killed commands have left in ``folder``, and say which.

    Only files with our names whose process is gone, or, from another computer, that are a day old.
    """
    removed = []
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        name = LEFTOVER.fullmatch(path.name)
        if name is None:
            continue
        try:
            found = path.lstat()
            if stat.S_ISREG(found.st_mode) and _is_abandoned(name[1], int(name[2]), found.st_mtime):
                path.unlink()
                removed.append(path)
        except OSError:  # gone already, or not ours to remove
            continue
    return removed


def _is_abandoned(computer: str, process: int, changed: float) -> bool:
    if computer != _computer() or os.name != "posix":  # elsewhere, a signal 0 is no question
        return time.time() - changed > ABANDONED_AFTER
    return not is_running(process)


def is_running(process: int) -> bool:
    """Whether this computer, a POSIX system, runs a process of that number."""
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # it runs for somebody else
        return True
    return True


def _process_mark() -> str:
    return f"{_computer()}-{os.getpid()}-{secrets.token_hex(8)}"


def _computer() -> str:
    return hashlib.sha256(platform.node().encode()).hexdigest()[:8]


def _create(path: Path) -> int:
    """A new file for writing that did not exist before, not even as a link; permissions are the user's usual ones."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    return os.open(path, flags, 0o666)


def file_checksum(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


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
    temporary = path.with_name(f".{path.name[:50]}.{_process_mark()}.tmp")
    descriptor = _create(temporary)
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    flush(path.parent)


def write_all(descriptor: int, content: bytes | memoryview, offset: int) -> None:
    """Write everything at ``offset``; the system may take it in parts."""
    view = memoryview(content)
    while view:
        count = os.pwrite(descriptor, view, offset)
        view, offset = view[count:], offset + count


def flush(path: Path) -> None:
    """Make a file, or the names in a folder, survive a power failure."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_together(writers: Mapping[Path, Callable[[Path], object]], retired: Iterable[Path] = ()) -> None:
    """Write files that belong together: all under temporary names first, then each gets its own, in the given order.

    ``retired`` files are removed before the new ones come. A process that is killed in between leaves a mark beside
    the first file, and `require_free` lets the next one finish.
    """
    mark = _unfinished(next(iter(writers)))
    with ExitStack() as stack:
        partials = {path: stack.enter_context(whole_file(path)) for path in reversed(list(writers))}
        for path, write in writers.items():
            with explained(path):
                write(partials[path])
        with explained(mark):
            write_atomically(mark, "".join(f"{path.name}\n" for path in writers))
            for path in retired:
                path.unlink(missing_ok=True)
    with explained(mark):
        mark.unlink(missing_ok=True)


def require_free(paths: Sequence[Path], *, overwrite: bool) -> None:
    """Raise where one of the files of a `write_together` exists and ``overwrite`` is not given."""
    mark = _unfinished(paths[0])
    unfinished = set(read_text(mark).splitlines()) if mark.is_file() else set()
    for path in paths:
        if path.exists() and not overwrite and path.name not in unfinished:
            raise UserError(f"{path} exists; add --overwrite to replace it or choose another name")


def _unfinished(path: Path) -> Path:
    return path.with_name(f".{path.name}.unfinished")


def scratch_folder(target: Path) -> Path:
    """A new folder beside ``target``, to be given its name when it is whole."""
    path = target.with_name(f".{target.name[:50]}-{_process_mark()}")
    path.mkdir()
    return path


def clean_scratch_folders(target: Path) -> None:
    """Remove what killed processes have left of a `scratch_folder` of ``target``."""
    pattern = re.compile(re.escape(f".{target.name[:50]}-") + MARK)
    for path in sorted(target.parent.iterdir()) if target.parent.is_dir() else []:
        name = pattern.fullmatch(path.name)
        if name is not None and path.is_dir() and _is_abandoned(name[1], int(name[2]), path.lstat().st_mtime):
            shutil.rmtree(path, ignore_errors=True)
