"""The time between frames as a parameter: data for surrogates that are trained for several time steps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from factformer.config import fingerprint
from factformer.data.dataset import Dataset, Selection, positions
from factformer.data.normalization import Normalizer
from factformer.data.section import Section
from factformer.data.statistics import parameter_statistics
from factformer.problem import STEP, Problem


class SteppedDataset(Dataset):
    """Every ``stride``-th frame of a dataset, with the time between the frames that are read as a parameter.

    Frames that are read with a step of 3 lie three intervals apart, and ``frame_dt`` of their trajectories says so. Its
    statistics are those of training at ``strides``. Data that have such a parameter of their own keep it, multiplied.
    """

    def __init__(self, dataset: Dataset, stride: int = 1, strides: tuple[int, ...] = (1,)) -> None:
        self.whole, self.stride, self.strides = dataset, stride, strides
        self.problem = with_step(dataset.problem.with_stride(stride))
        self.split, self.num_trajectories = dataset.split, dataset.num_trajectories
        self.num_frames = -(-dataset.num_frames // stride)

    @property
    def fingerprint(self) -> str:  # type: ignore[override]
        whole = self.whole.fingerprint
        return whole if self.stride == 1 else fingerprint([whole, self.stride])

    @property
    def provenance(self) -> dict[str, Any]:
        return self.whole.provenance

    def resident(self, device: torch.device, storage: torch.dtype) -> Tensor | None:
        return self.whole.resident(device, storage) if self.stride == 1 else None

    def read(self, trajectories: Selection, frames: slice = slice(None), part: str = "state") -> Tensor:
        if part == "parameters":
            return self._parameters(trajectories, self.stride * abs(frames.step or 1))
        return self.whole.read(trajectories, self._of_whole(frames), part)

    def read_section(self, trajectories: Selection, frames: slice, part: str, section: Section) -> Tensor:
        if part == "parameters":
            return self.read(trajectories, frames, part)
        return self.whole.read_section(trajectories, self._of_whole(frames), part, section)

    def _of_whole(self, frames: slice) -> slice:
        chosen = range(*frames.indices(self.num_frames))
        stop = chosen.stop * self.stride if chosen.stop >= 0 else None  # backwards to the first frame
        return slice(chosen.start * self.stride, stop, chosen.step * self.stride)

    def _parameters(self, trajectories: Selection, intervals: int) -> Tensor:
        known, problem = self.whole.problem.parameters, self.problem
        count = len(positions(trajectories, self.num_trajectories))
        values = self.whole.read(trajectories, part="parameters") if known else torch.empty(count, 0)
        if STEP not in known:
            values = torch.cat([values, values.new_full((count, 1), self.whole.problem.frame_dt)], dim=1)
        factors = [intervals if name == STEP else 1 for name in problem.parameters]
        return values * values.new_tensor(factors)

    def normalizer(self) -> Normalizer:
        return self._told(self.whole.normalizer())

    def known_normalizer(self) -> Normalizer | None:
        known = self.whole.known_normalizer()
        return None if known is None else self._told(known)

    def _told(self, known: Normalizer) -> Normalizer:
        """Statistics with those of ``frame_dt`` at all strides."""
        place, values = self.problem.parameters.index(STEP), known.to_dict()
        single: NDArray[Any] = self._parameters(slice(None), 1)[:, place].cpu().numpy()
        column = parameter_statistics(np.multiply.outer(single, self.strides).reshape(-1, 1))
        for name, (number,) in column.items():
            others = values.get(name, [])
            values[name] = [*others[:place], number, *others[place + 1 :]]
        return Normalizer(**values)


def with_step(problem: Problem) -> Problem:
    """``problem`` with the time between its frames as a parameter."""
    return problem if STEP in problem.parameters else replace(problem, parameters=(*problem.parameters, STEP))


def as_told(dataset: Dataset, problem: Problem) -> Dataset:
    """``dataset`` with the time between its frames as a parameter, if ``problem`` has that."""
    wanted = STEP in problem.parameters and not isinstance(dataset, SteppedDataset)
    return SteppedDataset(dataset) if wanted else dataset
