"""The shape of the house: small folders, and nothing under src/ that only lab, docs, tests and benchmarks use."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "factformer"
MAX_FILES = 16
ENTRY_POINTS = ("factformer", "factformer.__main__", "factformer.cli", "factformer.cli.__main__")
FOUND_BY_NAME = ("models", "pdes", "protocols", "recipes")
"""Folders whose modules the catalog imports by name."""
USED_BY_LAB = {"factformer.data.generate.simulated"}
"""Data solved into memory: the second sink of the one solve loop, which only campaigns need today."""
USER_PAGES = ("README.md", "docs/reference.md", "docs/tutorial.md", "docs/how-to/*.md")
"""Pages for users: a module that they name is part of the interface."""


def modules():
    """All modules of the package by name."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def named_in(text, known):
    """The modules that a dotted name in a text means or lies in."""
    found = set()
    for name in re.findall(r"factformer(?:\.\w+)+", text):
        while name not in known:
            name = name.rpartition(".")[0]
        found.add(name)
    return found


def imported_by(path, known):
    """The modules that a file imports anywhere, or names in a string as lazy packages do."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(node.value)
    return found & set(known)


def reachable(roots, known):
    """The roots, everything that they import, and the packages around it."""
    found, waiting = set(), list(roots)
    while waiting:
        name = waiting.pop()
        if name and name not in found:
            found.add(name)
            waiting += [name.rpartition(".")[0], *imported_by(known[name], known)]
    return found


def test_no_module_is_used_by_lab_docs_and_tests_alone():
    known = modules()
    roots = set(ENTRY_POINTS)
    for folder in FOUND_BY_NAME:
        roots |= {name for name in known if name.startswith(f"factformer.{folder}.")}
    for pattern in USER_PAGES:
        for page in ROOT.glob(pattern):
            roots |= named_in(page.read_text(encoding="utf-8"), known)
    assert sorted(set(known) - reachable(roots, known) - USED_BY_LAB) == []


@pytest.mark.parametrize("folder", sorted({path.parent.relative_to(PACKAGE).as_posix() for path in modules().values()}))
def test_no_folder_has_more_than_16_files(folder):
    assert len(list((PACKAGE / folder).glob("*.py"))) <= MAX_FILES, "split the folder"


def test_the_package_does_not_import_the_laboratory():
    for name, path in modules().items():
        assert not re.search(r"^\s*(from|import) lab\b", path.read_text(encoding="utf-8"), re.MULTILINE), name


def test_studies_and_lab_share_no_module_name_with_the_rest_of_the_package():
    """One name, one meaning: no second ``plan.py`` or ``outcome.py``."""
    ours = [*(PACKAGE / "studies").glob("*.py"), *(ROOT / "lab").rglob("*.py")]
    others = {path.stem for path in modules().values() if path.parent.name != "studies"}
    names = [path.stem for path in ours if not path.stem.startswith("__")]
    assert sorted(others & set(names)) == []
    assert len(names) == len(set(names))
