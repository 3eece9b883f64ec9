"""Where the values of a split lie in its file, in bytes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from factformer.data.layout import CHECKSUMS, Contents, Entry, constant_fields, entries, offsets, varying_fields

CHECKSUM_SIZE = 4


@dataclass(frozen=True)
class Place:
    """Where an array and the checksums of its frames lie in the file, in bytes; 0 frames: it does not vary in time."""

    entry: Entry
    num_frames: int
    start: int
    checksums: int
    frame_size: int


def places(path: Path, contents: Contents) -> list[Place]:
    """Each array of fields of the file ``path``, which was created for ``contents``."""
    problem = contents.problem
    where = offsets(path)
    axes = problem.grid.num_axes
    listed = [(entry, contents.num_frames) for entry in entries(varying_fields(problem), axes)]
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


def parameter_places(path: Path, contents: Contents) -> list[int]:
    """The first byte of each parameter's numbers."""
    where = offsets(path) if contents.problem.parameters else {}
    return [where[f"scalars/{name}"] for name in contents.problem.parameters]
