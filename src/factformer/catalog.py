"""Names → objects: our own files, what installed packages offer, and what a user brings along.

A file dropped into ``pdes/``, ``models/``, ``protocols/`` or ``recipes/`` is in the catalog under its name. So are the
entry points ``factformer.models`` and ``factformer.pdes`` of installed packages. A user's own objects are there for
the length of a `using` block or of one command (``--plugin``). Nothing is imported before it is asked for, and no
two objects share a name. Files whose name starts with an underscore are private to their folder.
"""

from __future__ import annotations

import ast
import importlib
import pkgutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from factformer.config import unknown_name
from factformer.errors import UserError

KINDS = {"pdes": "problem", "models": "model", "protocols": "protocol", "recipes": "recipe"}
BOUND = {"models": "Model", "pdes": "pde"}
"""What a file of ours binds its object to."""
GROUPS = {"models": "factformer.models", "pdes": "factformer.pdes"}
"""Entry points by which an installed package offers its own."""
GIVE = {
    "models": "your own is given with --plugin FILE, or as a class in Python",
    "pdes": "your own is given with --plugin FILE, or as an object in Python",
}
Brought = Mapping[str, Mapping[str, Any]]
_BROUGHT: ContextVar[Brought | None] = ContextVar("brought", default=None)


def names(folder: str) -> list[str]:
    """Sorted names of what the catalog holds of a kind: ``pdes``, ``models``, ``protocols`` or ``recipes``."""
    return sorted({*_ours(folder), *_installed(folder), *brought(folder)})


def find(folder: str, name: str) -> ModuleType:
    """The module ``factformer.<folder>.<name>``; an unknown name lists the choices."""
    choices = _ours(folder)
    if name not in choices:
        error = unknown_name(KINDS[folder], name, choices)
        if folder == "recipes" and name in names("pdes"):
            raise UserError(
                f"{error}. For {name!r} there is none: leave it out to train on --data, or give a YAML file"
            )
        raise error
    return importlib.import_module(f"factformer.{folder}.{name}")


def lookup(folder: str, name: str) -> Any:
    """The model class or the PDE of this name, from wherever it comes; an unknown name lists the choices."""
    own, installed = brought(folder), _installed(folder)
    if name in own:
        return own[name]
    if name in _ours(folder):
        if name in installed:
            raise UserError(
                f"{_package(installed[name])} offers a {KINDS[folder]} {name!r}, which is a name of ours: "
                "uninstall it, or give it another name there"
            )
        return getattr(find(folder, name), BOUND[folder])
    if name in installed:
        return _load(folder, installed[name])
    raise UserError(f"{unknown_name(KINDS[folder], name, names(folder))}; {GIVE[folder]}")


def brought(folder: str) -> Mapping[str, Any]:
    """What a user has brought along, by name: ``models``, ``pdes`` or ``metrics``."""
    return (_BROUGHT.get() or {}).get(folder, {})


@contextmanager
def using(
    *, models: Iterable[Any] = (), pdes: Iterable[Any] = (), metrics: Mapping[str, Callable[..., Any]] | None = None
) -> Iterator[None]:
    """Within the block, names of these models (classes) and PDEs (objects) are found like those of ours."""
    before = _BROUGHT.get()
    bring(models=models, pdes=pdes, metrics=metrics)
    try:
        yield
    finally:
        _BROUGHT.set(before)


def bring(
    *, models: Iterable[Any] = (), pdes: Iterable[Any] = (), metrics: Mapping[str, Callable[..., Any]] | None = None
) -> None:
    """`using` without an end: for the rest of the current context, such as one command."""
    added = {"models": _by_name("models", models), "pdes": _by_name("pdes", pdes), "metrics": dict(metrics or {})}
    _BROUGHT.set({folder: {**brought(folder), **items} for folder, items in added.items()})


def summaries(folder: str) -> dict[str, str]:
    """The first docstring line of every entry; our own files are not imported for it."""
    result = {}
    own, installed = brought(folder), _installed(folder)
    for name in names(folder):
        if name in own:
            result[name] = _summary(own[name])
        elif name in _ours(folder):
            spec = find_spec(f"factformer.{folder}.{name}")
            source = Path(spec.origin).read_text(encoding="utf-8") if spec is not None and spec.origin else ""
            result[name] = (ast.get_docstring(ast.parse(source)) or "").partition("\n")[0]
        else:
            result[name] = f"of {_package(installed[name])}"
    return result


def _ours(folder: str) -> list[str]:
    package = importlib.import_module(f"factformer.{folder}")
    return sorted(m.name for m in pkgutil.iter_modules(package.__path__) if not m.name.startswith("_"))


def _by_name(folder: str, items: Iterable[Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    kind = KINDS[folder]
    for item in items:
        name = getattr(item, "name", None)
        if not isinstance(name, str) or not name:
            raise UserError(f"{item!r} is no {kind}: it has no name; see docs/how-to/add-a-{_page(folder)}.md")
        if name in _ours(folder):
            if getattr(find(folder, name), BOUND[folder]) is item:
                continue
            raise UserError(f"{kind} {name!r} is a name of ours: give your own another one")
        if name in _installed(folder):
            offered = _package(_installed(folder)[name])
            raise UserError(f"{kind} {name!r} is a name of {offered}: give your own another one")
        if found.setdefault(name, item) is not item:
            raise UserError(f"two {kind}s are called {name!r}: give one of them another name")
    return found


def _page(folder: str) -> str:
    return {"models": "model", "pdes": "pde"}[folder]


def _summary(item: Any) -> str:
    text = item.__doc__ if isinstance(item, type) else type(item).__doc__
    return (text or "").strip().partition("\n")[0]


def _installed(folder: str) -> Mapping[str, EntryPoint]:
    return _entry_points(GROUPS[folder], tuple(sys.path)) if folder in GROUPS else {}


@lru_cache(maxsize=8)
def _entry_points(group: str, path: tuple[str, ...]) -> Mapping[str, EntryPoint]:
    """What the packages on ``path`` offer; reading it takes milliseconds for every package."""
    found: dict[str, EntryPoint] = {}
    for point in entry_points(group=group):
        other = found.setdefault(point.name, point)
        if other.value != point.value:
            raise UserError(f"{_package(other)} and {_package(point)} both offer {point.name!r}: uninstall one of them")
    return found


def _load(folder: str, point: EntryPoint) -> Any:
    kind, package = KINDS[folder], _package(point)
    try:
        item = point.load()
    except Exception as error:  # whatever the code of the package raises
        raise UserError(f"{kind} {point.name!r} of {package} cannot be imported: {one_line(error)}") from error
    if getattr(item, "name", None) != point.name:
        raise UserError(f"{package} offers {kind} {point.name!r}, but what is there is called {_called(item)}")
    return item


def _called(item: Any) -> str:
    return repr(getattr(item, "name", type(item).__name__))


def _package(point: EntryPoint) -> str:
    return f"the installed package {point.dist.name!r}" if point.dist is not None else f"the entry point {point.value}"


def one_line(error: Exception) -> str:
    """Type and first line of an error."""
    return f"{type(error).__name__}: {next(iter(str(error).strip().splitlines()), '')}"
