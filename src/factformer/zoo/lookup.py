"""Where a bundle with a name is: ``FACTFORMER_ZOO``, the installed zoo, what was fetched before, and then the index."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from factformer._support.files import clean_scratch_folders, explained, file_checksum
from factformer._support.lock import locked
from factformer.errors import UserError
from factformer.zoo.fetch import Unreachable, fetch_file, fetch_text, keep_if_right, part_of
from factformer.zoo.index import DESCRIPTION, INDEX, Entry, FileEntry, Index, parse_index_text, read_index

ADDRESS = "FACTFORMER_ZOO_URL"
CACHE = "FACTFORMER_CACHE"
FOLDERS = "FACTFORMER_ZOO"
PACKAGED = Path(__file__).parent / "bundles"
"""The bundles inside a wheel."""
CHECKOUT = Path(__file__).parents[3] / "zoo"

Progress = Callable[[int, int], None]
"""Hears how many bytes are there, and of how many."""
Say = Callable[[str], None]
"""Hears a line for the user."""


@dataclass(frozen=True)
class Known:
    """A bundle of the index or of this computer: where it is, if it is here, and what the index says of it."""

    name: str
    path: Path | None
    entry: Entry | None
    state: Literal["here", "fetched", "elsewhere"]


def installed() -> dict[str, Path]:
    """Bundles of this computer by name: those in ``$FACTFORMER_ZOO``, ``./zoo``, the package, and fetched ones."""
    folders = [Path(p) for p in os.environ.get(FOLDERS, "").split(os.pathsep) if p]
    folders += [Path.cwd() / "zoo", CHECKOUT, PACKAGED]
    found: dict[str, Path] = {}
    for folder in folders:
        for item in sorted(folder.glob(f"*/{DESCRIPTION}")):
            found.setdefault(item.parent.name, item.parent)
    return found


def fetched() -> dict[str, Path]:
    """Bundles that were fetched, by name; of several versions the one that came last."""
    items = [item.parent for item in cache_folder().glob(f"*/*/{DESCRIPTION}") if not item.parent.name.startswith(".")]
    return {item.parent.name: item for item in sorted(items, key=lambda item: item.stat().st_mtime)}


def cache_folder() -> Path:
    """Where fetched bundles are kept: ``$FACTFORMER_CACHE``, else the system's place for such files."""
    if os.environ.get(CACHE):
        return Path(os.environ[CACHE]) / "zoo"
    if os.environ.get("XDG_CACHE_HOME"):
        home = Path(os.environ["XDG_CACHE_HOME"])
    elif sys.platform == "win32":
        home = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        home = Path.home() / "Library" / "Caches"
    else:
        home = Path.home() / ".cache"
    return home / "factformer" / "zoo"


def current_index() -> Index:
    """The index at ``$FACTFORMER_ZOO_URL``, else the one that came with the package."""
    address = os.environ.get(ADDRESS, "").rstrip("/")
    if address:
        where = f"{address}/{INDEX}"
        found = parse_index_text(fetch_text(where), where)
        return Index(found.bundles, address)
    path = next((folder / INDEX for folder in (PACKAGED, CHECKOUT) if (folder / INDEX).is_file()), None)
    return Index({}) if path is None else read_index(path)


def contents(say: Say = lambda line: None) -> list[Known]:
    """Every bundle that has a name here or in the index; those here alone, with a line, where that is out of reach."""
    try:
        index = current_index().bundles
    except Unreachable as error:
        say(f"bundles of this computer alone: {error}")
        index = {}
    here, cached = installed(), fetched()
    found = []
    for name in sorted({*index, *here, *cached}):
        state: Literal["here", "fetched", "elsewhere"] = "here" if name in here else "fetched"
        path, entry = here.get(name) or cached.get(name), index.get(name)
        found.append(Known(name, path, entry, state if path else "elsewhere"))
    return found


def find(name: str, progress: Progress | None = None) -> Path:
    """The folder of the bundle ``name``; it is fetched if the index has it and this computer has not."""
    here, cached = installed(), fetched()
    if name in here:
        return here[name]
    if name in cached and os.environ.get(ADDRESS):  # what is here needs no network; `pull` asks for a newer one
        return cached[name]
    index = current_index()
    if name in index.bundles:
        return pull(name, index, progress=progress)
    if name in cached:
        return cached[name]
    names = sorted({*here, *cached, *index.bundles})
    known = f" Bundles by name: {', '.join(names)}." if names else ""
    raise UserError(f"there is no bundle at {name}.{known}")


def pull(
    name: str, index: Index | None = None, *, progress: Progress | None = None, say: Say = lambda line: None
) -> Path:
    """Fetch a bundle of the index; its folder in the cache. One that is there in this version is not fetched again.

    Where the index is out of reach or has no address, a copy of this computer is taken, and a line says so. One that
    the index knows must be as it says.
    """
    copy = installed().get(name) or fetched().get(name)
    try:
        index = index or current_index()
    except Unreachable as error:
        if copy is None:
            raise
        say(f"taking the copy of {name!r} on this computer: {error}")
        return copy
    if name not in index.bundles:
        raise UserError(f"the index of the zoo has no {name!r}; it has {', '.join(sorted(index.bundles)) or 'nothing'}")
    entry = index.bundles[name]
    folder = cache_folder() / name / entry.version
    if folder.is_dir() and not damage(folder, entry):
        return folder
    if index.base is None and index.hub is None:
        if copy is not None:
            if wrong := damage(copy, entry):
                raise UserError(
                    f"the bundle {name!r} at {copy} is damaged, or not version {entry.version}: {wrong}; and the index "
                    f"of the zoo has no address to fetch it from: set {ADDRESS} to one"
                )
            say(f"taking the copy of {name!r} on this computer: the index of the zoo has no address")
            return copy
        raise UserError(
            f"the bundle {name!r} is not on this computer, and the index of the zoo has no address: set {ADDRESS} to "
            f"one, or {FOLDERS} to a folder that holds {name}/"
        )
    with explained(folder), locked(folder.parent, f"factformer zoo pull {name}"):
        clean_scratch_folders(folder)
        if folder.is_dir() and not damage(folder, entry):  # another process has fetched it meanwhile
            return folder
        partial = folder.with_name(f".{entry.version}.partial")
        partial.mkdir(parents=True, exist_ok=True)
        done = 0
        for file, wanted in entry.files.items():
            if damage_of(partial / file, wanted):
                _fetch(
                    index, f"{name}/{entry.version}/{file}", partial / file, wanted, _counting(progress, done, entry)
                )
            done += wanted.size
        for item in partial.iterdir():
            if item.name not in entry.files:
                shutil.rmtree(item) if item.is_dir() else item.unlink()
        if folder.exists():
            shutil.rmtree(folder)
        os.replace(partial, folder)
    return folder


def damage(folder: Path, entry: Entry) -> str:
    """What is wrong with the files of a bundle; nothing where all are as the index says."""
    wrong = (f"{file} {word}" for file, wanted in entry.files.items() if (word := damage_of(folder / file, wanted)))
    return ", ".join(wrong)


def damage_of(path: Path, wanted: FileEntry) -> str:
    if not path.is_file():
        return "is missing"
    if path.stat().st_size != wanted.size or file_checksum(path) != wanted.sha256:
        return "has another checksum"
    return ""


def _fetch(index: Index, file: str, target: Path, wanted: FileEntry, progress: Callable[[int], None]) -> None:
    if index.base is not None:
        fetch_file(f"{index.base.rstrip('/')}/{file}", target, wanted, progress)
        return
    assert index.hub is not None
    try:
        from huggingface_hub import hf_hub_download
    except ImportError:
        raise UserError(
            f"bundles of the Hugging Face repository {index.hub} need a package: pip install 'factformer[hub]'"
        ) from None
    where = f"{index.hub}/{file}"
    try:
        path = hf_hub_download(index.hub, file, local_dir=target.parent / ".hub")
    except Exception as error:  # its versions raise the errors of three different HTTP packages
        raise UserError(f"cannot fetch {where} from Hugging Face: {type(error).__name__}; try again later") from error
    with contextlib.suppress(FileNotFoundError):
        part_of(target).unlink()
    shutil.move(path, part_of(target))
    keep_if_right(part_of(target), target, wanted, where)
    progress(wanted.size)


def _counting(progress: Progress | None, before: int, entry: Entry) -> Callable[[int], None]:
    return lambda done: progress(before + done, entry.size) if progress else None
