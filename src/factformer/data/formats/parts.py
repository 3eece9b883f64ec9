"""What is known of trajectories beside their state: which arrays hold it, and which of their axes is which.

The state says how many trajectories, frames and points there are. So the axes of a static field, of forcing or of a
mask are those whose sizes fit; nothing is guessed where two readings do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from factformer.data.formats.arrays import SUFFIXES, LazyArray, describe_arrays, is_complex, open_arrays
from factformer.data.formats.importers import REST, Column
from factformer.data.layout import AXIS_NAMES, MASK
from factformer.errors import UserError
from factformer.problem import Field

WORDS = {"n": "trajectory", "t": "frame", "c": "channel"}


@dataclass(frozen=True)
class Parts:
    """Which arrays hold what is known beside the state.

    An array is named as it is in the file of the state, or is a file of its own: ``depth.npy``, ``more.npz:depth``. A
    parameter may also be a number that all trajectories share.
    """

    static: Mapping[str, str] = field(default_factory=dict)
    forcing: Mapping[str, str] = field(default_factory=dict)
    parameters: Mapping[str, str] = field(default_factory=dict)
    mask: str | None = None

    @property
    def arrays(self) -> list[str]:
        """All that is named."""
        named = [*self.static.values(), *self.forcing.values(), *self.parameters.values()]
        return [part.strip() for text in named for part in text.split(",")] + ([self.mask] if self.mask else [])

    def option(self, part: str, name: str) -> str:
        """How a user says which array ``name`` is."""
        if part == "mask":
            return "--mask ARRAY"
        return f"--{'parameter' if part == 'parameters' else part} {name}=ARRAY"


@dataclass(frozen=True)
class Sizes:
    """What the state says: trajectories, frames (None where any number will do) and points along each axis."""

    num_trajectories: int
    num_frames: int | None
    shape: tuple[int, ...]

    @property
    def axes(self) -> str:
        return "".join(AXIS_NAMES[: len(self.shape)])

    def fit(self, letters: str, shape: Sequence[int], num_channels: int | None) -> bool:
        """Whether an array of ``shape`` has axes of these ``letters``."""
        wanted: dict[str, int | None] = {"n": self.num_trajectories, "t": self.num_frames, "c": num_channels}
        wanted |= dict(zip(self.axes, self.shape, strict=True))
        return len(letters) == len(shape) and all(
            wanted[letter] in (None, size) for letter, size in zip(letters, shape, strict=True)
        )


class PartReader:
    """Finds the arrays of parts in the file ``path`` of the state, or in files of their own."""

    def __init__(
        self,
        path: Path,
        arrays: Mapping[str, LazyArray],
        parts: Parts,
        sizes: Sizes,
        layout: str | None,
        open_file: Callable[[Path], Mapping[str, LazyArray]] = open_arrays,
        layouts: Mapping[str, str] | None = None,
    ) -> None:
        self.path, self._arrays, self._parts, self._sizes = path, arrays, parts, sizes
        self._layout, self._open_file, self._layouts = layout, open_file, layouts or {}
        self.sources: list[Path] = []
        """The files of their own that were read."""

    def columns(
        self, part: str, declared: Sequence[Field] = (), names: Mapping[str, str] | None = None
    ) -> dict[str, list[Column]]:
        """The columns of each static field or forcing, those ``declared`` first.

        ``names`` are arrays that somebody has named beside the parts.
        """
        given: dict[str, str] = {**(names or {}), **getattr(self._parts, part)}
        known: dict[str, int | None] = {item.name: item.num_channels for item in declared}
        known |= {name: None for name in getattr(self._parts, part) if name not in known}
        return {name: self._field(part, name, given.get(name, name), channels) for name, channels in known.items()}

    def mask(self) -> list[Column]:
        """The column of the mask, called ``mask`` where nobody has said otherwise."""
        return self._field("mask", MASK.name, self._parts.mask or MASK.name, 1)

    def parameters(self, declared: Sequence[str]) -> dict[str, NDArray[np.float64]]:
        """The numbers of each trajectory, by name."""
        names = [*declared, *(name for name in self._parts.parameters if name not in declared)]
        return {name: self._numbers(name, self._parts.parameters.get(name, name)) for name in names}

    def _field(self, part: str, name: str, text: str, num_channels: int | None) -> list[Column]:
        chosen = [each.strip() for each in text.split(",")]
        if len(chosen) > 1 and num_channels not in (None, len(chosen)):
            raise UserError(f"{part} {name!r} has {num_channels} channels, {len(chosen)} arrays were given")
        width = num_channels if len(chosen) == 1 else 1
        return [self._column(part, name, self._find(part, name, each), each, width) for each in chosen]

    def _numbers(self, name: str, text: str) -> NDArray[np.float64]:
        number = _number(text) if text not in self._arrays else None
        count = self._sizes.num_trajectories
        if number is not None:
            return np.full(count, number)
        array = self._find("parameters", name, text)
        shape = tuple(array.shape)
        squeezed = tuple(size for size in shape if size != 1)
        if squeezed not in ((), (count,)) or array.dtype.kind not in "fiub":
            raise UserError(
                f"{self.path}: parameter {name!r} takes one number for each of {count} trajectories; "
                f"array {text} has shape {shape} and type {array.dtype}"
            )
        values = np.asarray(array[...], dtype=np.float64).reshape(-1)
        bad = np.flatnonzero(~np.isfinite(values))
        if len(bad):
            raise UserError(f"{self.path}: parameter {name!r} is {values[bad[0]]} for trajectory {bad[0]}")
        return np.broadcast_to(values, (count,))

    def _find(self, part: str, name: str, text: str) -> LazyArray:
        if text in self._arrays:
            return self._arrays[text]
        file, _, member = text.rpartition(":") if _is_file(text.rpartition(":")[0]) else (text, "", "")
        if not _is_file(file):
            other = "give one number there" if part == "parameters" else f"name a file such as {name}.npy"
            raise UserError(
                f"{self.path} has no array {text!r} for {part} {name!r}: say which one it is with "
                f"{self._parts.option(part, name)}, or {other}; it holds {describe_arrays(self._arrays)}"
            )
        arrays = self._open_file(Path(file))
        self.sources.append(Path(file))
        if not member and len(arrays) == 1:
            return next(iter(arrays.values()))
        if member not in arrays:
            raise UserError(
                f"{file} holds {describe_arrays(arrays)}: say which one is {part} {name!r}, as in {file}:ARRAY"
            )
        return arrays[member]

    def _column(self, part: str, name: str, array: LazyArray, text: str, num_channels: int | None) -> Column:
        shape, what = tuple(array.shape), f"{self.path}: {part} {name!r}, array {text} of shape {tuple(array.shape)},"
        if part == "mask":
            what = f"{self.path}: the mask, array {text} of shape {shape},"
        if is_complex(array):
            raise UserError(f"{what} holds complex numbers; store their parts as two arrays")
        axes, timed = self._sizes.axes, "t" if part == "forcing" else ""
        layout = self._layout or self._layouts.get(text, "").removesuffix(REST)
        order = (layout or f"nt{axes}") + ("" if "c" in layout else "c")
        order += "".join(letter for letter in f"nt{axes}" if letter not in order)
        candidates = []
        for leading, channel in product(("n", ""), ("c", "")):
            letters = "".join(letter for letter in order if letter in f"{leading}{timed}{axes}{channel}")
            scalar = not channel and num_channels not in (None, 1)
            if not scalar and self._sizes.fit(letters, shape, num_channels):
                candidates.append(letters)
        if layout:  # what it has no letter for is the second choice
            candidates = [letters for letters in candidates if set(letters) <= set(layout)] or candidates
        if not candidates:
            raise UserError(f"{what} does not fit the state: it needs {self._wanted(timed, num_channels)}")
        if len(candidates) > 1:
            raise UserError(
                f"{what} may be read as {' or as '.join(candidates)}: say how many channels it has in a problem file, "
                "or give it an axis more"
            )
        return Column(text, array, candidates[0])

    def _wanted(self, timed: str, num_channels: int | None) -> str:
        """Such as ``([trajectory 10,] x 64, y 64[, channel])``."""
        sizes = self._sizes
        axes = [f"{letter} {size}" for letter, size in zip(sizes.axes, sizes.shape, strict=True)]
        frames = [f"frame {sizes.num_frames or ''}".strip()] if timed else []
        channel = "[, channel]" if num_channels is None else f", channel {num_channels}" if num_channels > 1 else ""
        return f"([trajectory {sizes.num_trajectories},] {', '.join([*frames, *axes])}{channel})"


def fields_of(columns: Mapping[str, Sequence[Column]]) -> tuple[Field, ...]:
    """The fields that these columns make up."""
    return tuple(Field(name, sum(column.size("c") for column in found)) for name, found in columns.items())


def joined_columns(columns: Mapping[str, Sequence[Column]]) -> list[Column]:
    """All of them, in the order of their fields."""
    return [column for found in columns.values() for column in found]


def _is_file(text: str) -> bool:
    return Path(text).suffix in SUFFIXES


def is_number(text: str) -> bool:
    return _number(text) is not None


def _number(text: str) -> Any:
    try:
        return float(text)
    except ValueError:
        return None
