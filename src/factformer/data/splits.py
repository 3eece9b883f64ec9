"""Which files belong to which split: by what they say, by their names and by their folders."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from factformer.config import unknown_name
from factformer.data.hdf5 import said_split
from factformer.data.opening import require_readable
from factformer.errors import UserError

SPLITS = ("train", "valid", "test")
SUFFIXES = (".hdf5", ".h5")


def split_of(paths: Sequence[Path], asked: str | None = None, *, allow_external: bool = False) -> str:
    """The split of all of these files: what they say or are called, else what is ``asked`` for, else their folder.

    Empty where nothing tells. A file that says one split and is called after another is refused, and so are files of
    several splits or of another than the one ``asked`` for.
    """
    if asked is not None and asked not in SPLITS:
        raise unknown_name("split", asked, SPLITS)
    require_readable(paths)  # all at once, which takes one child process
    found: dict[str, Path] = {}
    for path in paths:
        name, folder = split_names(path)
        said = said_split(path, allow_external=allow_external)
        if said and name and said != name:
            raise UserError(f"{path} is called after the split {name!r}, but says it is {said!r}: rename it")
        own = said or name
        if asked and own and own != asked:
            raise UserError(
                f"split {asked!r} asked for, but {path} is the {own} split; ask for none, or give the folder"
            )
        found.setdefault(own or asked or folder, path)
    if len(found) > 1:
        listed = ", ".join(f"{path.name} ({name or 'none'})" for name, path in found.items())
        raise UserError(f"the files are of different splits: {listed}; choose those of one")
    return next(iter(found), "")


def split_names(path: Path) -> tuple[str, str]:
    """The splits that a file and its folder are called after, in small letters or not; empty where they are not."""
    words = (path.stem.lower(), path.absolute().parent.name.lower())
    name, folder = (word if word in SPLITS else "" for word in words)
    return name, folder


def training_files(folder: Path) -> list[Path]:
    """Files of the training split that go with those in ``folder``: beside them, or in the folder of that name."""
    beside = folder.absolute().parent if folder.absolute().name in SPLITS else folder
    return split_files(folder, "train") or split_files(beside, "train")


def split_files(folder: Path, split: str) -> list[Path]:
    """The files of a split in ``folder``: one of its name, or all in a folder of its name."""
    for suffix in SUFFIXES:
        single = folder / f"{split}{suffix}"
        if single.is_file():
            return [single]
    for candidate in (folder / "data" / split, folder / split):
        if candidate.is_dir():
            return sorted(path for path in candidate.iterdir() if path.suffix in SUFFIXES and path.is_file())
    return []
