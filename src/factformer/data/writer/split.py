"""Writing one split, batch by batch, so that any interruption loses no finished batch.

Unfinished work lives in a hidden folder beside the final file, ``.<name>.partial``:

* ``data.hdf5``: the file with space set aside for everything; values are written in place;
* ``<first>-<end>.json``: one note per finished batch of trajectories, with a checksum of its values and,
  for the training split, its moments;
* ``source``: the state of the file that the values come from, where they come from one.

Only a complete file gets the final name. Since every value has a fixed place, the bytes do not depend on
the order of writing, on interruptions, or on how many processes took part.
"""

from __future__ import annotations

import json
import os
import shutil
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import h5py

from factformer._support.files import explained, flush, size_text, write_all, write_atomically
from factformer.data.layout import (
    DIGEST,
    Contents,
    constant_fields,
    create_file,
    file_digest,
    file_fingerprint,
    offsets,
    varying_fields,
)
from factformer.data.opening import trust
from factformer.data.statistics import Moments, merge_moments
from factformer.data.writer.batch import BatchWriter
from factformer.data.writer.part import PartWriter, Share
from factformer.data.writer.places import CHECKSUM_SIZE, parameter_places, places
from factformer.errors import UserError
from factformer.problem import num_channels

BLOCK = 2**24
"""Bytes that are read at once for a checksum: a trajectory may be larger than the memory."""
KEPT = "finished batches are kept: start again with the same arguments to go on"


class SplitWriter:
    """Writes ``path`` (the final file) as `Contents` describe it, from a source in a certain ``state``.

    One process calls `prepare` and, when all batches are there, `finish`; any number of processes write
    batches in between.
    """

    def __init__(self, path: Path, contents: Contents, state: str = "") -> None:
        self.path = path
        self.contents = contents
        self.state = state
        self.work = path.with_name(f".{path.name}.partial")
        self.partial = self.work / "data.hdf5"
        self._lock: int | None = None

    def is_finished(self) -> bool:
        """Whether the final file is there already, with exactly these contents."""
        return self.path.exists() and file_fingerprint(self.path) == self.contents.fingerprint

    def prepare(self, *, overwrite: bool = False) -> None:
        """Create the unfinished file, or take up the one that an interrupted run has left."""
        if self.path.exists() and not overwrite:
            raise UserError(f"{self.path} exists already; choose another folder or add --overwrite")
        with explained(self.path):
            self.lock()
            if self.path.exists() and not overwrite:  # finished by another process in the meantime
                raise UserError(f"{self.path} exists already; choose another folder or add --overwrite")
            if self.partial.exists():
                found = file_fingerprint(self.partial, unfinished=True)
                if found == self.contents.fingerprint and self._found_state() == self.state:
                    return
                if found and self._notes() and not overwrite:  # without a finished batch it is of no use to anybody
                    raise UserError(
                        f"{self.work} holds unfinished work of other settings or another source; finish it with "
                        "the same arguments as before, or add --overwrite"
                    )
            for left_over in self.work.iterdir():
                left_over.unlink()
            temporary = self.work / "new.hdf5"
            try:
                self._require_space()
                create_file(temporary, self.contents)
                if self.state:
                    write_atomically(self.work / "source", self.state)
                os.replace(temporary, self.partial)
                flush(self.work)
            except BaseException:
                shutil.rmtree(self.work, ignore_errors=True)
                raise

    def pending(self, batch_size: int, *, verify: bool = True) -> list[range]:
        """Batches still to be written; to ``verify`` is to distrust notes whose values are damaged."""
        done: set[int] = set()
        for note in self._notes():
            batch = range(note["first"], note["end"])
            if not verify or self._checksum(batch) == note["checksum"]:
                done.update(batch)
            else:
                self._note_path(batch).unlink(missing_ok=True)
        total = self.contents.num_trajectories
        batches = [range(first, min(first + batch_size, total)) for first in range(0, total, batch_size)]
        return [batch for batch in batches if not done.issuperset(batch)]

    @contextmanager
    def batch(self, trajectories: range, share: Share | None = None) -> Iterator[BatchWriter]:
        """Write a batch; it counts as finished when the block ends without an error.

        Several processes write one batch together where each gives its ``share`` of the grid.
        """
        with explained(self.path, KEPT):
            if share is None:
                writer = BatchWriter(self.partial, self.contents, trajectories)
            else:
                writer = PartWriter(self.partial, self.contents, trajectories, share)
            try:
                yield writer
                writer.require_complete()
                writer.write_checksums()
                os.fsync(writer.descriptor)
            finally:
                os.close(writer.descriptor)
            if not writer.is_first:
                return
            note = {
                "first": trajectories.start,
                "end": trajectories.stop,
                "checksum": self._checksum(trajectories),
                "moments": [
                    {kind: moments.to_dict() for kind, moments in item.moments().items()} for item in writer.moments
                ],
            }
            write_atomically(self._note_path(trajectories), json.dumps(note))

    def finish(self) -> None:
        """Write the statistics and give the file its final name."""
        missing = self.pending(batch_size=1, verify=False)
        if missing:
            raise UserError(f"{self.path} lacks trajectory {missing[0].start}; start again")
        with explained(self.path, KEPT):
            if self.contents.split == "train":
                self._write_statistics()
            self._write_digest()
            os.replace(self.partial, self.path)
            trust(self.path)
            flush(self.path.parent)
            shutil.rmtree(self.work)

    def discard(self) -> None:
        """Remove what is unfinished."""
        shutil.rmtree(self.work, ignore_errors=True)

    def discard_if_empty(self) -> None:
        """Remove what is unfinished where this process began it and finished no batch of it."""
        if self._lock is not None and self.work.is_dir() and not self._notes():
            self.discard()

    def release(self) -> None:
        """Let other processes take up what is unfinished."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def lock(self) -> None:
        """Lock the folder of unfinished work; the system frees the lock of a process that dies."""
        import fcntl  # here, because reading data must work where this module does not exist

        while self._lock is None:
            with explained(self.path):
                self.work.mkdir(parents=True, exist_ok=True)
                self._lock = os.open(self.work, os.O_RDONLY)
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if not os.path.samestat(os.fstat(self._lock), os.stat(self.work)):
                    self.release()
            except FileNotFoundError:  # another process has just finished and removed the folder
                self.release()
            except BlockingIOError:
                self.release()
                raise UserError(
                    f"another process is writing {self.path}: wait for it or choose another folder"
                ) from None
            except OSError:  # a file system without locks
                self.release()
                return

    def _write_statistics(self) -> None:
        trajectories: dict[int, dict[str, Moments]] = {}
        for note in self._notes():
            for index, moments in enumerate(note["moments"], start=note["first"]):
                trajectories[index] = {kind: Moments.from_dict(values) for kind, values in moments.items()}
        total = merge_moments([trajectories[index] for index in sorted(trajectories)], self.contents.problem)
        where = offsets(self.partial)
        descriptor = os.open(self.partial, os.O_RDWR)
        try:
            for kind, found in total.items():
                for moment, values in (("mean", found.mean), ("std", found.std)):
                    write_all(descriptor, values.astype("<f8").tobytes(), where[f"statistics/{kind}_{moment}"])
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _found_state(self) -> str:
        """Of the source, when the unfinished work began."""
        note = self.work / "source"
        return note.read_text(encoding="utf-8") if note.exists() else ""

    def _notes(self) -> list[dict[str, Any]]:
        notes = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(self.work.glob("[0-9]*.json"))]
        return sorted(notes, key=lambda note: (note["first"], note["end"]))

    def _note_path(self, trajectories: range) -> Path:
        return self.work / f"{trajectories.start:08d}-{trajectories.stop:08d}.json"

    def _write_digest(self) -> None:
        with h5py.File(self.partial, "r") as file:
            digest = file_digest(file)
        descriptor = os.open(self.partial, os.O_RDWR)
        try:
            write_all(descriptor, digest, offsets(self.partial)[DIGEST])
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _checksum(self, trajectories: range) -> int:
        """CRC of the batch, with the checksums of its frames, as it lies in the file."""
        checksum = 0
        with open(self.partial, "rb") as file:
            for place in places(self.partial, self.contents):
                count = max(place.num_frames, 1)
                for trajectory in trajectories:
                    for start, size in ((place.start, place.frame_size), (place.checksums, CHECKSUM_SIZE)):
                        file.seek(start + trajectory * count * size)
                        checksum = _crc_of(file, count * size, checksum)
            for start in parameter_places(self.partial, self.contents):
                file.seek(start + 4 * trajectories.start)
                checksum = zlib.crc32(file.read(4 * len(trajectories)), checksum)
        return checksum

    def _require_space(self) -> None:
        problem = self.contents.problem
        channels = num_channels(varying_fields(problem)) * self.contents.num_frames
        channels += num_channels(constant_fields(problem))
        needed = 4 * channels * problem.grid.num_points * self.contents.num_trajectories
        free = shutil.disk_usage(self.work).free
        if needed > free:
            raise UserError(
                f"disk full: {self.path} needs {size_text(needed)}, only {size_text(free)} are free; "
                "free some space, or store fewer trajectories or a lower resolution"
            )


def _crc_of(file: BinaryIO, size: int, checksum: int) -> int:
    """The CRC of the next ``size`` bytes of a file, after those of ``checksum``."""
    while size and (block := file.read(min(size, BLOCK))):
        checksum, size = zlib.crc32(block, checksum), size - len(block)
    return checksum
