"""Arrays that lie in files and are mapped into memory, as a dataset that reads them as asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from factformer.arrays import as_tensor, describe_part, fits, joined_parameters, require_names, shape_advice
from factformer.data.formats.arrays import NUMBERS
from factformer.data.formats.importers import Column, ImportedDataset
from factformer.data.layout import AXIS_NAMES
from factformer.data.normalization import Normalizer
from factformer.data.numbers import checked
from factformer.errors import UserError
from factformer.problem import Field, Problem, num_channels


def is_mapped(values: Any) -> bool:
    """Whether an array is a part of a file, as `numpy.load` with ``mmap_mode`` gives it."""
    return any(isinstance(each, np.memmap) for each in _bases(values))


def mapped_dataset(
    frames: Any, known: Mapping[str, Any], problem: Problem, split: str, normalizer: Normalizer | None = None
) -> ImportedDataset:
    """A dataset from frames and what is known beside them, by name. Arrays that lie in files stay there.

    Statistics are taken in one pass over the values of the training split, which finds numbers that are not finite.
    """
    given = [part for part, values in known.items() if values is not None]
    for part in problem.parts:
        if part not in given:
            raise UserError(f"problem {problem.name!r} needs {describe_part(problem, part)} beside the frames")
    for part in given:
        if part not in problem.parts:
            raise UserError(f"problem {problem.name!r} has no {part}; leave it out")
    axes = "".join(AXIS_NAMES[: problem.grid.num_axes])
    points = (*problem.grid.shape, num_channels(problem.state))
    _require_shape("frames", frames, ("trajectory", "frame", *points))
    count, num_frames = frames.shape[:2]
    problem.require_frames(num_frames, "each sample holds")
    columns = {"state": [Column("frames", frames, f"nt{axes}c")]}
    for part, sizes in {"static": (count,), "forcing": (count, num_frames)}.items():
        fields: tuple[Field, ...] = getattr(problem, part)
        values = known.get(part) or {}
        require_names(values, [item.name for item in fields], part)
        columns[part] = [_column(part, item, values[item.name], sizes, problem) for item in fields]
    if problem.masked:
        inside = checked(known["mask"], problem, "mask", "mask").numpy()
        if len(inside) not in (1, count):
            raise UserError(f"mask must hold {count} trajectory entries, as the frames do; got shape {inside.shape}")
        columns["mask"] = [Column("mask", np.broadcast_to(inside, (count, *problem.grid.shape)), f"n{axes}")]
    parameters = {}
    if problem.parameters:
        values = joined_parameters(known["parameters"], problem.parameters, count).float()
        numbers = checked(values, problem, "parameters", "parameters")
        parameters = {name: numbers[:, index].double().numpy() for index, name in enumerate(problem.parameters)}
    return ImportedDataset(_file(frames, known), problem, columns, split, parameters=parameters, normalizer=normalizer)


def _column(part: str, item: Field, values: Any, leading: Sequence[int], problem: Problem) -> Column:
    values = values if is_mapped(values) else as_tensor(values, f"{part} {item.name!r}").numpy()
    scalar = np.ndim(values) == len(leading) + problem.grid.num_axes
    wanted = (*leading, *problem.grid.shape, *(() if scalar else (item.num_channels,)))
    _require_shape(f"{part} {item.name!r}", values, wanted, channels=not scalar)
    letters = "nt"[: len(leading)] + "".join(AXIS_NAMES[: problem.grid.num_axes]) + ("" if scalar else "c")
    return Column(f"{part} {item.name}", values, letters)


def _require_shape(what: str, values: Any, wanted: Sequence[int | str], *, channels: bool = True) -> None:
    shape = tuple(values.shape)
    if not fits(shape, wanted):
        advice = shape_advice(shape, wanted, channels=channels)
        raise UserError(f"{what} must have shape ({', '.join(map(str, wanted))}), got {shape}{advice}")
    if values.dtype.kind not in NUMBERS or values.dtype.kind == "c":
        raise UserError(f"{what} must hold real numbers, got {values.dtype}")


def _file(frames: Any, known: Mapping[str, Any]) -> Path:
    """A file that one of the arrays lies in."""
    arrays = [frames, *(value for part in ("static", "forcing") for value in (known.get(part) or {}).values())]
    names = [each.filename for array in arrays for each in _bases(array) if isinstance(each, np.memmap)]
    return Path(next(name for name in names if name is not None))


def _bases(values: Any) -> Iterator[Any]:
    while isinstance(values, np.ndarray):
        yield values
        values = values.base
