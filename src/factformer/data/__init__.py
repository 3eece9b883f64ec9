"""Data: stored and in-memory datasets, their generation, conversion, statistics and windows.

The names are loaded when first used: networks need the normaliser and not HDF5.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from factformer._support.lazy import load_lazily

if TYPE_CHECKING:
    from factformer.data.convert import convert as convert
    from factformer.data.dataset import ArrayDataset as ArrayDataset
    from factformer.data.dataset import Dataset as Dataset
    from factformer.data.formats.foreign import import_dataset as import_dataset
    from factformer.data.generate.plan import trajectory_seed as trajectory_seed
    from factformer.data.generate.run import generate as generate
    from factformer.data.normalization import Normalizer as Normalizer
    from factformer.data.store import StoredDataset as StoredDataset
    from factformer.data.store import open_dataset as open_dataset
    from factformer.data.windows import Windows as Windows

__all__ = load_lazily(
    __name__,
    {
        "ArrayDataset": "factformer.data.dataset",
        "Dataset": "factformer.data.dataset",
        "Normalizer": "factformer.data.normalization",
        "StoredDataset": "factformer.data.store",
        "Windows": "factformer.data.windows",
        "convert": "factformer.data.convert",
        "generate": "factformer.data.generate.run",
        "import_dataset": "factformer.data.formats.foreign",
        "open_dataset": "factformer.data.store",
        "trajectory_seed": "factformer.data.generate.plan",
    },
)
