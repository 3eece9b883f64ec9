"""A `the_well.data.WellDataset` that somebody has opened already, as a dataset of ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from factformer.data.store import SPLITS, StoredDataset
from factformer.errors import UserError


def from_well_dataset(well: Any, split: str | None = None, **changes: Any) -> StoredDataset:
    """The same files, in the same order, with fields in physical units and windows of our own.

    Filters on file names are kept; what `WellDataset` does to samples (normalisation, strides, transforms,
    restrictions) is not. ``split`` defaults to the folder the files are in; ``changes`` are those of
    `open_dataset`.
    """
    paths = [Path(path) for path in well.files_paths]
    missing = [path for path in paths if not path.is_file()]
    if missing:
        raise UserError(f"{missing[0]} is not a local file: download the dataset first")
    folder = paths[0].parent
    name = split or (folder.name if folder.name in SPLITS else "train")
    training = sorted((folder.parent / "train").glob("*.h*5")) if name != "train" else []
    return StoredDataset(paths, name, training=training, **changes)
