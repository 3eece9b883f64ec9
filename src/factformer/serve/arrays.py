"""Named arrays in and out: npz without pickle, and JSON.

Everything that arrives is checked before it takes memory: an archive holds few members, unpacks to no more than is
allowed, and each member is as long as its own header says.
"""

from __future__ import annotations

import io
import json
import math
import zipfile
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from factformer._support.text import cut, first_line
from factformer.data.formats.arrays import NUMPY_ERRORS
from factformer.serve.limits import MEGABYTE, Limits, Refusal

MOST_MEMBERS = 64
NUMBERS = "fiub"
"""Kinds of dtype: floating, integer, unsigned, boolean."""
METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)

Arrays = dict[str, NDArray[Any]]
Named = dict[str, NDArray[Any] | Arrays]
"""Arrays by name. Those of several fields may be a mapping of their own: ``static.depth`` in npz, nested in JSON."""


def read_arrays(body: bytes, limits: Limits) -> Named:
    """What a body holds; its first bytes say whether it is npz or JSON."""
    if body[:4] == b"PK\x03\x04":
        return _nested(read_npz(body, limits.body_bytes))
    if body.lstrip()[:1] == b"{":
        return read_json(body, limits.json_bytes)
    raise Refusal(415, "send an npz archive, as numpy.savez writes it, or a JSON object; see /docs")


def read_npz(body: bytes, most_bytes: int) -> Arrays:
    """The arrays of an npz archive that unpack to at most ``most_bytes``."""
    try:
        with zipfile.ZipFile(io.BytesIO(body)) as archive:
            members = archive.infolist()
            if len(members) > MOST_MEMBERS:
                raise Refusal(413, f"the archive holds {len(members)} arrays; send at most {MOST_MEMBERS}")
            if sum(member.file_size for member in members) > most_bytes:
                raise Refusal(413, f"the archive unpacks to more than {most_bytes // MEGABYTE} MB; send less at once")
            arrays: Arrays = {}
            for member in members:
                name = member.filename.removesuffix(".npy")
                if member.compress_type not in METHODS or member.flag_bits & 1:
                    raise Refusal(400, f"{cut(name)} is packed in a way that numpy.savez does not use")
                if name in arrays:
                    raise Refusal(400, f"the archive holds {cut(name)} twice")
                arrays[name] = _read_member(name, _unpacked(archive, member))
            return arrays
    except Refusal:
        raise
    except (*NUMPY_ERRORS, NotImplementedError) as error:
        raise Refusal(400, f"the npz archive is damaged or truncated: {first_line(error)}") from None


def _unpacked(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> bytes:
    """The content of a member. No more is unpacked than the directory says: `ZipFile.read` unpacks all of it first."""
    with archive.open(member) as stream:
        content = stream.read(member.file_size)
    if len(content) != member.file_size:
        raise zipfile.BadZipFile(f"{cut(member.filename)} is shorter than the archive says")
    return content


def _read_member(name: str, content: bytes) -> NDArray[Any]:
    file = io.BytesIO(content)
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, is_fortran, dtype = read(file)
    if dtype.kind not in NUMBERS:
        raise Refusal(400, f"{cut(name)} holds no numbers: its type is {cut(str(dtype))}")
    start, count = file.tell(), math.prod(shape)
    if count * dtype.itemsize != len(content) - start:
        raise Refusal(400, f"{cut(name)} does not hold as many numbers as its shape {cut(shape)} says")
    values = np.frombuffer(content, dtype, count, start)
    return values.reshape(shape, order="F" if is_fortran else "C")


def _nested(arrays: Arrays) -> Named:
    named: Named = {}
    for name, values in arrays.items():
        part, dot, member = name.partition(".")
        if not dot:
            if part in named:
                raise Refusal(400, f"{cut(part)} is given both whole and by its fields")
            named[part] = values
            continue
        members = named.setdefault(part, {})
        if not isinstance(members, dict):
            raise Refusal(400, f"{cut(part)} is given both whole and by its fields")
        members[member] = values
    return named


def read_json(body: bytes, most_bytes: int) -> Named:
    """The arrays of a JSON object: nested lists of numbers."""
    if len(body) > most_bytes:
        raise Refusal(413, f"JSON may be at most {most_bytes // MEGABYTE} MB long; send npz, which is smaller")
    try:
        values = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Refusal(400, f"the body is not valid JSON: {first_line(error)}") from None
    named: Named = {}
    for name, value in values.items():
        if isinstance(value, dict):
            named[name] = {member: _as_array(f"{name}.{member}", item) for member, item in value.items()}
        elif value is not None:
            named[name] = _as_array(name, value)
    return named


def _as_array(name: str, value: Any) -> NDArray[Any]:
    try:
        values = np.asarray(value)
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise Refusal(422, f"{cut(name)} is no array: {first_line(error)}") from None
    if values.dtype.kind not in NUMBERS:
        raise Refusal(422, f"{cut(name)} is no array of numbers: nest lists of equal length")
    return values


def write_npz(arrays: Mapping[str, Any]) -> bytes:
    """An npz archive, not compressed: fields hardly shrink, and it is written in no time."""
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, **arrays)
    return file.getvalue()


def write_json(values: Mapping[str, Any]) -> bytes:
    plain = {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in values.items()}
    return json.dumps(plain, allow_nan=False, separators=(",", ":")).encode()
