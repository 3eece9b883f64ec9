"""Data: stored and in-memory datasets, their generation, conversion, statistics and windows."""

from factformer.data.convert import convert, import_dataset
from factformer.data.generate import generate, trajectory_seed
from factformer.data.normalization import Normalizer
from factformer.data.store import ArrayDataset, Dataset, StoredDataset, open_dataset
from factformer.data.windows import Windows

__all__ = [
    "ArrayDataset",
    "Dataset",
    "Normalizer",
    "StoredDataset",
    "Windows",
    "convert",
    "generate",
    "import_dataset",
    "open_dataset",
    "trajectory_seed",
]
