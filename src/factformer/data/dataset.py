"""What a dataset is, one split of a problem in physical units, and the one that is held in memory."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from factformer.arrays import describe_part
from factformer.batch import Batch, Window
from factformer.config import fingerprint
from factformer.data.agreement import describe_difference, require_finite
from factformer.data.normalization import Normalizer
from factformer.data.numbers import AXES, Rounding, checked
from factformer.data.section import Section
from factformer.data.statistics import TrajectoryMoments, merge_moments, normalizer_from
from factformer.data.windows import frames_from
from factformer.errors import UserError
from factformer.problem import Problem

Selection = Sequence[int] | slice
WORDS = {"state": "frames", "static": "static fields"}
"""What parts are called in messages, where they are not called by their name."""


class Dataset(ABC):
    """One split of a problem."""

    problem: Problem
    split: str
    num_trajectories: int
    num_frames: int
    fingerprint: str

    @abstractmethod
    def read(self, trajectories: Selection, frames: slice = slice(None), part: str = "state") -> Tensor:
        """One part of some trajectories, in float32 on the CPU.

        The ``state`` and the ``forcing`` are ``(trajectory, frame, *grid, channel)``; what is known once per trajectory
        has no frames: ``static (trajectory, *grid, channel)``, ``parameters (trajectory, parameter)`` and the boolean
        ``mask (trajectory, *grid)``. Outside the mask all fields are zero, whatever the data hold there.
        """

    def read_exact(self, trajectories: Selection, frames: slice = slice(None), part: str = "state") -> NDArray[Any]:
        """The same before it is rounded to float32."""
        return self.read(trajectories, frames, part).cpu().numpy()

    def read_section(self, trajectories: Selection, frames: slice, part: str, section: Section) -> Tensor:
        """`read` of a section of the grid. Where the data allow it, no more is read."""
        return section.of(self.read(trajectories, frames, part), part).clone()

    def window(self, trajectories: Selection, frames: slice = slice(None)) -> Window:
        """All that is known of some frames of some trajectories."""
        return Window(self.read(trajectories, frames), self.known(trajectories, frames))

    def known(self, trajectories: Selection, frames: slice = slice(None)) -> Batch:
        """The same without the state."""
        return Batch(**{part: self.read(trajectories, frames, part) for part in self.problem.parts})

    def batch(
        self,
        trajectories: Selection,
        start: int = 0,
        num_frames: int = 1,
        *,
        num_context_frames: int | None = None,
        stride: int = 1,
    ) -> Batch:
        """What a surrogate sees to predict ``num_frames`` after the context that begins at frame ``start``.

        It sees as many context frames as the problem says, or ``num_context_frames``, of every ``stride``-th frame.
        """
        count = self.problem.num_context_frames if num_context_frames is None else num_context_frames
        known = self.known(trajectories, frames_from(start, count + num_frames, stride))
        context = self.read(trajectories, frames_from(start, count, stride)) if count else None
        return known._replace(context=context)

    def all_parameters(self) -> NDArray[Any] | None:
        """The parameters of all trajectories ``(trajectory, parameter)``, if the problem has any."""
        if not self.problem.parameters:
            return None
        values = self.read_exact(slice(None), part="parameters")
        require_finite(torch.as_tensor(values), self.split, range(self.num_trajectories))
        return values

    @abstractmethod
    def normalizer(self) -> Normalizer:
        """Statistics of the training split."""

    def known_normalizer(self) -> Normalizer | None:
        """The same where they are at hand; none where the training split would have to be read for them."""
        return None

    @property
    def provenance(self) -> dict[str, Any]:
        """Solver settings and seed, where they are known."""
        return {}

    @property
    def simulated_seconds(self) -> float | None:
        """How much time the solver simulated in all, what passed before the first frames included.

        A steady solution counts as one second. None where no solver of ours made the data.
        """
        if "pde" not in self.provenance:
            return None
        seen = replace(self.problem, horizon=max(1, self.num_frames - 1)).time_span
        return self.num_trajectories * (float(self.provenance.get("warmup") or 0.0) + seen)

    def resident(self, device: torch.device, storage: torch.dtype) -> Tensor | None:
        """All frames where they lie on ``device`` in that format already; most datasets have none there."""
        return None

    def require(self, problem: Problem) -> None:
        """Raise a one-line error that names the first thing in which ``problem`` differs from the data."""
        difference = describe_difference(problem, self.problem)
        if difference:
            raise UserError(f"the data do not fit {problem.name!r}: {difference}")


class OwnStatistics(Dataset):
    """A split that takes its statistics from its own values, if it is the one to train on."""

    _normalizer: Normalizer | None

    def normalizer(self) -> Normalizer:
        if self._normalizer is None:
            if self.split != "train":
                raise UserError(f"statistics come from the training split{self._why_no_statistics()}")
            self._normalizer = compute_normalizer(self)
        return self._normalizer

    @abstractmethod
    def _why_no_statistics(self) -> str:
        """What ends the sentence of that error."""


class ArrayDataset(OwnStatistics):
    """Frames ``(trajectory, frame, *grid, channel)`` in memory, with all other parts that the problem has.

    These are shaped as `Dataset.read` gives them; one ``mask (*grid)`` may stand for all trajectories. Statistics
    are those of the training split: other splits are given them as ``normalizer``.
    """

    def __init__(
        self,
        frames: Tensor | NDArray[Any],
        problem: Problem,
        split: str = "train",
        *,
        normalizer: Normalizer | None = None,
        **known: Tensor | NDArray[Any] | None,
    ) -> None:
        self.problem = problem
        self.split = split
        mask = known.get("mask") if problem.masked else None
        outside = None if mask is None else ~checked(mask, problem, "mask", self._described("mask"))
        self._parts = {"state": checked(frames, problem, "state", self._described("frames"), outside)}
        self.num_trajectories, self.num_frames = self._parts["state"].shape[:2]
        problem.require_frames(self.num_frames, "each sample holds")
        given = {part: values for part, values in known.items() if values is not None}
        for part in given:
            if part not in problem.parts:
                raise UserError(f"problem {problem.name!r} has no {part}; leave it out")
        for part in problem.parts:
            if part not in given:
                raise UserError(f"problem {problem.name!r} needs {describe_part(problem, part)} beside the frames")
            self._parts[part] = self._checked(part, given[part], outside)
        digest = hashlib.sha256()
        for values in self._parts.values():
            digest.update(values.numpy().tobytes())
        self.fingerprint = fingerprint({"problem": problem.identity(), "values": digest.hexdigest()})
        self._normalizer = normalizer

    def _described(self, what: str) -> str:
        return what if self.split == "train" else f"{what} of the {self.split} split"

    def _checked(self, part: str, values: Tensor | NDArray[Any], outside: Tensor | None) -> Tensor:
        tensor = checked(values, self.problem, part, self._described(part), outside)
        if part == "mask" and len(tensor) == 1:
            tensor = tensor.expand(self.num_trajectories, *tensor.shape[1:])
        wanted = (self.num_trajectories, self.num_frames)[: len(AXES[part])]
        if tuple(tensor.shape[: len(wanted)]) != wanted:
            axes = " and ".join(f"{count} {name} entries" for count, name in zip(wanted, AXES[part], strict=True))
            raise UserError(f"{part} must hold {axes}, as the frames do; got shape {tuple(tensor.shape)}")
        return tensor

    def read(self, trajectories: Selection, frames: slice = slice(None), part: str = "state") -> Tensor:
        return self._chosen(self._parts[part], trajectories, frames, part)

    def read_section(self, trajectories: Selection, frames: slice, part: str, section: Section) -> Tensor:
        return self._chosen(section.of(self._parts[part], part), trajectories, frames, part)

    def _chosen(self, held: Tensor, trajectories: Selection, frames: slice, part: str) -> Tensor:
        values = held[_index(trajectories)]
        if "frame" not in AXES[part]:
            return values.clone()
        return values[:, list(range(*frames.indices(self.num_frames)))]  # a step may be negative, as in files

    def _why_no_statistics(self) -> str:
        return f": give {self.split!r} a normalizer"

    def known_normalizer(self) -> Normalizer | None:
        return self.normalizer() if self.split == "train" else self._normalizer


def compute_normalizer(dataset: Dataset, frames: slice = slice(None)) -> Normalizer:
    """Statistics in one pass over the values, a trajectory at a time; of some ``frames`` if need be."""
    problem = dataset.problem
    where = f"the {dataset.split} split of {problem.name!r}"
    rounding = {part: Rounding(f"the {WORDS.get(part, part)} of {where}") for part in ("state", *problem.parts)}
    rounding.pop("mask", None)
    moments = []
    for index in range(dataset.num_trajectories):
        mask = dataset.read([index], part="mask")[0].numpy() if problem.masked else None
        trajectory = TrajectoryMoments(problem, mask)
        for part, rounded in rounding.items():
            values = rounded.kept(dataset.read_exact([index], frames, part))[0]
            if part == "state":
                for frame in values:
                    trajectory.add(frame)
            elif part == "forcing":
                for frame in values:
                    trajectory.add_part(part, frame)
            else:
                trajectory.add_part(part, values)
        moments.append(trajectory.moments())
        if not all(np.isfinite(values.mean).all() for values in moments[-1].values()):
            raise UserError(
                f"{where} holds NaN or infinite values in trajectory {index}; "
                "mend it, or leave it out with `factformer convert --trajectories`"
            )
    for rounded in rounding.values():
        rounded.require_digits()
    total = merge_moments(moments, problem)
    mean, std = {k: v.mean for k, v in total.items()}, {k: v.std for k, v in total.items()}
    return normalizer_from(problem, mean, std, dataset.all_parameters())


def _index(trajectories: Selection) -> slice | list[int]:
    return trajectories if isinstance(trajectories, slice) else [int(index) for index in trajectories]


def positions(trajectories: Selection, count: int) -> list[int]:
    if isinstance(trajectories, slice):
        return list(range(*trajectories.indices(count)))
    positions = [int(index) for index in trajectories]
    for index in positions:
        if not 0 <= index < count:
            raise IndexError(f"trajectory {index} of {count}")
    return positions
