"""Stored datasets: one split of a problem, read from files as asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from factformer.config import fingerprint
from factformer.data.agreement import changed_problem, describe_difference
from factformer.data.dataset import ArrayDataset as ArrayDataset
from factformer.data.dataset import Dataset as Dataset
from factformer.data.dataset import Selection, compute_normalizer, positions
from factformer.data.formats.well import GRID_KEYS
from factformer.data.formats.well_statistics import read_well_statistics
from factformer.data.hdf5 import SplitFile
from factformer.data.layout import MASK
from factformer.data.normalization import Normalizer
from factformer.data.numbers import AXES
from factformer.data.opening import require_readable
from factformer.data.section import Section
from factformer.data.splits import SPLITS, split_files, split_of, training_files
from factformer.data.statistics import TrajectoryMoments, normalizer_from
from factformer.errors import UserError
from factformer.problem import Problem


class StoredDataset(Dataset):
    """One split in one or more files of The Well's layout, ours or The Well's own, read as asked for.

    Several files (The Well keeps one per set of physical parameters) count as one after the other. What a
    foreign file does not say is inferred; ``changes`` are attributes of the problem, or of its grid, to use instead.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        split: str,
        *,
        training: Sequence[Path] = (),
        allow_external: bool = False,
        **changes: Any,
    ) -> None:
        self.split = split
        of_grid = {name: value for name, value in changes.items() if name in GRID_KEYS}
        others = {name: value for name, value in changes.items() if name not in GRID_KEYS}
        require_readable(paths)
        self._files = [SplitFile(path, allow_external=allow_external, **of_grid) for path in paths]
        first = self._files[0]
        self._training = list(training)
        if "parameters" not in others and not first.is_ours:
            others["parameters"] = self._varying_numbers(allow_external)
        self.problem = _changed(first, others)
        for file in self._files[1:]:
            other = _changed(file, others)
            difference = describe_difference(self.problem, other)
            if difference or file.num_frames != first.num_frames:
                reason = difference or f"{first.num_frames} frames expected, {file.num_frames} found"
                raise UserError(f"{file.path} does not go with {first.path.name}: {reason}")
        self.num_frames = first.num_frames
        self.num_trajectories = sum(file.num_trajectories for file in self._files)
        self._changes = changes
        self._normalizer: Normalizer | None = None

    def _varying_numbers(self, allow_external: bool) -> list[str]:
        """Scalars that differ between trajectories, of one foreign file or of several: the parameters.

        Those of the training split are those of every other one.
        """
        if self.split != "train" and self._training and any(file.numbers for file in self._files):
            names = StoredDataset(self._training, "train", allow_external=allow_external).problem.parameters
            return [name for name in names if all(name in file.numbers for file in self._files)]
        first = self._files[0].numbers
        return [
            name
            for name in first
            if all(name in file.numbers for file in self._files)
            and (
                any(file.numbers[name].ndim for file in self._files)
                or len({float(file.numbers[name]) for file in self._files}) > 1
            )
        ]

    @cached_property
    def fingerprint(self) -> str:  # type: ignore[override]  # that of long foreign files takes a while: when asked for
        prints = [file.fingerprint for file in self._files]
        return prints[0] if len(prints) == 1 else fingerprint(prints)

    @property
    def paths(self) -> list[Path]:
        return [file.path for file in self._files]

    @property
    def files(self) -> list[SplitFile]:
        return list(self._files)

    @property
    def shared_numbers(self) -> list[str]:
        """Scalars that are no parameters, since all trajectories share their values."""
        first, *others = [file.numbers for file in self._files]
        named = [name for name in first if all(name in numbers for numbers in others)]
        return [name for name in named if name not in self.problem.parameters]

    @property
    def provenance(self) -> dict[str, Any]:
        """Solver settings and seed, as far as all files share them; of foreign files, what is not understood of them.

        What was assumed when they were converted no longer is where ``changes`` say it.
        """
        shared = _shared([file.provenance for file in self._files])
        said = {*self._changes, *(GRID_KEYS if "grid" in self._changes else ())}
        assumed = [name for name in shared.pop("assumed", ()) if name not in said]
        return {**shared, **({"assumed": assumed} if assumed else {})}

    def read(self, trajectories: Selection, frames: slice = slice(None), part: str = "state") -> Tensor:
        return torch.from_numpy(self._read(trajectories, frames, part))

    def read_exact(self, trajectories: Selection, frames: slice = slice(None), part: str = "state") -> NDArray[Any]:
        return self._read(trajectories, frames, part, exact=True)

    def read_section(self, trajectories: Selection, frames: slice, part: str, section: Section) -> Tensor:
        return torch.from_numpy(self._read(trajectories, frames, part, section))

    def _read(
        self,
        trajectories: Selection,
        frames: slice,
        part: str,
        section: Section | None = None,
        *,
        exact: bool = False,
    ) -> NDArray[Any]:
        """One part, with zeros outside the domain: other files may hold anything there."""

        def found(part: str) -> NDArray[Any]:
            return self._gather(
                trajectories,
                lambda file, local: file.read(local, frames, self.problem, part, section, exact=exact),
            )

        values = found(part)
        if not self.problem.masked or part in ("mask", "parameters"):
            return values
        mask = found("mask")
        outside = ~mask[:, None, ..., None] if "frame" in AXES[part] else ~mask[..., None]
        np.copyto(values, 0, where=outside)
        return values

    def normalizer(self) -> Normalizer:
        if self._normalizer is None:
            self._normalizer = self.known_normalizer()
        if self._normalizer is None:
            training = self._training_split()
            self._normalizer = compute_normalizer(self) if training is None else training.normalizer()
        return self._normalizer

    def known_normalizer(self) -> Normalizer | None:
        first = self._files[0]
        if not first.is_ours:
            for folder in (first.path.parent, *first.path.parents[2:3]):  # <dataset>/data/<split>/<file>
                theirs = read_well_statistics(folder, self.problem)
                if theirs is not None:
                    return self._completed(*theirs)
        training = self._training_split()
        if training is not None:
            return training.known_normalizer()
        known = first.selected_statistics(self.problem) if len(self._files) == 1 else None
        return None if known is None else normalizer_from(self.problem, *known, self.all_parameters())

    def _completed(self, mean: dict[str, NDArray[Any]], std: dict[str, NDArray[Any]]) -> Normalizer:
        """The Well's statistics of the state, with those of static fields and parameters that it says nothing of."""
        for part in ("static", "parameters"):
            if part in self.problem.parts and part not in mean:
                training = self._training_split() or self
                trajectory = TrajectoryMoments(self.problem)
                for index in range(training.num_trajectories):
                    trajectory.add_part(part, training.read_exact([index], part=part)[0])
                found = trajectory.moments()[part]
                mean, std = {**mean, part: found.mean}, {**std, part: found.std}
        return normalizer_from(self.problem, mean, std, self.all_parameters())

    def training_split(self) -> StoredDataset | None:
        """The training split that lies beside this one, if there is any; of a training split itself."""
        if self.split == "train":
            return self
        return self._training_split() if self._training else None

    def _training_split(self) -> StoredDataset | None:
        """The one that this split belongs to, unless it is that itself."""
        if self.split == "train":
            return None
        if not self._training:
            raise UserError(
                f"no training split beside {self.paths[0]}: statistics come from it alone; put its train.hdf5 there"
            )
        training = StoredDataset(self._training, "train", **self._changes)
        training.require(self.problem)
        return training

    def _gather(self, trajectories: Selection, read: Callable[[SplitFile, list[int]], NDArray[Any]]) -> NDArray[Any]:
        wanted = positions(trajectories, self.num_trajectories)
        pieces, start = [], 0
        order: list[int] = []
        for file in self._files:
            stop = start + file.num_trajectories
            mine = [position for position, index in enumerate(wanted) if start <= index < stop]
            if mine:
                pieces.append(read(file, [wanted[position] - start for position in mine]))
                order += mine
            start = stop
        if not pieces:
            return read(self._files[0], [])
        joined = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
        return joined if order == sorted(order) else joined[np.argsort(order)]


def open_dataset(path: str | Path, split: str | None = None, **changes: Any) -> StoredDataset:
    """One split of a stored dataset.

    ``path`` is a folder with ``train.hdf5``, ``valid.hdf5``, ``test.hdf5``, a dataset of The Well as it was
    downloaded (``data/<split>/*.hdf5``), or one file. ``split`` is by default the training split of a folder and the
    one that a file says (`split_of`); a file that says another than ``split`` is refused.

    ``changes`` are attributes of the problem to use instead of those written down or inferred, such as ``grid=``,
    ``frame_dt=``, ``num_context_frames=``, ``horizon=`` or ``boundary=``, or of its grid: ``extent=``, ``periodic=``,
    ``points=``, ``coordinates=``. Names choose what is read: ``state=`` the fields to predict, ``static=`` fields that
    do not vary in time, ``forcing=`` fields that do and are known in advance, ``parameters=`` scalars. By default all
    fields that do not vary in time are static, and scalars that differ between trajectories are parameters;
    ``masked=True`` takes a static field ``mask`` of ones and zeros for the points inside the domain.
    """
    path = Path(path)
    if not path.exists():
        raise UserError(f"no data at {path}: the folder or file does not exist")
    if path.is_file():
        split = split_of([path], split) or "train"
        training = training_files(path.parent) if split != "train" else []
        return StoredDataset([path], split, training=training, **changes)
    split = split or "train"
    files = split_files(path, split)
    if not files:
        there = [name for name in SPLITS if split_files(path, name)]
        hint = f"it holds {', '.join(there)}" if there else "it holds no HDF5 file of any split"
        if (path / f".{split}.hdf5.partial").exists():
            hint = "its generation was interrupted, start it again to finish it"
        raise UserError(f"no {split} split in {path}: {hint}")
    if (found := split_of(files)) not in ("", split):
        raise UserError(
            f"{files[0]} lies where the split {split!r} is looked for, but says it is {found!r}: "
            f"move it, or convert it again with --split {split}"
        )
    return StoredDataset(files, split, training=split_files(path, "train"), **changes)


def parts_for(data: StoredDataset, problem: Problem) -> dict[str, Any]:
    """Changes by which a dataset shows what ``problem`` knows beside its state, as far as its files hold it.

    A number that all trajectories share is no parameter of a dataset, but may be one of the surrogate. Files of others
    hold static fields and parameters that a surrogate may have been trained without.
    """
    there = {"static": [item.name for item in data.problem.static], "parameters": list(data.problem.parameters)}
    held = {"static": there["static"], "parameters": [*there["parameters"], *data.shared_numbers]}
    wanted = {"static": [item.name for item in problem.static], "parameters": list(problem.parameters)}
    if data.files[0].is_ours:
        wanted = {part: list(dict.fromkeys([*names, *there[part]])) for part, names in wanted.items()}
    chosen = {part: [name for name in names if name in held[part]] for part, names in wanted.items()}
    changes: dict[str, Any] = {part: names for part, names in chosen.items() if set(names) != set(there[part])}
    if problem.masked and not data.problem.masked and MASK.name in there["static"]:
        changes["masked"] = True
    return changes


def _changed(file: SplitFile, changes: dict[str, Any]) -> Problem:
    """The problem of a file with ``changes``, all of which it can serve."""
    problem = changed_problem(file.problem, **file.chosen_parts(changes))
    if problem.parts != file.problem.parts or problem.parameters != file.problem.parameters:
        file.require(problem)
    return problem


def _shared(tables: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What all of them hold alike, parameters one by one."""
    first, *others = tables
    alike = {key: value for key, value in first.items() if all(other.get(key) == value for other in others)}
    if "parameters" in first:
        alike["parameters"] = _shared([table.get("parameters", {}) for table in tables])
    return alike
