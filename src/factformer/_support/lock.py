"""One process at a time works in a run folder, or fetches a bundle: the file ``.lock`` names it.

The system's lock on that file decides. The system frees it when its process ends, however it ends, so what a killed
process leaves behind is taken over. Where there are no such locks, the process that the file names decides: it holds
the folder while it runs, and a number that another process has by now does not count.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from factformer._support.files import is_running
from factformer._support.run_names import LOCK
from factformer.errors import InUse, UserError

LONGEST_COMMAND = 160


@contextmanager
def locked(folder: Path, command: str = "") -> Iterator[None]:
    """Hold ``folder``, which is made if need be; folders that were made and are empty at the end go again."""
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = _acquire(folder / LOCK, _this_process(command))
    except OSError as error:
        raise UserError(f"cannot write in {folder}: {error.strerror}; choose another folder") from error
    try:
        yield
    finally:
        with suppress(OSError):
            if _is_at(descriptor, folder / LOCK):
                (folder / LOCK).unlink()
        os.close(descriptor)
        with suppress(OSError):
            for path in made:
                path.rmdir()


def _acquire(path: Path, owner: dict[str, Any]) -> int:
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o644)
        try:
            free = _lock(descriptor)
            if free and not _is_at(descriptor, path):  # its last owner has just removed it
                os.close(descriptor)
                continue
            found = _read(descriptor)
            if free is None:
                free = not _owner_runs(found)
            if not free:
                raise InUse(f"{path.parent} is in use by {_describe(found)}; wait for it or choose another folder")
            os.ftruncate(descriptor, 0)
            os.lseek(descriptor, 0, os.SEEK_SET)
            os.write(descriptor, json.dumps(owner).encode() + b"\n")
            return descriptor
        except BaseException:
            with suppress(OSError):
                os.close(descriptor)
            raise


def _lock(descriptor: int) -> bool | None:
    """Whether this process has the lock now; None where there are no locks."""
    try:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except (ImportError, OSError):  # another platform, or a file system without locks
        return None
    return True


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def _read(descriptor: int) -> dict[str, Any]:
    try:
        found = json.loads(os.read(descriptor, 10_000))
    except ValueError:  # empty: its owner is about to write
        return {}
    return found if isinstance(found, dict) else {}


def _this_process(command: str) -> dict[str, Any]:
    return {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "started": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        "process_started": _process_start(os.getpid()),
        "command": " ".join(command.split())[:LONGEST_COMMAND],
    }


def _owner_runs(owner: dict[str, Any]) -> bool:
    """Whether the process that a lock names still runs; one of another computer may."""
    pid = owner.get("pid")
    if not isinstance(pid, int) or isinstance(pid, bool) or pid < 1:
        return False
    if owner.get("host") != socket.gethostname() or os.name != "posix":  # elsewhere, a signal 0 is no question
        return True
    return is_running(pid) and owner.get("process_started") in (None, _process_start(pid))


def _process_start(pid: int) -> int | None:
    """When a process began, in ticks of the system; None where the system does not say."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        return int(text.rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return None


def _describe(owner: dict[str, Any]) -> str:
    if "pid" not in owner:
        return "another process"
    command = " ".join(str(owner.get("command") or "").split())[:LONGEST_COMMAND]
    text = f"process {owner['pid']} on {owner.get('host')} since {owner.get('started')}"
    return f"{text} ({command})" if command else text
