"""Damage from a seeded generator: to bytes, JSON and YAML values, safetensors, HDF5, NumPy and MATLAB files.

Every mutator takes a `random.Random` first, changes one file in place and returns a few words that say what it did.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import h5py
import numpy as np
import yaml

NUMBERS = (0, -1, 1, 2**31, 2**63, 10**12, 10**30, -(10**12), 0.0, -0.0, 1e-300, 1e300, 1.5, float("nan"), float("inf"))
TEXTS = (
    "",
    " ",
    "x",
    "../..",
    "/dev/zero",
    "\x1b[31mred\x1b[0m",
    "a\nb\r\nc",
    "\u202egpj.exe",
    "$x_$",
    "=1+1",
    "<script>alert(1)</script>",
    "ü" * 250,
    "%s%n{0}",
    "\x00",
    "\ud800",
    "null",
    "nan",
    "1e999",
)
DEEP = "@deep@"
"""Stands for a nesting that no recursive reader survives, until the text is written."""


def odd_value(rng: Random) -> Any:
    """A value that is hardly ever right where it stands."""
    return rng.choice(
        [
            lambda: rng.choice(NUMBERS),
            lambda: rng.choice(TEXTS),
            lambda: rng.choice([True, False, None, [], {}, [[]], [None], {"": {}}, DEEP]),
            lambda: [rng.choice(NUMBERS) for _ in range(rng.choice((1, 2, 3, 100)))],
            lambda: {rng.choice(TEXTS): rng.choice(NUMBERS)},
        ]
    )()


def odd_text(rng: Random) -> str:
    """What might stand on a command line for a value: no NUL, which no system passes on."""
    return rng.choice([text for text in TEXTS if "\x00" not in text] + [str(number) for number in NUMBERS])


def mutate_tree(rng: Random, tree: Any) -> tuple[Any, str]:
    """A copy of a JSON-like value with one of its parts replaced, removed, added, doubled or renamed."""
    tree = json.loads(json.dumps(tree))
    if not isinstance(tree, (dict, list)) or not tree:
        return odd_value(rng), "replaced whole"
    parent, key, path = _place(rng, tree)
    action = rng.choice(["replace", "replace", "replace", "nudge", "remove", "add", "rename", "wrap", "whole"])
    if action == "nudge" and not isinstance(parent[key], (int, float)):
        action = "replace"
    if action == "replace":
        parent[key] = odd_value(rng)
    elif action == "nudge":
        parent[key] = rng.choice([parent[key] + 1, -parent[key], parent[key] * 2, parent[key] / 2, str(parent[key])])
    elif action == "remove":
        del parent[key]
    elif action == "wrap":
        parent[key] = rng.choice([[parent[key]], {"value": parent[key]}, [parent[key], parent[key]]])
    elif action == "whole":
        tree = odd_value(rng)
    elif isinstance(parent, list):
        parent.insert(key, odd_value(rng))
    else:
        value = parent.pop(key) if action == "rename" else odd_value(rng)
        parent[rng.choice(TEXTS)] = value
    return tree, f"{action} {path}"


def _place(rng: Random, tree: Any) -> tuple[Any, Any, str]:
    """A part of a tree and where it hangs: down from the top, so that a section counts for as much as a large one."""
    path = ""
    while True:
        key = rng.choice(list(tree)) if isinstance(tree, dict) else rng.randrange(len(tree))
        path += f".{key}"
        below = tree[key]
        if not isinstance(below, (dict, list)) or not below or rng.random() < 0.2:
            return tree, key, path
        tree = below


def json_text(tree: Any) -> bytes:
    """JSON with NaN and infinity as Python writes them; surrogates stay escaped."""
    return json.dumps(tree, indent=1).replace(f'"{DEEP}"', "[" * 30_000 + "]" * 30_000).encode()


def yaml_text(tree: Any) -> bytes:
    try:
        text = yaml.safe_dump(tree, allow_unicode=True)
    except yaml.YAMLError:
        text = json.dumps(tree)
    return text.replace(f"'{DEEP}'", "[" * 3000 + "]" * 3000).encode("utf-8", "surrogatepass")


def mutate_bytes(rng: Random, path: Path) -> str:
    """Flip, cut, insert, zero, move or double some bytes."""
    content = bytearray(path.read_bytes())
    size = len(content)
    at = rng.choice([rng.randrange(size), rng.randrange(min(size, 64)), rng.randrange(min(size, 2048))])
    length = rng.choice((1, 2, 4, 8, 64, 512))
    kind = rng.choice(["flip", "flip", "flip", "set", "cut", "insert", "remove", "zero", "move", "double", "empty"])
    if kind == "flip":
        content[at] ^= 1 << rng.randrange(8)
    elif kind == "set":
        content[at] = rng.choice((0, 1, 127, 128, 255))
    elif kind == "cut":
        del content[at:]
    elif kind == "insert":
        content[at:at] = rng.randbytes(length)
    elif kind == "remove":
        del content[at : at + length]
    elif kind == "zero":
        content[at : at + length] = bytes(len(content[at : at + length]))
    elif kind == "move":
        content[at : at + length] = content[size // 2 : size // 2 + len(content[at : at + length])]
    elif kind == "double":
        content *= 2
    else:
        del content[:]
    path.write_bytes(content)
    return f"{kind} {length} bytes at {at} of {size}"


def mutate_entry(rng: Random, path: Path) -> str:
    """Put something that is no regular file, or none of this kind, where the file was."""
    is_folder = path.is_dir()
    shutil.rmtree(path) if is_folder else path.unlink()
    kind = rng.choice(["gone", "fifo", "folder", "loop", "dangling", "device", "foreign", "text"])
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "loop":
        path.symlink_to(path.name)
    elif kind == "dangling":
        path.symlink_to("nowhere")
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "foreign":
        path.write_bytes(b"\x89PNG\r\n\x1a\n" + rng.randbytes(100))
    elif kind == "text":
        path.write_text("[1, 2, 3]", encoding="utf-8")
    return f"{kind} instead of a {'folder' if is_folder else 'file'}"


def mutate_json(rng: Random, path: Path) -> str:
    tree, what = mutate_tree(rng, json.loads(path.read_text(encoding="utf-8")))
    path.write_bytes(json_text(tree))
    return what


def mutate_json_lines(rng: Random, path: Path) -> str:
    lines = path.read_text(encoding="utf-8").splitlines()
    index = rng.randrange(len(lines))
    tree, what = mutate_tree(rng, json.loads(lines[index]))
    path.write_bytes(
        b"\n".join(json_text(tree) if i == index else line.encode() for i, line in enumerate(lines)) + b"\n"
    )
    return f"line {index}: {what}"


YAML_TRAPS = (
    b"a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\n",
    b"".join(b"k%d: &k%d [%s]\n" % (i, i, b", ".join([b"*k%d" % (i - 1)] * 9 if i else [b"x"] * 9)) for i in range(12)),
    b"!!python/object/apply:os.system ['true']\n",
    b"&a [*a]\n",
    b"model: {name: \xe9}\n",
    b"\xff\xfem\x00o\x00",
    b"\xef\xbb\xbfmodel: 1\n",
    b"model:\n\t- 1\n",
    b"<<: [1]\nmodel: {}\n",
    b"? [1, 2]\n: 3\n",
    b"2001-01-01: 1\n",
    b"--- 1\n--- 2\n",
    b"%YAML 9.9\n---\n1\n",
    b"'",
    b"[",
    b"",
)


def mutate_yaml(rng: Random, path: Path) -> str:
    if rng.random() < 0.2:
        trap = rng.randrange(len(YAML_TRAPS))
        before = path.read_bytes() if rng.random() < 0.5 else b""
        path.write_bytes(before + YAML_TRAPS[trap])
        return f"trap {trap} after {len(before)} bytes"
    tree, what = mutate_tree(rng, yaml.safe_load(path.read_text(encoding="utf-8")))
    path.write_bytes(yaml_text(tree))
    return what


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
    import scipy.io
    import scipy.sparse

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
        item.attrs[name] = rng.choice(
            [array for array in ODD_ARRAYS[:-1] if np.asarray(array()).dtype.kind != "U"][:2] or [None]
        )()
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
    elif kind == "add":
        item.attrs[f"added{rng.randrange(9)}"] = value if "\x00" not in str(value) else 1
    else:
        item.attrs[name] = (
            value if ("\x00" not in str(value) and isinstance(value, (str, float))) or value in (0, -1, 1) else 7
        )
    return f"{kind} attribute {item.name}@{name}"


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
    secret = path.with_name("secret.bin")
    if kind in ("external", "virtual", "storage"):
        secret.write_bytes(b"secret of the system " * 1000)
    if kind == "odd":
        value = np.asarray(rng.choice(ODD_ARRAYS[:-1])())
        file[name] = value.astype("S") if value.dtype.kind == "U" else value
    elif kind == "soft":
        file[name] = h5py.SoftLink("/")
    elif kind == "dangling":
        file[name] = h5py.SoftLink("/nowhere")
    elif kind == "external":
        file[name] = h5py.ExternalLink(
            rng.choice((path.name, "secret.bin", "/dev/zero", "nowhere.h5")), rng.choice(("/", name))
        )
    elif kind == "virtual":
        layout = h5py.VirtualLayout(shape=shape, dtype="f4")
        layout[...] = h5py.VirtualSource("nowhere.h5", "x", shape=shape)
        file.create_virtual_dataset(name, layout)
    elif kind == "storage":
        size = int(np.prod(shape)) * 4
        file.create_dataset(name, shape, "f4", external=[("secret.bin", 0, size)])
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


def for_file(path: Path) -> Callable[[Random, Path], str] | None:
    """The mutator that knows the structure of a file, by its name and how it begins."""
    if path.suffix == ".mat":
        return mutate_hdf5 if h5py.is_hdf5(path) else mutate_mat
    return {
        ".json": mutate_json,
        ".jsonl": mutate_json_lines,
        ".yaml": mutate_yaml,
        ".safetensors": mutate_safetensors,
        ".npy": mutate_npy,
        ".npz": mutate_npz,
        ".h5": mutate_hdf5,
        ".hdf5": mutate_hdf5,
    }.get(path.suffix)
