"""Writes zoo/index.json from the bundles under zoo/: what a release uploads.

    python -m lab.zoo_index [--check]

A bundle whose files have changed gets the next version. A release uploads zoo/NAME/* to BASE/NAME/VERSION/ and
index.json to BASE/. The index's `base` is that address, or its `hub` a Hugging Face repository; both are kept.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from factformer._support.documents import json_text, read_json
from factformer._support.files import file_checksum, write_atomically
from factformer.zoo.index import BUNDLE_FILES, CARD, DESCRIPTION, FORMAT, INDEX, VERSION, parse_index
from lab import ROOT


def build(zoo: Path) -> dict[str, Any]:
    """The index of the bundles in ``zoo``; versions and addresses come from the index that is there."""
    path = zoo / INDEX
    old = read_json(path) if path.exists() else {"base": None, "hub": None, "bundles": {}}
    bundles = {}
    for folder in sorted(item.parent for item in zoo.glob(f"*/{DESCRIPTION}")):
        present = [folder / name for name in BUNDLE_FILES if (folder / name).is_file()]
        files = {file.name: {"sha256": file_checksum(file), "size": file.stat().st_size} for file in present}
        before = old["bundles"].get(folder.name)
        version = before["version"] if before else "1"
        if before and before["files"] != files:
            version = str(int(version) + 1)
        bundles[folder.name] = {"version": version, "card": card(folder / CARD), "files": files}
    return {"format": FORMAT, "version": VERSION, "base": old["base"], "hub": old["hub"], "bundles": bundles}


def card(path: Path) -> str:
    """The first sentence of a bundle's card, without its marks."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    text = next((line for line in lines if line and not line.startswith("#")), "")
    return text.replace("`", "")


def main(arguments: list[str]) -> int:
    index = build(ROOT / "zoo")
    parse_index(index, "the new index")
    path = ROOT / "zoo" / INDEX
    if "--check" not in arguments:
        write_atomically(path, json_text(index))
        return 0
    same = path.exists() and read_json(path) == index
    print(f"{path.name}: {'as the bundles are' if same else 'out of date; run python -m lab.zoo_index'}")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
