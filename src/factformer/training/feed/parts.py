"""The part of a dataset that a process holds where the grid is cut: feeds read no more of a frame."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from factformer.data.dataset import Dataset, Selection
from factformer.data.normalization import Normalizer
from factformer.data.section import Section
from factformer.parallel.part import GridPart


class PartDataset(Dataset):
    """A dataset on a part of its grid. Statistics and fingerprint are those of the whole."""

    def __init__(self, whole: Dataset, part: GridPart) -> None:
        self.whole = whole
        self.section = Section(part.slices, part.places.index, part.places.count)
        self.problem = whole.problem.with_grid(part)
        self.split = whole.split
        self.num_trajectories, self.num_frames = whole.num_trajectories, whole.num_frames

    @property
    def fingerprint(self) -> str:  # type: ignore[override]
        return self.whole.fingerprint

    @property
    def provenance(self) -> dict[str, Any]:
        return self.whole.provenance

    def read(self, trajectories: Selection, frames: slice = slice(None), part: str = "state") -> Tensor:
        return self.whole.read_section(trajectories, frames, part, self.section)

    def normalizer(self) -> Normalizer:
        return self.whole.normalizer()

    def known_normalizer(self) -> Normalizer | None:
        return self.whole.known_normalizer()
