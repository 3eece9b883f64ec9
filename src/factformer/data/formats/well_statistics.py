"""``stats.yaml``: The Well's normalisation statistics, written beside our data and read beside theirs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from factformer._support.documents import LONGEST_YAML, parse_yaml
from factformer._support.files import explained, read_text, write_atomically
from factformer._support.text import first_line
from factformer.data.hdf5 import SplitFile, Statistics
from factformer.data.layout import Entry, entries
from factformer.data.statistics import check_statistics, moment_sizes
from factformer.errors import UserError
from factformer.problem import Field, Problem

FILE_NAME = "stats.yaml"
OURS = "factformer"
"""Key, which The Well has no use for, of the file and its fingerprint that the statistics are of."""


def write_well_statistics(training_file: Path) -> None:
    """Write the statistics of a training file of ours where `the_well.data.WellDataset` looks for them.

    Only those of a ``train.hdf5``, which is the whole training split of its folder, and never over a file of others.
    """
    path = training_file.with_name(FILE_NAME)
    if training_file.stem != "train" or (path.exists() and not _is_written_by_us(path)):
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

    Those that we have written are of files of ours, which carry them. Of static fields it may say nothing, and of
    parameters it never does.
    """
    path = folder / FILE_NAME
    table = parse_yaml(read_text(path, LONGEST_YAML), str(path)) if path.is_file() else None
    if not isinstance(table, dict) or OURS in table or problem.forcing:
        return None
    static = all(item.name in table.get("mean", {}) for item in problem.static)
    groups = {"state": problem.state, **({"static": problem.static} if problem.static and static else {})}
    try:
        mean, std = (
            {
                **{group: _flat(table[moment], fields) for group, fields in groups.items()},
                "increment": _flat(table[f"{moment}_delta"], problem.state),
            }
            for moment in ("mean", "std")
        )
    except (KeyError, TypeError):  # other fields
        return None
    except ValueError as error:
        raise UserError(f"{path} is damaged: {first_line(error)}; download it again") from None
    check_statistics(mean, std, {kind: size for kind, size in moment_sizes(problem).items() if kind in mean}, str(path))
    return mean, std


def _is_written_by_us(path: Path) -> bool:
    """Whether the file is one of ours, by the line of its own that `write_well_statistics` gives it."""
    return path.is_file() and any(line.startswith(f"{OURS}:".encode()) for line in path.read_bytes().splitlines())


def _plain(numbers: NDArray[np.float64], entry: Entry) -> Any:
    return numbers.reshape(entry.components).tolist() if entry.components else float(numbers[0])


def _flat(table: dict[str, Any], fields: tuple[Field, ...]) -> NDArray[np.float64]:
    parts = [np.asarray(table[item.name], dtype=np.float64).reshape(-1) for item in fields]
    return np.concatenate(parts)
