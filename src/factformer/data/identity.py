"""What tells the data of one foreign file from those of another: names, shapes, size and a sample of the values.

A whole file of The Well may be too long to hash. The sample has a few thousand numbers of every array, a few from
each of many equal parts of it, so that no trajectory, frame or corner of the grid is left out by design.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from factformer.data.formats.arrays import LazyArray

NUM_PARTS = 1024
NUM_NEIGHBOURS = 8
"""Numbers read at each place, one after the other along the last axis."""


def identity(path: Path, arrays: Mapping[str, LazyArray]) -> dict[str, Any]:
    """A JSON-ready description of ``arrays`` of the file ``path``, to be hashed."""
    return {
        "size": path.stat().st_size if path.is_file() else 0,
        "arrays": {name: [list(array.shape), _sample(array)] for name, array in arrays.items()},
    }


def source_state(paths: Sequence[Path]) -> str:
    """Changes with every write to the files, and perhaps with a copy: work on one file is not resumed with another."""
    found = [path.stat() for path in paths]
    return "; ".join(f"{each.st_size} bytes, changed at {each.st_mtime_ns} ns" for each in found)


def _sample(array: LazyArray) -> str:
    """Hash of the numbers at one place of each part, drawn from a fixed seed."""
    if not array.shape:
        return repr(array[()])
    size = math.prod(array.shape)
    count = min(size, NUM_PARTS)
    edges = np.linspace(0, size, count + 1).astype(np.int64)
    places = edges[:-1] + (np.random.default_rng(0).random(count) * np.diff(edges)).astype(np.int64)
    digest = hashlib.sha256()
    for place in places:
        *leading, last = (int(number) for number in np.unravel_index(place, array.shape))
        block = (*(slice(number, number + 1) for number in leading), slice(last, last + NUM_NEIGHBOURS))
        digest.update(np.ascontiguousarray(array[block]).tobytes())
    return digest.hexdigest()
