"""A `the_well.data.WellDataset` that somebody has opened already, as a dataset of ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from factformer.data.splits import split_of, training_files
from factformer.data.store import StoredDataset
from factformer.errors import UserError


def from_well_dataset(well: Any, split: str | None = None, **changes: Any) -> StoredDataset:
    """The same files, in the same order, with fields in physical units and windows of our own.

    Filters on file names are kept; what `WellDataset` does to samples (normalisation, strides, transforms,
    restrictions) is not. ``split`` is by default the one that the files say they are of, by themselves, their
    name or their folder (`split_of`). ``changes`` are those of `open_dataset`.
    """
    paths = [Path(path) for path in well.files_paths]
    missing = [path for path in paths if not path.is_file()]
    if missing:
        raise UserError(f"{missing[0]} is not a local file: download the dataset first")
    name = split_of(paths, split) or "train"
    return StoredDataset(paths, name, training=[] if name == "train" else training_files(paths[0].parent), **changes)
