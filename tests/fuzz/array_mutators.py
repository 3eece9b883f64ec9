"""Damage to files of arrays: safetensors, NumPy, MATLAB and HDF5.

Every mutator takes a `random.Random` first, changes one file in place and returns a few words that say what it did.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import h5py
import numpy as np
import scipy.io
import scipy.sparse
from mutators import NUMBERS, TEXTS, json_text, mutate_tree


def mutate_safetensors(rng: Random, path: Path) -> str:
    """Change the header, its length, or the values of one tensor."""
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header, values = json.loads(content[8 : 8 + length]), content[8 + length :]
    names = [name for name in header if name != "__metadata__"]
    name = rng.choice(names)
    kind = rng.choice(["tree", "length", "dtype", "shape", "name", "remove", "nan", "offsets", "swap"])
    if kind == "length":
        wrong = rng.choice((0, 1, length - 1, length + 1, 2**31, 2**63 - 1, 2**64 - 1))
        path.write_bytes(wrong.to_bytes(8, "little") + content[8:])
        return f"header length {wrong}"
    what = name
    if kind == "tree":
        header, what = mutate_tree(rng, header)
    elif kind == "dtype":
        header[name]["dtype"] = rng.choice(("F64", "F16", "I32", "BOOL", "BF16", "U8", "F8_E4M3", "X"))
    elif kind == "shape":
        header[name]["shape"] = rng.choice(
            ([], [0], [-1], [2**40], [1, *header[name]["shape"]], header[name]["shape"][::-1])
        )
    elif kind == "offsets":
        header[name]["data_offsets"] = rng.choice(([0, 0], [0, 2**40], [4, 0], [-4, 4]))
    elif kind == "name":
        header[rng.choice(("x", "", "../x", name.upper()))] = header.pop(name)
    elif kind == "remove":
        del header[name]
    elif kind == "swap":
        other = rng.choice(names)
        header[name], header[other] = header[other], header[name]
    elif kind == "nan":
        first, end = header[name]["data_offsets"]
        size = min(4, end - first)
        values = values[:first] + b"\xff" * size + values[first + size :]
    text = json_text(header)
    path.write_bytes(len(text).to_bytes(8, "little") + text + values)
    return f"{kind} {what}"


SECRET = "secret.bin"
"""A file of the system that an HDF5 file points to."""
ODD_ARRAYS: tuple[Callable[[], Any], ...] = (
    lambda: np.zeros(0),
    lambda: np.float64(np.nan),
    lambda: np.zeros((2, 12, 8, 8), "f2"),
    lambda: np.zeros((2, 12, 8), "f4"),
    lambda: np.zeros((1, 1, 1, 1, 1, 1, 1, 1)),
    lambda: np.zeros((2, 12, 8, 9), "f4"),
    lambda: np.full((2, 12, 8, 8), np.nan, "f4"),
    lambda: np.full((2, 12, 8, 8), 1e300),
    lambda: np.full((2, 12, 8, 8), 1e-300),
    lambda: np.ones((2, 12, 8, 8), "c8"),
    lambda: np.ones((2, 12, 8, 8), "i8"),
    lambda: np.ones((2, 12, 8, 8), bool),
    lambda: np.array(["text", "more"]),
    lambda: np.array([b"text"]),
    lambda: np.zeros(3, [("a", "f4"), ("b", "i4")]),
    lambda: np.arange(12.0)[::-1],
    lambda: np.array([0.0, 0.0, 1.0]),
    lambda: np.datetime64("2001-01-01"),
)


def mutate_npy(rng: Random, path: Path) -> str:
    if rng.random() < 0.5:
        index = rng.randrange(len(ODD_ARRAYS))
        np.save(path, ODD_ARRAYS[index]())
        return f"odd array {index}"
    path.write_bytes(_odd_npy(rng, path.read_bytes()))
    return "odd header"


def _odd_npy(rng: Random, content: bytes) -> bytes:
    """An npy file whose header says other things than its values."""
    header = content[10 : 10 + int.from_bytes(content[8:10], "little")].decode("latin-1")
    shape = header[header.index("(") : header.index(")") + 1]
    changes = [
        (
            shape,
            rng.choice(("(0,)", "()", "(-1, 8)", f"({10**15},)", "(2, 12, 8, 9)", f"({2**31}, {2**31}, 8)", "(True,)")),
        ),
        ("<f4", rng.choice(("<f8", "|O", "<c8", "<U9", "|V4", ">f4", "<m8", "xx", "<f" + "9" * 400))),
        ("False", rng.choice(("True", "None", "'x'", "(" * 200))),
        ("'descr'", rng.choice(("'desc'", "b'descr'", "\x00"))),
        ("{", rng.choice(("[", "__import__('os')", "{" * 500))),
    ]
    old, new = rng.choice(changes)
    text = header.replace(old, new, 1).encode("latin-1")
    return content[:8] + len(text).to_bytes(2, "little") + text + content[10 + len(header) :]


def mutate_npz(rng: Random, path: Path) -> str:
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    name = rng.choice(sorted(members))
    kind = rng.choice(["odd", "header", "remove", "raw", "rename", "bytes", "deep", "object"])
    if kind == "odd":
        buffer = io.BytesIO()
        np.save(buffer, rng.choice(ODD_ARRAYS)())
        members[name] = buffer.getvalue()
    elif kind == "header":
        try:
            members[name] = _odd_npy(rng, members[name])
        except ValueError:
            members[name] = members[name][:20]
    elif kind == "remove":
        del members[name]
    elif kind == "raw":
        members[rng.choice((name, "readme.txt", name.removesuffix(".npy")))] = b"no array"
    elif kind == "rename":
        members[rng.choice(TEXTS[1:13]) + ".npy"] = members.pop(name)
    elif kind == "bytes":
        members[name] = members[name][: rng.randrange(len(members[name]))]
    elif kind == "object":
        buffer = io.BytesIO()
        np.save(buffer, np.array([{}, None], dtype=object), allow_pickle=True)
        members[name] = buffer.getvalue()
    else:
        members[f"{'a/' * 200}x.npy"] = members[name]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, content in members.items():
            archive.writestr(zipfile.ZipInfo(member), content)
    return f"{kind} {name}"


def mutate_mat(rng: Random, path: Path) -> str:
    """Another member, or another kind of member, in a MATLAB v5 file."""
    contents = {name: value for name, value in scipy.io.loadmat(path).items() if not name.startswith("__")}
    name = rng.choice(sorted(contents))
    index = rng.randrange(len(ODD_ARRAYS) - 1)
    values = [ODD_ARRAYS[index](), {"a": 1.0}, "text", scipy.sparse.eye(3), np.array([1, "x"], dtype=object)]
    chosen = rng.randrange(len(values) + 1)
    if chosen == len(values):
        contents["t"] = np.arange(12.0) * rng.choice((0.2, -1.0, float("nan")))
    else:
        contents[name] = values[chosen]
    scipy.io.savemat(path, contents, do_compression=True)
    return f"member {name}: {chosen}, {index}"


def mutate_hdf5(rng: Random, path: Path) -> str:
    """Change, add or remove an attribute, a dataset or a link of an HDF5 file."""
    with h5py.File(path, "r+") as file:
        items: list[Any] = [file]
        file.visititems(lambda _, item: items.append(item))
        item = rng.choice(items)
        if rng.random() < 0.5:
            return _mutate_attribute(rng, item if len(item.attrs) else file)
        name = rng.choice([found.name for found in items[1:]])
        return _mutate_link(rng, file, name, path)


def _mutate_attribute(rng: Random, item: Any) -> str:
    name = rng.choice(sorted(item.attrs) or ["x"])
    value: Any = rng.choice([*NUMBERS[:4], 1.5, float("nan"), float("inf"), *TEXTS[:13]])
    kind = rng.choice(["remove", "value", "array", "empty", "reference", "add", "json", "bytes"])
    if kind == "remove" and name in item.attrs:
        del item.attrs[name]
    elif kind == "array":
        item.attrs[name] = rng.choice([array for array in map(_made, ODD_ARRAYS) if array.dtype.kind not in "UM"])
    elif kind == "empty":
        item.attrs[name] = h5py.Empty("f4")
    elif kind == "reference":
        item.attrs[name] = item.ref
    elif kind == "bytes":
        item.attrs[name] = np.void(b"\xff\xfe\x00")
    elif kind == "json" and isinstance(old := item.attrs.get(name), str) and old.startswith("{"):
        tree, what = mutate_tree(rng, json.loads(old))
        item.attrs[name] = json_text(tree).decode()
        return f"attribute {item.name}@{name}: {what}"
    else:
        item.attrs[f"added{rng.randrange(9)}" if kind == "add" else name] = value
    return f"{kind} attribute {item.name}@{name}"


def _made(make: Callable[[], Any]) -> np.ndarray[Any, Any]:
    return np.asarray(make())


def _mutate_link(rng: Random, file: Any, name: str, path: Path) -> str:
    kind = rng.choice(
        [
            "remove",
            "odd",
            "soft",
            "dangling",
            "external",
            "virtual",
            "storage",
            "group",
            "loop",
            "huge",
            "chunked",
            "values",
        ]
    )
    old = file[name]
    shape, dtype = (old.shape, old.dtype) if isinstance(old, h5py.Dataset) else ((2,), np.dtype("f4"))
    attributes = dict(old.attrs)
    if kind == "values":
        if isinstance(old, h5py.Dataset) and dtype.kind == "f" and old.size:
            values = old[...]
            values.flat[rng.randrange(values.size)] = rng.choice((float("nan"), float("inf"), 1e30, 0.0, 1e-40))
            old[...] = values
        return f"values of {name}"
    del file[name]
    secret = path.parent / SECRET
    if kind in ("external", "virtual", "storage"):
        secret.write_bytes(b"secret of the system " * 1000)
    if kind == "odd":
        value = _made(rng.choice(ODD_ARRAYS[:-1]))
        file[name] = value.astype("S") if value.dtype.kind == "U" else value
    elif kind == "soft":
        file[name] = h5py.SoftLink("/")
    elif kind == "dangling":
        file[name] = h5py.SoftLink("/nowhere")
    elif kind == "external":
        file[name] = h5py.ExternalLink(
            rng.choice((path.name, SECRET, "/dev/zero", "nowhere.h5")), rng.choice(("/", name))
        )
    elif kind == "virtual":
        layout = h5py.VirtualLayout(shape=shape, dtype="f4")
        layout[...] = h5py.VirtualSource("nowhere.h5", "x", shape=shape)
        file.create_virtual_dataset(name, layout)
    elif kind == "storage":
        size = int(np.prod(shape)) * 4
        file.create_dataset(name, shape, "f4", external=[(SECRET, 0, size)])
    elif kind == "group":
        file.create_group(name)
    elif kind == "loop":
        file[name] = file["/"]
    elif kind == "huge":
        file.create_dataset(name, (2**20, 2**20, 2**10), "f4", chunks=(1, 1, 1))
    elif kind == "chunked" and shape:
        file.create_dataset(name, shape, rng.choice(("f8", "i4", "f2")), chunks=True, compression="gzip")
    if name in file and kind in ("odd", "virtual", "storage", "huge", "chunked"):
        for key, value in attributes.items():
            file[name].attrs[key] = value
    return f"{kind} at {name}"
