"""The local branch with its residual add.

Reference implementation: `factformer.nn.local_branch.LocalBranch`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from factformer.grid import Grid
    from factformer.nn.local_branch import LocalBranch


def width(layer: LocalBranch) -> int:
    return len(layer.norm.weight)


def fits(layer: LocalBranch, u: Tensor, grid: Grid | None, mask: Tensor | None = None) -> bool:
    """Kernels as wide along all axes, whose neighbours lie within one turn around an axis.

    No mirrored ends.
    """
    sizes, step = layer.convolution.sizes_at(grid)
    reach = step * (sizes[0] // 2)
    mirrored = "reflect" in layer.convolution.padding
    return width(layer) <= 128 and not mirrored and len(set(sizes)) == 1 and min(u.shape[1:-1]) > reach


def run(layer: LocalBranch, u: Tensor, grid: Grid | None, mask: Tensor | None = None, *, dtype: torch.dtype) -> Tensor:
    from factformer.kernels.local.op import local_block

    return local_block(layer, u, dtype, grid, mask)
