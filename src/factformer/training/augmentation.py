"""Random symmetries of the PDE applied to training windows."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

from factformer import catalog
from factformer.errors import UserError
from factformer.grid import Grid
from factformer.pdes._base import PDE
from factformer.protocols import Window


class Augmentation:
    """A random symmetry on each sample, drawn from (seed, update, place in the batch) alone."""

    def __init__(self, problem: str, grid: Grid, seed: int) -> None:
        if problem not in catalog.names("pdes"):
            raise UserError(
                f"training.augment=true needs the symmetries of a PDE of the catalog and {problem!r} "
                "is none; set training.augment=false"
            )
        self.pde: PDE = catalog.find("pdes", problem).pde
        self.grid = grid
        self.seed = seed

    def __call__(self, window: Window, update: int, first_slot: int) -> Window:
        key = f"{self.seed}/{update}/{first_slot}"
        seed = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") >> 1

        def move(frames: Tensor) -> Tensor:
            return self.pde.augment(frames, self.grid, torch.Generator().manual_seed(seed))

        # The same draws for input and output: what moves the one moves the other.
        return Window(move(window.frames), None if window.inputs is None else move(window.inputs))
