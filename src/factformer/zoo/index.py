"""The index of the zoo: which bundles there are, their files with size and checksum, and where they can be fetched.

    {"format": "factformer zoo", "version": 1, "base": null, "hub": null,
     "bundles": {"flow": {"version": "1", "card": "…", "files": {"model.safetensors": {"sha256": "…", "size": 1}, …}}}}

A file lies at ``base/NAME/VERSION/FILE``, or under the same path in the Hugging Face repository ``hub``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from factformer._support.documents import parse_json, read_json
from factformer.errors import UserError

INDEX = "index.json"
FORMAT = "factformer zoo"
VERSION = 1
WEIGHTS, DESCRIPTION, CARD = "model.safetensors", "bundle.json", "README.md"
"""The files of a bundle; the card may be missing."""
BUNDLE_FILES = (WEIGHTS, DESCRIPTION, CARD)
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")
CHECKSUM = re.compile(r"[0-9a-f]{64}")


class FileEntry(NamedTuple):
    """One file of a bundle."""

    sha256: str
    size: int


@dataclass(frozen=True)
class Entry:
    """One bundle: its version, what it is in a line, and its files."""

    name: str
    version: str
    card: str
    files: Mapping[str, FileEntry]

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files.values())


@dataclass(frozen=True)
class Index:
    """Bundles by name, and where they can be fetched: an address, a Hugging Face repository, or nowhere."""

    bundles: Mapping[str, Entry]
    base: str | None = None
    hub: str | None = None


def read_index(path: Path) -> Index:
    return parse_index(read_json(path), str(path))


def parse_index_text(text: str, where: str) -> Index:
    return parse_index(parse_json(text, where), where)


def parse_index(values: Any, where: str) -> Index:
    """The index, checked; names in it become parts of paths."""
    try:
        if values["format"] != FORMAT or values["version"] != VERSION:
            raise UserError(f"{where} is no index of a zoo in version {VERSION}; update factformer or the index")
        base, hub = values.get("base"), values.get("hub")
        for address in (base, hub):
            if address is not None and not isinstance(address, str):
                raise UserError(f"{where}: base and hub are texts or null")
        bundles = {name: _entry(name, entry) for name, entry in values["bundles"].items()}
    except UserError as error:
        raise UserError(str(error) if where in str(error) else f"{where}: {error}") from None
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{where} is no index of a zoo: {type(error).__name__} {error}") from None
    return Index(bundles, base, hub)


def _entry(name: str, values: Mapping[str, Any]) -> Entry:
    version, card, files = values["version"], values["card"], values["files"]
    for text in (name, version):
        if not isinstance(text, str) or not NAME.fullmatch(text):
            raise UserError(f"{text!r} is no name or version of a bundle")
    if not isinstance(card, str):
        raise UserError(f"the card of {name!r} is a text")
    if not (set(BUNDLE_FILES) >= set(files) >= {WEIGHTS, DESCRIPTION}):
        raise UserError(f"{name!r} has the files {', '.join(files)}; a bundle has {', '.join(BUNDLE_FILES)}")
    found = {}
    for file in BUNDLE_FILES:
        if file in files:
            sha256, size = files[file]["sha256"], files[file]["size"]
            if not isinstance(sha256, str) or not CHECKSUM.fullmatch(sha256) or type(size) is not int or size < 1:
                raise UserError(f"{name}/{file} needs a sha256 and a size in bytes")
            found[file] = FileEntry(sha256, size)
    return Entry(name, version, card, found)
