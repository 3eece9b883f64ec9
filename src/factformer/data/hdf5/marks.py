"""Whose file an HDF5 file is, by its attributes."""

from __future__ import annotations

from pathlib import Path

import h5py

from factformer.data.opening import reading_hdf5


def said_split(path: Path, *, allow_external: bool = False) -> str:
    """The split that a file of ours says it is of, whatever is known of its grid; empty for others."""
    with reading_hdf5(path, allow_external=allow_external) as file:
        return str(file.attrs["split"]) if is_ours(file) else ""


def is_ours(file: h5py.File) -> bool:
    """By any of our marks: a file that has lost one of them is damaged, not somebody else's."""
    return "factformer_version" in file.attrs or {"fingerprint", "problem"} <= set(file.attrs)
