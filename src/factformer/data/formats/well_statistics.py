"""``stats.yaml``: The Well's normalisation statistics, written beside our data and read beside theirs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from factformer.data.hdf5 import SplitFile, Statistics
from factformer.data.layout import Entry, entries
from factformer.errors import UserError
from factformer.files import explained, write_atomically
from factformer.problem import Field, Problem

FILE_NAME = "stats.yaml"
OURS = "factformer"
"""Key, which The Well has no use for, of the file and its fingerprint that the statistics are of."""


def write_well_statistics(training_file: Path) -> None:
    """Write the statistics of a training file of ours where `the_well.data.WellDataset` looks for them.

    Only those of a ``train.hdf5``, which is the whole training split of its folder, and never over a file of others.
    """
    path = training_file.with_name(FILE_NAME)
    if training_file.stem != "train" or (path.exists() and not _is_ours(_read(path))):
        return
    file = SplitFile(training_file)
    if file.statistics is None:
        raise UserError(f"{training_file} holds no statistics: it is not a training split of ours")
    mean, std = file.statistics
    problem = file.problem
    table: dict[str, dict[str, Any]] = {
        key: {} for key in ("mean", "std", "rms", "mean_delta", "std_delta", "rms_delta")
    }
    groups = [(problem.state, "state", ""), (problem.state, "increment", "_delta")]
    groups += [(problem.static, "static", ""), (problem.forcing, "forcing", "")]
    if file.num_frames == 1:  # nothing changes in time: of the increments only a scale is wanted, that of the field
        mean = {**mean, "increment": np.zeros_like(mean["state"])}
        std = {**std, "increment": std["state"]}
    for fields, kind, suffix in groups:
        for entry in entries(fields, problem.grid.num_axes):
            name = entry.path.split("/")[1]
            values = {"mean": mean[kind][entry.channels], "std": std[kind][entry.channels]}
            values["rms"] = np.hypot(values["mean"], values["std"])
            for key, numbers in values.items():
                table[key + suffix][name] = _plain(numbers, entry)
    table[OURS] = {training_file.name: file.fingerprint}
    with explained(path):
        write_atomically(path, yaml.safe_dump(table, sort_keys=True))


def read_well_statistics(folder: Path, problem: Problem) -> Statistics | None:
    """Statistics of a dataset of The Well as it was downloaded; None when it has none for these fields.

    Those that we have written are of files of ours, which carry them.
    """
    path = folder / FILE_NAME
    table = _read(path) if path.is_file() else None
    if table is None or _is_ours(table):
        return None
    try:
        mean = {
            "state": _flat(table["mean"], problem.state),
            "increment": _flat(table["mean_delta"], problem.state),
            **({"static": _flat(table["mean"], problem.static)} if problem.static else {}),
        }
        std = {
            "state": _flat(table["std"], problem.state),
            "increment": _flat(table["std_delta"], problem.state),
            **({"static": _flat(table["std"], problem.static)} if problem.static else {}),
        }
    except (KeyError, TypeError, ValueError):
        return None
    return mean, std


def _read(path: Path) -> Any:
    """What the file holds; None where it is no YAML."""
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError):
        return None


def _is_ours(table: Any) -> bool:
    return isinstance(table, dict) and OURS in table


def _plain(numbers: NDArray[np.float64], entry: Entry) -> Any:
    return numbers.reshape(entry.components).tolist() if entry.components else float(numbers[0])


def _flat(table: dict[str, Any], fields: tuple[Field, ...]) -> NDArray[np.float64]:
    parts = [np.asarray(table[item.name], dtype=np.float64).reshape(item.num_channels) for item in fields]
    return np.concatenate(parts)
