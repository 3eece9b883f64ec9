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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from factformer._support.files import explained, flush, size_text, write_all, write_atomically
from factformer.data.layout import (
    CHECKSUMS,
    DIGEST,
    Contents,
    Entry,
    constant_fields,
    create_file,
    entries,
    file_digest,
    file_fingerprint,
    offsets,
    varying_fields,
)
from factformer.data.opening import trust
from factformer.data.statistics import Moments, TrajectoryMoments, merge_moments
from factformer.errors import UserError
from factformer.problem import num_channels

CHECKSUM_SIZE = 4
KEPT = "finished batches are kept: start again with the same arguments to go on"


class BlowUpError(UserError):
    """A trajectory holds NaN or infinite values."""

    def __init__(self, message: str, trajectory: int, what: str) -> None:
        super().__init__(message)
        self.trajectory, self.what = trajectory, what


@dataclass(frozen=True)
class Place:
    """Where an array and the checksums of its frames lie in the file, in bytes; 0 frames: it does not vary in time."""

    entry: Entry
    num_frames: int
    start: int
    checksums: int
    frame_size: int


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
    def batch(self, trajectories: range) -> Iterator[BatchWriter]:
        """Write a batch; it counts as finished when the block ends without an error."""
        with explained(self.path, KEPT):
            writer = BatchWriter(self, trajectories)
            try:
                yield writer
                writer.require_complete()
                writer.write_checksums()
                os.fsync(writer.descriptor)
            finally:
                os.close(writer.descriptor)
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

    def places(self) -> list[Place]:
        """Each dataset of the file."""
        problem = self.contents.problem
        where = offsets(self.partial)
        axes = problem.grid.num_axes
        listed = [(entry, self.contents.num_frames) for entry in entries(varying_fields(problem), axes)]
        listed += [(entry, 0) for entry in entries(constant_fields(problem), axes)]
        return [
            Place(
                entry,
                num_frames,
                start=where[entry.path],
                checksums=where[f"{CHECKSUMS}/{entry.path}"],
                frame_size=4 * problem.grid.num_points * (entry.channels.stop - entry.channels.start),
            )
            for entry, num_frames in listed
        ]

    def parameter_places(self) -> list[int]:
        """The byte position of each parameter's numbers."""
        where = offsets(self.partial) if self.contents.problem.parameters else {}
        return [where[f"scalars/{name}"] for name in self.contents.problem.parameters]

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
            for place in self.places():
                count = max(place.num_frames, 1)
                for trajectory in trajectories:
                    for start, size in ((place.start, place.frame_size), (place.checksums, CHECKSUM_SIZE)):
                        file.seek(start + trajectory * count * size)
                        checksum = zlib.crc32(file.read(count * size), checksum)
            for start in self.parameter_places():
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


class BatchWriter:
    """Places the frames of some trajectories in the unfinished file and watches over their values."""

    def __init__(self, writer: SplitWriter, trajectories: range) -> None:
        problem = writer.contents.problem
        self.descriptor = os.open(writer.partial, os.O_RDWR)
        self.moments = [TrajectoryMoments(problem) for _ in trajectories] if writer.contents.split == "train" else []
        self._inside: NDArray[np.bool_] | None = None
        self._writer = writer
        self._trajectories = trajectories
        self._places = writer.places()
        self._checksums = [np.zeros((len(trajectories), max(p.num_frames, 1)), dtype="<u4") for p in self._places]
        self._num_written = 0
        self._missing = [part for part in problem.parts if part != "forcing"]

    def write_static(self, values: NDArray[Any]) -> None:
        """The static fields ``(batch, *grid, channel)``."""
        values = self._checked(
            values, (*self._grid, self._writer.contents.problem.num_static_channels), "its static fields"
        )
        self._place(values, slice(0, values.shape[-1]), time_varying=False)
        self._add("static", values)

    def write_mask(self, values: NDArray[Any]) -> None:
        """The mask ``(batch, *grid)``, before all fields: outside of it they are stored as zero."""
        values = self._checked(values, self._grid, "its mask")[..., None]
        self._inside = values[..., 0] != 0
        for position, trajectory in enumerate(self._trajectories):
            if not self._inside[position].any():
                name = self._writer.contents.problem.name
                raise UserError(f"{name}: the mask of trajectory {trajectory} has no point inside the domain")
        for item, inside in zip(self.moments, self._inside, strict=False):
            item.inside = inside
        first = self._writer.contents.problem.num_static_channels
        self._place(values, slice(first, first + 1), time_varying=False)
        self._missing.remove("mask")

    def write_parameters(self, values: NDArray[Any]) -> None:
        """The parameters ``(batch, parameter)``."""
        values = self._checked(values, (len(self._writer.contents.problem.parameters),), "its parameters")
        for column, start in enumerate(self._writer.parameter_places()):
            write_all(self.descriptor, values[:, column].tobytes(), start + 4 * self._trajectories.start)
        self._add("parameters", values)

    def write(self, frame: NDArray[Any], forcing: NDArray[Any] | None = None) -> None:
        """The next frame ``(batch, *grid, channel)`` of all trajectories of the batch, with its forcing if any."""
        problem, what = self._writer.contents.problem, f"frame {self._num_written}"
        split = problem.num_state_channels
        values = self._checked(frame, (*self._grid, split), what)
        self._place(values, slice(0, split), time_varying=True)
        for item, value in zip(self.moments, values, strict=False):
            item.add(value)
        if problem.forcing:
            if forcing is None:
                raise UserError(f"{problem.name}: {what} comes without its forcing")
            count = problem.num_forcing_channels
            values = self._checked(forcing, (*self._grid, count), f"the forcing of {what}")
            self._place(values, slice(split, split + count), time_varying=True)
            for item, value in zip(self.moments, values, strict=False):
                item.add_part("forcing", value)
        self._num_written += 1

    def require_complete(self) -> None:
        expected = self._writer.contents.num_frames
        if self._num_written != expected or self._missing:
            lacking = f" without {', '.join(self._missing)}" if self._missing else ""
            raise UserError(f"expected {expected} frames and all that goes with them, got {self._num_written}{lacking}")

    @property
    def _grid(self) -> tuple[int, ...]:
        return self._writer.contents.problem.grid.shape

    def _add(self, part: str, values: NDArray[Any]) -> None:
        """Count a part that is written once per trajectory."""
        self._missing.remove(part)
        for item, value in zip(self.moments, values, strict=False):
            item.add_part(part, value)

    def _checked(self, values: NDArray[Any], shape: tuple[int, ...], what: str) -> NDArray[np.float32]:
        contents = self._writer.contents
        expected = (len(self._trajectories), *shape)
        if values.shape != expected:
            raise UserError(f"{contents.problem.name}: {what} has shape {values.shape}, expected {expected}")
        result = np.ascontiguousarray(values, dtype="<f4")
        if contents.problem.masked and len(shape) > len(self._grid):  # a field
            assert self._inside is not None, "the mask is written before the fields"
            result = np.where(self._inside[..., None], result, np.float32(0))
        for position, trajectory in enumerate(self._trajectories):
            if not np.isfinite(result[position]).all():
                seed = f" (seed {contents.seeds[trajectory]})" if contents.seeds else ""
                raise BlowUpError(
                    f"{contents.problem.name}: trajectory {trajectory}{seed} of {contents.split} "
                    f"holds NaN or infinite values in {what}",
                    trajectory,
                    what,
                )
        return result

    def write_checksums(self) -> None:
        """Those of all frames of the batch."""
        for place, checksums in zip(self._places, self._checksums, strict=True):
            start = place.checksums + self._trajectories.start * checksums.shape[1] * CHECKSUM_SIZE
            write_all(self.descriptor, checksums.tobytes(), start)

    def _place(self, values: NDArray[np.float32], channels: slice, *, time_varying: bool) -> None:
        """Write ``values``, which are some ``channels`` of all that is stored for a frame or once."""
        index = self._num_written if time_varying else 0
        for place, checksums in zip(self._places, self._checksums, strict=True):
            first, last = place.entry.channels.start, place.entry.channels.stop
            if bool(place.num_frames) != time_varying or not channels.start <= first < channels.stop:
                continue
            own = slice(first - channels.start, last - channels.start)
            for position, trajectory in enumerate(self._trajectories):
                frame = trajectory * max(place.num_frames, 1) + index
                content = values[position][..., own].tobytes()
                checksums[position, index] = zlib.crc32(content)
                write_all(self.descriptor, content, place.start + frame * place.frame_size)
