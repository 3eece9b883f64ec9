"""Foreign arrays as a dataset: which array is which field, and which of its axes is which.

A layout names the axes of an array by letters: ``n`` trajectory, ``t`` frame, ``x y z w`` the grid, ``c``
channel, so ``nxyt`` is ``(trajectory, x, y, frame)``. Without one, channel-last order is assumed:
``n t x y … c``, with ``c`` absent from scalars and ``t`` from fields that do not vary in time. An array without
``n`` is a single trajectory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from factformer.arrays import as_mask
from factformer.config import fingerprint
from factformer.data.dataset import OwnStatistics, Selection, positions
from factformer.data.formats.arrays import LazyArray, describe_arrays, is_complex
from factformer.data.identity import identity
from factformer.data.layout import AXIS_NAMES
from factformer.data.normalization import Normalizer
from factformer.errors import UserError
from factformer.problem import Field, Problem

REST = "*"
"""Ends a layout where the grid and, if any, the channels follow."""


@dataclass(frozen=True)
class Column:
    """Some channels of a problem: an array and the letters of its axes."""

    name: str
    array: LazyArray
    layout: str

    def size(self, letter: str) -> int:
        return int(self.array.shape[self.layout.index(letter)]) if letter in self.layout else 1

    def read(self, trajectories: slice, frames: slice, axes: str, step: int) -> NDArray[Any]:
        """``(trajectory, frame, *grid, channel)`` in the numbers of the file, keeping every ``step``-th point."""
        chosen = {"n": trajectories, "t": frames, "c": slice(None)}
        thinned = slice(None, None, step)
        values = np.asarray(self.array[tuple(chosen.get(letter, thinned) for letter in self.layout)])
        order = [self.layout.index(letter) for letter in f"nt{axes}c" if letter in self.layout]
        values = values.transpose(order)
        if "n" not in self.layout:  # of every trajectory
            values = values[None].repeat(trajectories.stop - trajectories.start, axis=0)
        if "t" not in self.layout:
            values = values[:, None]
        return values if "c" in self.layout else values[..., None]


class ImportedDataset(OwnStatistics):
    """Arrays of a foreign file, read as asked for. ``path`` names them in messages.

    ``columns`` hold the state, static fields, forcing and mask. A column without an axis of trajectories is of the only
    one where it is of the state, and of all of them otherwise. ``sources`` are the files that are read.
    """

    def __init__(
        self,
        path: Path,
        problem: Problem,
        columns: Mapping[str, Sequence[Column]],
        split: str,
        step: int = 1,
        provenance: Mapping[str, Any] | None = None,
        *,
        parameters: Mapping[str, NDArray[np.float64]] | None = None,
        normalizer: Normalizer | None = None,
        sources: Sequence[Path] = (),
    ) -> None:
        self.path, self.problem, self.split = path, problem, split
        self.sources, self._normalizer = [path, *sources], normalizer
        self._provenance = dict(provenance or {})
        self._columns, self._step = {part: list(found) for part, found in columns.items()}, step
        self._parameters = [(parameters or {})[name] for name in problem.parameters]
        main = self._columns.get("state") or self._columns["static"]
        counts = {column.name: column.size("n") for column in main}
        if len(set(counts.values())) > 1:
            raise UserError(f"the arrays of {path} hold different numbers of trajectories: {counts}")
        lengths = {column.name: column.size("t") for column in main}
        if len(set(lengths.values())) > 1:
            raise UserError(f"the arrays of {path} hold different numbers of frames: {lengths}")
        self.num_trajectories = counts[main[0].name]
        self.num_frames = lengths[main[0].name]
        if self.num_trajectories < 1 or self.num_frames < 1:
            raise UserError(f"{path} is empty: {self.num_trajectories} trajectories of {self.num_frames} frames")
        every = [column for found in self._columns.values() for column in found]
        self.fingerprint = fingerprint(
            {
                "problem": problem.identity(),
                "columns": [[column.name, column.layout] for column in every],
                **identity(path, {column.name: column.array for column in every}),
                **({"parameters": [values.tolist() for values in self._parameters]} if self._parameters else {}),
            }
        )

    @property
    def provenance(self) -> dict[str, Any]:
        """What is known of the file: parameters, what was assumed and which arrays are left out."""
        return self._provenance

    def read(self, trajectories: Selection, frames: slice = slice(None), part: str = "state") -> Tensor:
        values = self.read_exact(trajectories, frames, part)
        return torch.from_numpy(values if part == "mask" else _rounded(values))

    def read_exact(self, trajectories: Selection, frames: slice = slice(None), part: str = "state") -> NDArray[Any]:
        chosen = positions(trajectories, self.num_trajectories)
        if part == "parameters":
            return np.stack([values[chosen] for values in self._parameters], axis=-1)
        once = part in ("static", "mask")
        frames = slice(0, 1) if once else frames
        axes = "".join(AXIS_NAMES[: self.problem.grid.num_axes])
        parts = [
            np.concatenate([column.read(run, frames, axes, self._step) for column in self._columns[part]], axis=-1)
            for run in _runs(chosen)
        ]
        values = np.concatenate(parts)
        if part == "mask":
            return as_mask(np.ascontiguousarray(values[:, 0, ..., 0])).numpy()
        if self.problem.masked:  # files may hold anything outside of the domain
            outside = ~self.read_exact(chosen, part="mask")
            values = np.where(outside[:, None, ..., None], values.dtype.type(0), values)
        return values[:, 0] if once else values

    def _why_no_statistics(self) -> str:
        return f", {self.path} is {self.split}"

    def known_normalizer(self) -> Normalizer | None:
        return self._normalizer

    def with_normalizer(self, normalizer: Normalizer | None) -> Self:
        """The same with the statistics of the training split that it belongs to."""
        self._normalizer = normalizer
        return self


def _rounded(values: NDArray[Any]) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):  # what is too large counts as infinite, and is reported as such
        return values.astype(np.float32, copy=False)


def _runs(indices: Sequence[int]) -> list[slice]:
    """Consecutive indices as slices: where trajectories are not the first axis, one at a time is slow."""
    runs: list[slice] = []
    for index in indices:
        if runs and runs[-1].stop == index:
            runs[-1] = slice(runs[-1].start, index + 1)
        else:
            runs.append(slice(index, index + 1))
    return runs or [slice(0, 0)]


def assign_columns(
    path: Path,
    arrays: Mapping[str, LazyArray],
    fields: Sequence[Field],
    names: Mapping[str, str],
    *,
    num_axes: int,
    layout: str | None,
    steady: bool,
    all_there: bool = True,
    layouts: Mapping[str, str] | None = None,
    lengths: Mapping[str, int] | None = None,
) -> list[Column]:
    """The arrays that hold ``fields``, in channel order.

    ``names`` says which array is which field, or which arrays its components are (``"Vx,Vy"``). A field
    not named there is the array of its own name; where they are ``all_there`` is to find, a single array holds them.
    ``layouts`` are those that the file itself says, ``lengths`` those that it says of axes where it says no layouts.
    """
    known = lengths or {}
    if fields and len(arrays) == 1 and not names and all_there:
        name, array = next(iter(arrays.items()))
        total = sum(item.num_channels for item in fields)
        letters = known_layout(path, name, array, num_axes, layout, layouts)
        return [make_column(path, name, array, total, num_axes, letters, steady, known)]
    columns = []
    for item in fields:
        chosen = [part.strip() for part in names.get(item.name, item.name).split(",")]
        width = item.num_channels if len(chosen) == 1 else 1
        if len(chosen) not in (1, item.num_channels):
            raise UserError(f"field {item.name!r} has {item.num_channels} channels, {len(chosen)} arrays were given")
        for name in chosen:
            if name not in arrays:
                raise UserError(
                    f"{path} has no array {name!r} for field {item.name!r}, say which one it is, as in "
                    f"{item.name}=<array>; it holds {describe_arrays(arrays)}"
                )
            letters = known_layout(path, name, arrays[name], num_axes, layout, layouts)
            columns.append(make_column(path, name, arrays[name], width, num_axes, letters, steady, known))
    return columns


def known_layout(
    path: Path, name: str, array: LazyArray, num_axes: int, layout: str | None, layouts: Mapping[str, str] | None
) -> str | None:
    """What a user says or, where nobody does, what the file says: for all of its arrays, or for none."""
    if layout is not None or layouts is None:
        return layout
    if name not in layouts:
        raise UserError(
            f"{path}: the axes of {name} of shape {tuple(array.shape)} are not clear from their names; say what they "
            "are with --layout, or rename them to time, trajectory, channel, x, y …"
        )
    if not layouts[name].endswith(REST):
        return layouts[name]
    letters = layouts[name].removesuffix(REST) + "".join(AXIS_NAMES[:num_axes])
    return letters if len(letters) == len(array.shape) else f"{letters}c"


def make_column(
    path: Path,
    name: str,
    array: LazyArray,
    num_channels: int,
    num_axes: int,
    layout: str | None,
    steady: bool,
    lengths: Mapping[str, int],
) -> Column:
    """The array with its layout, given or the usual one for its number of axes."""
    axes = "".join(AXIS_NAMES[:num_axes])
    shape = tuple(array.shape)
    if is_complex(array):
        raise UserError(f"{path}: array {name} holds complex numbers; store their parts as two arrays")
    if layout is None:
        layout = _usual_layout(path, name, array, num_channels, axes, steady)
        if set(axes) & set(lengths):  # times alone may be too few
            _require_lengths(path, Column(name, array, layout), {**lengths, "c": num_channels})
    elif len(layout) == len(shape) + 1 and "c" in layout:
        layout = layout.replace("c", "")  # one layout may stand for vectors and scalars alike
    allowed = set(f"nt{axes}c")
    if len(layout) != len(shape) or not set(axes) <= set(layout) <= allowed or len(set(layout)) != len(layout):
        raise UserError(
            f"{path}: layout {layout!r} does not fit array {name} of shape {shape}: "
            f"it needs one letter per axis, {', '.join(axes)} and, where present, n, t and c"
        )
    column = Column(name, array, layout)
    if column.size("c") != num_channels:
        others = [Column(name, array, order) for order in (f"nt{axes}", f"nt{axes}c", f"t{axes}", f"t{axes}c")]
        fitting = [c.layout for c in others if len(c.layout) == len(shape) and c.size("c") == num_channels]
        advice = f"; read as --layout {fitting[0]}, it would fit" if fitting else ""
        raise UserError(
            f"{path}: array {name} of shape {shape} has {column.size('c')} channels, needs {num_channels}{advice}"
        )
    return column


def _require_lengths(path: Path, column: Column, lengths: Mapping[str, int]) -> None:
    """Raise where the file says other ``lengths`` of the axes, which another order of them would have."""
    shape = tuple(column.array.shape)

    def fits(order: Sequence[str]) -> bool:
        return all(lengths.get(letter, size) == size for letter, size in zip(order, shape, strict=True))

    if fits(column.layout):
        return
    fitting = ["".join(order) for order in permutations(column.layout) if fits(order)]
    if fitting:
        said = ", ".join(f"{letter} {size}" for letter, size in lengths.items() if letter != "c")
        raise UserError(
            f"{path}: array {column.name} of shape {shape} is no {column.layout}, as its axes have the lengths {said}: "
            f"say what they are by a layout (--layout), such as {' or '.join(fitting[:2])}"
        )


def _usual_layout(path: Path, name: str, array: LazyArray, num_channels: int, axes: str, steady: bool) -> str:
    """Channel-last order; an array with an axis fewer than the shortest such one is a single trajectory.

    So is one whose last axis has a single number, which may be the channel but no axis of a grid.
    """
    channel = "c" if num_channels > 1 else ""
    candidates = [f"nt{axes}c", f"nt{axes}{channel}"]
    if steady:
        candidates = [f"n{axes}{channel}", f"n{axes}c", *candidates]
    shortest = min(candidates, key=len).removeprefix("n")
    single = [] if steady else [f"t{axes}c"]
    fitting = [letters for letters in (*candidates, shortest, *single) if len(letters) == len(array.shape)]
    columns = [Column(name, array, letters) for letters in fitting]
    likely = [c for c in columns if c.size("c") == num_channels and not (steady and c.size("t") > 1)]
    likely = [c for c in likely if all(c.size(letter) > 1 for letter in axes)] or likely
    if not columns:
        possible = [letters for letters in (axes, f"t{axes}", f"nt{axes}") if len(letters) == len(array.shape)]
        raise UserError(
            f"{path}: array {name} of shape {tuple(array.shape)} does not look like ({', '.join(candidates[0])}); "
            f"say what its axes are by a layout{''.join(f', such as {letters}' for letters in possible)}: a letter for "
            f"each, {', '.join(axes)} and, where present, n (trajectory), t (frame) and c (channel)"
        )
    chosen = (likely or columns)[0]
    if path.suffix == ".mat" and not isinstance(array, np.ndarray):
        _require_clear_order(path, chosen, num_channels, axes)
    return chosen.layout


def _require_clear_order(path: Path, column: Column, num_channels: int, axes: str) -> None:
    """Ask for the layout of an array in HDF5 by MATLAB (v7.3), which programs show with the axes either way round.

    The order is clear where it alone makes sense: the channels come last, or the grid has as many points each way.
    """
    shape = tuple(column.array.shape)
    sizes, turned = (dict(zip(column.layout, order, strict=True)) for order in (shape, shape[::-1]))
    even, even_turned = (len({table[letter] for letter in axes}) == 1 < len(axes) for table in (sizes, turned))
    by_channels = num_channels > 1 and turned["c"] != num_channels
    if not by_channels and (not even or even_turned):
        raise UserError(
            f"{path}: the axes of array {column.name} of shape {shape} are not clear, as MATLAB v7.3 files turn them "
            f"around; say what they are by a layout (--layout), such as {column.layout} or {column.layout[::-1]}"
        )
