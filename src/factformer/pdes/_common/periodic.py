"""Equations on a periodic box that look alike everywhere and along every axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from factformer.config import Config
from factformer.grid import Grid
from factformer.numerics.spectral import resample
from factformer.pdes._common.base import PDE, Frames, Symmetries
from factformer.pdes._common.symmetry import BoxSymmetry, Generators


class PeriodicBox(PDE):
    """Data on coarser grids are truncated Fourier series, and `symmetry` says what carries solutions to solutions."""

    symmetry: ClassVar[BoxSymmetry] = BoxSymmetry()
    """What carries solutions to solutions; shifts always do."""
    downsamplings = ("truncate",)
    vectorized = True

    def downsample(
        self, frames: Frames, shape: Sequence[int], method: str | None = None, grid: Grid | None = None
    ) -> Frames:
        """The modes that the coarse grid does not resolve are dropped."""
        self.choose_downsampling(method)
        return resample(frames.movedim(-1, 2), len(shape), shape, grid).movedim(2, -1)

    def symmetries(self, grid: Grid, parameters: Config | None = None) -> Symmetries:
        return self.symmetry.members(grid)

    def augment(self, frames: Frames, grid: Grid, generator: Generators, parameters: Config | None = None) -> Frames:
        return self.symmetry.augment(frames, grid, generator)
