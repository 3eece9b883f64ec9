"""VTK's XML files of image data (``.vti``) and rectilinear grids (``.vtr``), and collections of them (``.pvd``).

No light package reads them: meshio knows unstructured grids only, and pyvista brings all of VTK. The format is XML with
numbers as text, in base64, or raw behind the XML, each perhaps compressed (docs.vtk.org, "VTK XML formats"). Sizes are
known from the extent, so nothing is unpacked beyond them.
"""

from __future__ import annotations

import base64
import lzma
import re
import zlib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
from numpy.typing import NDArray

from factformer._support.files import regular_file, size_text
from factformer._support.limits import require_memory
from factformer._support.text import cut, first_line
from factformer.errors import UserError

SUFFIXES = (".vti", ".vtr")
COLLECTION = ".pvd"
LONGEST_COLLECTION = 2**26
TYPES = {
    **{f"{'U' * (kind == 'u')}Int{8 * size}": f"{kind}{size}" for kind in "iu" for size in (1, 2, 4, 8)},
    "Float32": "f4",
    "Float64": "f8",
}
VTK_ERRORS = (
    ValueError,  # binascii.Error is one
    KeyError,
    IndexError,
    TypeError,
    OverflowError,
    OSError,
    MemoryError,
    zlib.error,
    lzma.LZMAError,
)
"""What damaged numbers raise."""
HEADERS = {"UInt32": "u4", "UInt64": "u8"}
"""Types of the numbers that say how long a block of bytes is."""
GRIDS = {"ImageData": "image data", "RectilinearGrid": "a rectilinear grid"}


@dataclass(frozen=True)
class VtkGrid:
    """The fields of one file, each ``(*grid[, channel])``, and where its points are; axes of one point are left out.

    ``time`` is the file's own, where it says it. ``other`` are arrays on cells beside fields on points.
    """

    fields: dict[str, NDArray[np.generic]]
    axes: list[NDArray[np.float64]]
    time: float | None
    other: tuple[str, ...] = ()


def read_grid(path: Path) -> VtkGrid:
    """What a file holds; whatever is wrong with it is said in one line."""
    found = regular_file(path).stat()
    return _read(path, found.st_size, found.st_mtime_ns)


@lru_cache(maxsize=2)  # all fields of a frame are read from it, one after the other
def _read(path: Path, size: int, changed: int) -> VtkGrid:
    """The file as it was ``changed`` last."""
    require_memory(2 * size, f"{path}, {size_text(size)},", "write smaller files")
    try:
        return _Reader(path, path.read_bytes()).grid()
    except UserError:
        raise
    except VTK_ERRORS as error:
        raise UserError(f"{path} is damaged: {first_line(error)}; write it again") from None


def read_collection(path: Path, *, allow_external: bool = False) -> tuple[list[Path], list[float]]:
    """The files of a ``.pvd`` collection in the order of their times."""
    if regular_file(path).stat().st_size > LONGEST_COLLECTION:
        raise UserError(f"{path} is too large for a collection of VTK files")
    root = _parsed(path, path.read_bytes())
    entries = root.findall("./Collection/DataSet")
    if root.get("type") != "Collection" or not entries:
        raise UserError(f"{path} is no collection of VTK files: it names none")
    found = []
    for entry in entries:
        name, time = entry.get("file", ""), entry.get("timestep", "")
        file = path.parent / name
        if not name or (not allow_external and not file.resolve().is_relative_to(path.parent.resolve())):
            raise UserError(f"{path} leads to {cut(name)} outside of its folder; if you trust it, add --allow-external")
        try:
            found.append((float(time), file))
        except ValueError:
            raise UserError(f"{path}: the time of {cut(name)} is {cut(time)}, not a number") from None
    found.sort(key=lambda pair: pair[0])
    return [file for _, file in found], [time for time, _ in found]


def _parsed(path: Path, text: bytes) -> ElementTree.Element:
    if b"<!DOCTYPE" in text or b"<!ENTITY" in text:
        raise UserError(f"{path} defines entities, which VTK files do not; it is not read")
    try:
        root = ElementTree.fromstring(text)
    except (ElementTree.ParseError, ValueError, LookupError) as error:
        raise UserError(f"{path} is not a VTK XML file, or truncated: {first_line(error)}") from None
    if root.tag != "VTKFile":
        raise UserError(f"{path} is not a VTK XML file: it begins with <{cut(root.tag)}>")
    return root


class _Reader:
    """One file: its XML, and the numbers that lie behind it."""

    def __init__(self, path: Path, content: bytes) -> None:
        self._path = path
        head, mark, tail = content.partition(b"<AppendedData")
        self._appended, self._raw = b"", False
        if mark:
            opening, _, rest = tail.partition(b">")
            self._raw = b"raw" in opening
            self._appended = rest[: rest.rfind(b"</AppendedData>")].partition(b"_")[2]
            head += b"</VTKFile>"
        self._root = _parsed(path, head)
        self._order = ">" if self._root.get("byte_order") == "BigEndian" else "<"
        header = self._root.get("header_type", "UInt32")
        if header not in HEADERS:
            raise UserError(f"{path} has a header_type {cut(header)}; write it with {' or '.join(HEADERS)}")
        self._header = np.dtype(self._order + HEADERS[header])
        self._compressor = self._root.get("compressor", "")
        if self._compressor not in ("", "vtkZLibDataCompressor", "vtkLZMADataCompressor"):
            raise UserError(f"{path} is compressed with {cut(self._compressor)}; write it with zlib or without")

    def grid(self) -> VtkGrid:
        kind = self._root.get("type", "")
        if kind not in GRIDS:
            raise UserError(
                f"{self._path} holds {cut(kind)}: only {' and '.join(GRIDS.values())} can be read; "
                "resample it, as ParaView's filter Resample To Image does"
            )
        whole = self._root.find(kind)
        pieces = [] if whole is None else whole.findall("Piece")
        if whole is None or len(pieces) != 1 or pieces[0].get("Extent") != whole.get("WholeExtent"):
            raise UserError(f"{self._path} is in {len(pieces)} pieces that are not the whole; write one piece")
        bounds = [int(number) for number in self._row(whole, "WholeExtent", "", 6, whole=True)]
        if any(last < first for first, last in zip(bounds[::2], bounds[1::2], strict=True)):
            raise UserError(f"{self._path}: its extent {cut(whole.get('WholeExtent'))} is not six increasing numbers")
        points = [last - first + 1 for first, last in zip(bounds[::2], bounds[1::2], strict=True)]
        lines = self._image_lines(whole, bounds) if kind == "ImageData" else self._lines(pieces[0], points)
        on_points, on_cells = (pieces[0].findall(f"{place}/DataArray") for place in ("PointData", "CellData"))
        if not on_points:
            points = [max(1, count - 1) for count in points]
            lines = [(line[1:] + line[:-1]) / 2 if len(line) > 1 else line for line in lines]
        fields: dict[str, NDArray[np.generic]] = {}
        for array in on_points or on_cells:
            name = array.get("Name", "")
            if name in fields:
                raise UserError(f"{self._path} holds several arrays called {cut(name)}; keep one of them")
            width = int(self._row(array, "NumberOfComponents", "1", 1, whole=True)[0])
            if width < 1:
                raise UserError(f"{self._path}: {cut(name)} has {width} components; 1 or more are needed")
            values = self._numbers(array, int(np.prod(points)) * width, name)
            kept = [count for count in points if count > 1]
            shaped = values.reshape(*points[::-1], width).transpose(2, 1, 0, 3).reshape(*kept, width)
            fields[name] = shaped if width > 1 else shaped[..., 0]
        if not fields:
            raise UserError(f"{self._path} holds no array on its points or cells")
        other = tuple(array.get("Name", "") for array in on_cells) if on_points else ()
        axes = [line for line, count in zip(lines, points, strict=True) if count > 1]
        return VtkGrid(fields, axes, self._time(whole), other)

    def _image_lines(self, whole: ElementTree.Element, bounds: list[int]) -> list[NDArray[np.float64]]:
        direction = self._row(whole, "Direction", "1 0 0 0 1 0 0 0 1", 9)
        if not np.allclose(direction, np.eye(3).ravel()):
            raise UserError(f"{self._path} is turned against its axes (Direction); write it along them")
        origin, spacing = self._row(whole, "Origin", "0 0 0", 3), self._row(whole, "Spacing", "1 1 1", 3)
        return [
            origin[m] + spacing[m] * np.arange(bounds[2 * m], bounds[2 * m + 1] + 1, dtype=np.float64) for m in range(3)
        ]

    def _row(
        self, element: ElementTree.Element, key: str, default: str, count: int, *, whole: bool = False
    ) -> list[float]:
        """The numbers of an attribute, of which there must be ``count``."""
        text = element.get(key, default)
        try:
            numbers = [int(word) if whole else float(word) for word in text.split()]
        except ValueError:
            numbers = []
        if len(numbers) != count or not np.isfinite(numbers).all():
            kind = "whole number" if whole else "number"
            raise UserError(f"{self._path}: its {key} is {cut(text)}, not {count} {kind}{'s' if count > 1 else ''}")
        return numbers

    def _lines(self, piece: ElementTree.Element, points: list[int]) -> list[NDArray[np.float64]]:
        arrays = piece.findall("Coordinates/DataArray")
        if len(arrays) != 3:
            raise UserError(f"{self._path} has coordinates for {len(arrays)} axes instead of 3")
        return [self._numbers(a, n, "Coordinates").astype(np.float64) for a, n in zip(arrays, points, strict=True)]

    def _time(self, whole: ElementTree.Element) -> float | None:
        for array in [*whole.findall("FieldData/DataArray"), *self._root.findall("FieldData/DataArray")]:
            if array.get("Name") in ("TimeValue", "TIME"):
                return float(self._numbers(array, 1, "TimeValue")[0])
        return None

    def _numbers(self, array: ElementTree.Element, count: int, name: str) -> NDArray[np.generic]:
        kind = array.get("type", "")
        if kind not in TYPES:
            raise UserError(f"{self._path}: {cut(name)} holds {cut(kind)}; only numbers can be read")
        dtype = np.dtype(self._order + TYPES[kind])
        require_memory(count * dtype.itemsize, f"{name} of {self._path}", "the file is damaged, or too large")
        form, text = array.get("format", "ascii"), (array.text or "").strip()
        if form == "ascii":
            values = np.array(text.split()[: count + 1], dtype=dtype)
        else:
            raw = self._raw and form == "appended"
            start = int(self._row(array, "offset", "0", 1, whole=True)[0]) if form == "appended" else 0
            source = self._appended[start:] if form == "appended" else text.encode()
            found = self._unpacked(source, raw, count * dtype.itemsize)
            values = np.frombuffer(found[: len(found) // dtype.itemsize * dtype.itemsize], dtype)
        if len(values) != count:
            held = f"{len(values)}" if len(values) < count else f"more than {count}"
            raise UserError(f"{self._path} is damaged: {cut(name)} holds {held} numbers, its grid needs {count}")
        return values

    def _unpacked(self, source: bytes, raw: bool, size: int) -> bytes:
        """At most a byte more than ``size`` of the block of numbers that ``source`` begins with."""
        step = self._header.itemsize
        if not self._compressor:
            # some writers encode the length by itself, which ends in padding
            joint = raw or b"=" not in source[: _encoded(step)]
            data = (
                source if raw else _decoded(source, step + size) if joint else _decoded(source[_encoded(step) :], size)
            )
            length = int(np.frombuffer((data if joint else _decoded(source, step))[:step], self._header)[0])
            return data[step : step + min(length, size + 1)] if joint else data[: min(length, size + 1)]
        first = source if raw else _decoded(source, step)
        blocks = int(np.frombuffer(first[:step], self._header)[0])
        if blocks > max(1, size):
            raise UserError(f"{self._path} is damaged: it says that {blocks} blocks hold {size} bytes")
        length = (3 + blocks) * step
        table = np.frombuffer((source if raw else _decoded(source, length))[:length], self._header)
        sizes = [int(number) for number in table[3:]]
        rest = source[length:] if raw else _decoded(source[_encoded(length) :], sum(sizes))
        result = b""
        for block in sizes:
            if self._compressor == "vtkZLibDataCompressor":
                part = zlib.decompressobj().decompress(rest[:block], size - len(result) + 1)
            else:
                part = lzma.LZMADecompressor().decompress(rest[:block], size - len(result) + 1)
            result, rest = result + part, rest[block:]
            if len(result) > size:
                break
        return result


def _encoded(num_bytes: int) -> int:
    """Characters of base64, with padding, for so many bytes."""
    return (num_bytes + 2) // 3 * 4


def _decoded(text: bytes, num_bytes: int) -> bytes:
    """The first bytes, and a few more, of base64 text, which other data may follow."""
    found = re.match(rb"[A-Za-z0-9+/]*={0,2}", text[: _encoded(num_bytes + 3)])
    body = found.group() if found else b""
    return base64.b64decode(body[: len(body) // 4 * 4])
