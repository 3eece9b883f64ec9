"""Finding things by file name: a file dropped into ``pdes/`` or ``models/`` is in the catalog.

Nothing registers itself and nothing is imported before it is asked for. Files whose name starts with an
underscore are private to their folder.
"""

from __future__ import annotations

import ast
import importlib
import pkgutil
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from factformer.config import unknown_name

KINDS = {"pdes": "problem", "models": "model", "protocols": "protocol", "recipes": "recipe"}


def names(folder: str) -> list[str]:
    """Sorted names of what a catalog folder (``pdes``, ``models``, ``protocols``, ``recipes``) holds."""
    package = importlib.import_module(f"factformer.{folder}")
    return sorted(m.name for m in pkgutil.iter_modules(package.__path__) if not m.name.startswith("_"))


def find(folder: str, name: str) -> ModuleType:
    """The module ``factformer.<folder>.<name>``; an unknown name lists the choices."""
    choices = names(folder)
    if name not in choices:
        raise unknown_name(KINDS[folder], name, choices)
    return importlib.import_module(f"factformer.{folder}.{name}")


def summaries(folder: str) -> dict[str, str]:
    """The first docstring line of every entry, read from its file without importing it."""
    result = {}
    for name in names(folder):
        spec = find_spec(f"factformer.{folder}.{name}")
        source = Path(spec.origin).read_text(encoding="utf-8") if spec is not None and spec.origin else ""
        result[name] = (ast.get_docstring(ast.parse(source)) or "").partition("\n")[0]
    return result
