"""Stop a process dead at its n-th file-system event, as ``kill -9`` would.

An event is anything that changes files below a folder: creating, opening for writing, renaming, removing, writing
and flushing. What libraries in C write is seen where Python calls them. A file that is opened anew has two events:
before it is there, and when its first bytes are. So has a write: before it, and halfway through.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

KILLED = 137
PATHS = ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.chmod")
NEW = os.O_CREAT | os.O_TRUNC | os.O_APPEND
TORN = b'{"'
"""The first bytes of every file that is written in place and not under a temporary name."""


class Events:
    """Counts events below ``folder``; exits at number ``last``, or writes all of them to a log if that is 0."""

    def __init__(self, last: int, folder: Path) -> None:
        self.last, self.folder = last, os.path.realpath(folder)
        self.count = 0
        self.busy = False
        self.log = folder.with_name(f"{folder.name}.events")

    def happens(self, name: str, path: str, half: Callable[[], object] | None = None) -> None:
        """An event, and where it has two parts, the second: ``half`` leaves things as a kill in its middle would."""
        if self.busy or not path.startswith(self.folder + os.sep):
            return
        self.busy = True
        for part in ("before", "half")[: 1 if half is None else 2]:
            self.count += 1
            if self.last == 0:
                with self.log.open("a", encoding="utf-8") as file:
                    file.write(f"{part} {name} {os.path.relpath(path, self.folder)}\n")
            elif self.count == self.last:
                if part == "half":
                    half()
                os._exit(KILLED)
        self.busy = False

    def audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        """See what Python itself does to files."""
        if self.busy or not isinstance(arguments[0] if arguments else None, (str, bytes, os.PathLike)):
            return
        if event == "open":
            path, _, flags = arguments
            flags = flags or 0
            if flags & (os.O_WRONLY | os.O_RDWR | NEW):
                full = _full(path, -1)
                half = (lambda: _tear(full, flags)) if flags & NEW else None
                self.happens("open", full, half)
        elif event in PATHS:
            folder = arguments[2] if event == "os.rename" else arguments[1] if len(arguments) > 1 else -1
            if event in ("os.mkdir", "os.chmod"):
                folder = arguments[2]
            self.happens(event, _full(arguments[0], folder))

    def watch(self, module: Any, name: str, half: Callable[..., object] | None = None) -> None:
        """Let a function whose first argument is a descriptor be an event."""
        function = getattr(module, name)

        def watched(descriptor: int, *arguments: Any) -> Any:
            path = os.readlink(f"/proc/self/fd/{descriptor}")
            self.happens(name, path, (lambda: half(function, descriptor, *arguments)) if half else None)
            return function(descriptor, *arguments)

        setattr(module, name, watched)


def stop_at(last: int, folder: Path) -> None:
    """From now on this process has ``last`` events to live; 0 writes the log of all of them."""
    import h5py
    import safetensors.torch

    events = Events(last, folder)
    sys.addaudithook(events.audit)
    events.watch(os, "fsync")
    events.watch(os, "ftruncate")
    events.watch(os, "write", lambda write, descriptor, content: write(descriptor, content[: len(content) // 2]))
    events.watch(
        os, "pwrite", lambda write, descriptor, content, at: write(descriptor, content[: len(content) // 2], at)
    )
    serialize, open_file, close_file = safetensors.torch.serialize_file, h5py.File.__init__, h5py.File.close

    def watched_serialize(tensors: Any, path: Any, **options: Any) -> None:
        full = _full(path, -1)
        events.happens("save_file", full, lambda: _tear(full, NEW))
        serialize(tensors, path, **options)

    def watched_open(self: Any, name: Any, mode: str = "r", *arguments: Any, **options: Any) -> None:
        if mode != "r" and isinstance(name, (str, bytes, os.PathLike)):
            events.happens("HDF5 open", _full(name, -1))
        open_file(self, name, mode, *arguments, **options)

    def watched_close(self: Any) -> None:
        if self and self.mode != "r":
            events.happens("HDF5 close", _full(self.filename, -1))
        close_file(self)

    safetensors.torch.serialize_file = watched_serialize
    h5py.File.__init__, h5py.File.close = watched_open, watched_close


def _tear(path: str, flags: int) -> None:
    """A file that was opened anew and got its first bytes."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | flags & NEW, 0o644)
    os.write(descriptor, TORN)


def _full(path: Any, folder: Any) -> str:
    """The whole path of a name in the folder of a descriptor, or in the current one."""
    name = os.fsdecode(path)
    if isinstance(folder, int) and folder >= 0:
        return os.path.join(os.readlink(f"/proc/self/fd/{folder}"), name)
    return os.path.join(os.path.realpath(os.path.dirname(name) or "."), os.path.basename(name))
