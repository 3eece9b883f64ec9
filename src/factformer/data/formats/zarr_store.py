"""The files of a zarr store: which may be read, and whether their chunks are all there and whole.

A store is a folder with a file for each chunk of each array. A chunk that is missing reads as the fill value, and zarr
notices neither that nor a Blosc chunk that lost its last bytes.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from factformer._support.documents import read_json
from factformer._support.text import cut
from factformer.data.formats.arrays import NUMBERS
from factformer.data.opening import UnreadableFileError

CODECS = frozenset(
    [
        "blosc",
        "zlib",
        "gzip",
        "zstd",
        "lz4",
        "bz2",
        "lzma",
        "delta",
        "shuffle",
        "fixedscaleoffset",
        "quantize",
        "bitround",
        "astype",
        "packbits",
        "crc32",
        "crc32c",
        "adler32",
        "fletcher32",
        "bytes",
        "transpose",
        "sharding_indexed",
        "vlen-utf8",
        "numcodecs.zlib",
        "numcodecs.blosc",
        "numcodecs.lz4",
        "numcodecs.zstd",
    ]
)
"""Ways to pack numbers; others, such as pickles, may run code."""
METADATA = (".zarray", ".zmetadata", "zarr.json")
BLOSC_HEADER = 16
"""Bytes of a Blosc chunk before its values; the last four of them say how long it is."""


def require_harmless(path: Path, *, allow_external: bool) -> None:
    """Raise where a store leads out of its folder, or is packed in a way that may run code."""
    for folder, names, files in os.walk(path):
        for name in [*names, *files]:
            each = Path(folder) / name
            if each.is_symlink() and not allow_external:
                raise UnreadableFileError(f"{path} leads to other files: {each.name} is a link; copy what it leads to")
            if name in METADATA:
                _require_codecs(each)


def _require_codecs(path: Path) -> None:
    """Raise where any array that a file of metadata describes, be it many, is packed in another way than `CODECS`."""
    waiting: list[Any] = [read_json(path)]
    while waiting:
        found = waiting.pop()
        if isinstance(found, list):
            waiting += found
        if not isinstance(found, dict):
            continue
        waiting += found.values()
        for codec in [found.get("compressor"), *(found.get("filters") or []), *(found.get("codecs") or [])]:
            name = str(codec.get("id", codec.get("name"))) if isinstance(codec, dict) else str(codec)
            if codec is not None and name not in CODECS:
                known = "zstd, blosc, gzip …"
                raise UnreadableFileError(f"{path}: values packed with {cut(name)} are not read; known are {known}")
        if "|O" in str(found.get("dtype", "")):
            raise UnreadableFileError(f"{path} holds objects, not numbers; such stores are not read")


def missing_chunks(path: Path, store: Any) -> tuple[str, ...]:
    """What to tell of chunks that a ``store``, opened by zarr, does not hold; raises where a chunk is cut short.

    A missing chunk alone is no damage: writers leave out chunks that hold the fill value only, which is often zero. So
    it is told, and refused where the store holds no chunk of any array beside coordinates. Where the fill value is NaN,
    nothing is told: values that are missing are refused as NaN when they are read.
    """
    told: list[str] = []
    empty: list[str] = []
    arrays = sorted(store.arrays())
    for name, array in arrays:
        grid = [-(-size // chunk) for size, chunk in zip(array.shape, array.shards or array.chunks, strict=True)]
        files, needed = list(_chunk_files(path / name, grid)), math.prod(grid)
        for file in files if _is_blosc(array) else ():
            _require_whole_blosc(path, file)
        if not files and needed and array.ndim > 1:
            empty.append(name)
        fill = 0 if array.fill_value is None else array.fill_value
        if len(files) < needed and array.dtype.kind in NUMBERS and fill == fill:  # NaN is not equal to itself
            told.append(f"{needed - len(files)} of {needed} chunks of {name} (not in the store, read as {fill})")
    if told and empty == [name for name, array in arrays if array.ndim > 1]:
        raise UnreadableFileError(
            f"{path} is incomplete: it holds no chunk of {cut(', '.join(empty))}, and missing values would be read as "
            "zeros; write or copy it again"
        )
    return tuple(told)


def _chunk_files(folder: Path, grid: Sequence[int]) -> Iterator[Path]:
    """The files of chunks, ``grid`` of them along each axis, called ``0.1``, ``0/1``, ``c/0/1`` or ``c.0.1``."""
    for inner, _, names in os.walk(folder):
        for name in names:
            file = Path(inner) / name
            key = re.split(r"[./]", file.relative_to(folder).as_posix())
            place = key[1:] if key[0] == "c" else key if grid else key[1:]  # version 2 calls a single number 0
            fits = len(place) == len(grid) and all(each.isdigit() for each in place)
            if fits and all(int(each) < count for each, count in zip(place, grid, strict=True)):
                yield file


def _is_blosc(array: Any) -> bool:
    """Whether the bytes of a file are what Blosc wrote, with nothing around it."""
    return not array.shards and bool(array.compressors) and "blosc" in type(array.compressors[-1]).__name__.lower()


def _require_whole_blosc(path: Path, file: Path) -> None:
    """Raise where a chunk is shorter than Blosc's header says: its last values would be wrong, without an error."""
    with file.open("rb") as opened:
        header = opened.read(BLOSC_HEADER)
    length, size = int.from_bytes(header[-4:], "little"), file.stat().st_size
    if len(header) < BLOSC_HEADER or size < length:
        raise UnreadableFileError(
            f"{path} is damaged: its chunk {file.relative_to(path)} is cut to {size} bytes; write or copy it again"
        )
