"""Patches of neighbouring points as the points of a coarser grid: space to depth and back."""

from factformer.nn.patches.patched_grid import PatchedGrid
from factformer.nn.patches.patches import Patches

__all__ = ["PatchedGrid", "Patches"]
