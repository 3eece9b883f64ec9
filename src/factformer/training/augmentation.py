"""Random symmetries of the PDE applied to training windows."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from factformer import catalog
from factformer.data.store import Dataset
from factformer.errors import UserError
from factformer.pdes._base import PDE
from factformer.protocols import Window
from factformer.training.draws import generators


class Augmentation:
    """A random symmetry on each sample, drawn from (seed, update, place in the batch) alone."""

    def __init__(self, problem: str, dataset: Dataset, seed: int) -> None:
        if problem not in catalog.names("pdes"):
            raise UserError(
                f"training.augment=true needs the symmetries of a PDE of the catalog and {problem!r} is none; "
                "set training.augment=false"
            )
        self.pde: PDE = catalog.find("pdes", problem).pde
        self.grid = dataset.problem.grid
        self.seed = seed
        # What is symmetric depends on the parameters that the data were made with.
        made_with = dataset.provenance.get("parameters")
        self.parameters = None if made_with is None else self.pde.parameters.parse(made_with)

    def __call__(self, window: Window, update: int, slots: Sequence[int]) -> Window:
        drawn = generators("symmetry", self.seed, update, slots)
        if window.inputs is None:
            return Window(self.pde.augment(window.frames, self.grid, drawn, self.parameters))
        # Input and output of a steady problem move together, side by side in the channels.
        both = torch.cat([window.inputs, window.frames], dim=-1)
        inputs, frames = self.pde.augment(both, self.grid, drawn, self.parameters).split(
            [window.inputs.shape[-1], window.frames.shape[-1]], dim=-1
        )
        return Window(frames, inputs)
