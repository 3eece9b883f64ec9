"""Damage to any file: to its bytes, to the values of JSON and YAML, to what stands in its place.

Every mutator takes a `random.Random` first, changes one file in place and returns a few words that say what it did.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from random import Random
from typing import Any

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
