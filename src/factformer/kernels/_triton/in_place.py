# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Where the numbers of a patch lie in a frame, for kernels that read and write patches without a copy.

A point ``i`` of the grid of patches has the channels ``k = q · C + f`` of field ``f`` at position ``q`` of its patch.
In a frame ``(*grid, C)`` of the points themselves it lies at

    Σ_m i_m p_m stride_m + Σ_m q_m stride_m + f

The first sum takes a division for each axis; the second depends on ``k`` alone and is a small table.
Reference implementation: `factformer.nn.patches.Patches.split` and ``join``.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from factformer.grid import Grid
from factformer.nn.patches import Patches

IN_PLACE = False
"""Whether encoder and decoder read and write patches where they lie. The copies stay until both have been timed on a
GPU (``python -m lab.kernel_timings.patch_copies``): runs of a few numbers may cost more than a copy."""


class Places:
    """The table of a grid and its patches: sizes and steps of the axes of patches, then the offset of each channel."""

    def __init__(self, patches: Patches, grid: Grid, num_fields: int, like: Tensor) -> None:
        self.axes = grid.num_axes
        self.num_points = patches.grid(grid).num_points
        self.num_channels = patches.size * num_fields
        self.table = patches.tables.get(
            "places", grid, num_fields, like, lambda: (_table(patches, grid, num_fields),), torch.int32
        )[0]


def places_of(patches: Patches | None, grid: Grid | None, num_fields: int, like: Tensor) -> Places | None:
    """How kernels address the patches of frames on ``grid``, where they do; ``None``: they are copied."""
    if not IN_PLACE or patches is None or grid is None or not patches.rearranges(grid):
        return None
    return Places(patches, grid, num_fields, like)


def _table(patches: Patches, grid: Grid, num_fields: int) -> Tensor:
    strides = [num_fields * math.prod(grid.shape[m + 1 :]) for m in range(grid.num_axes)]
    steps = [p * stride for p, stride in zip(patches.patch, strides, strict=True)]
    positions = torch.cartesian_prod(*map(torch.arange, patches.patch)).reshape(-1, grid.num_axes)
    first = positions @ torch.tensor(strides)
    channels = (first[:, None] + torch.arange(num_fields)).flatten()
    return torch.cat([torch.tensor([*patches.grid(grid).shape, *steps]), channels])


@triton.jit
def offsets(p, c, channels, places, AXES: tl.constexpr):
    """Offsets of the channels ``c`` of points ``p``: one after the other, or in patches of ``AXES`` axes."""
    return in_patches(p, c, channels, places, AXES) if AXES else p[:, None] * channels + c[None, :]


@triton.jit
def in_patches(p, c, channels, places, AXES: tl.constexpr):
    """Where the channels of these points lie in their frame; what is said of those beyond the last means nothing."""
    base = p * 0
    for back in tl.static_range(AXES - 1):
        m = AXES - 1 - back
        size = tl.load(places + m)
        base += (p % size) * tl.load(places + AXES + m)
        p = p // size
    base += p * tl.load(places + AXES)
    return base[:, None] + tl.load(places + 2 * AXES + c, mask=c < channels, other=0)[None, :]
