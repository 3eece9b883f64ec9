"""The local branch with its residual add: the convolution as a whole, norm and pointwise network block by block.

Reference implementation: `factformer.nn.local_branch.LocalBranch.plain`.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from factformer.grid import Grid
from factformer.kernels.blocked.products import are_plain, blocks, mlp
from factformer.nn.convolution import Convolution
from factformer.nn.local_branch import LocalBranch
from factformer.nn.masks import Mask


def fits(layer: LocalBranch, *_: object) -> bool:
    return type(layer.convolution) is Convolution and are_plain(layer.norm, layer.mlp)


def run(
    layer: LocalBranch,
    u: Float[Tensor, "batch *grid dim"],
    grid: Grid | None,
    mask: Mask | None = None,
    *,
    dtype: torch.dtype,
) -> Float[Tensor, "batch *grid dim"]:
    near: Tensor = layer.convolution(u, grid, mask)
    near = near.contiguous()
    same = near.dtype == torch.promote_types(u.dtype, dtype)
    result = near if same else torch.empty_like(near, dtype=u.dtype)  # a block is read before it is written
    rows_near, rows_u, rows_out = (t.flatten(0, -2) for t in (near, u, result))
    for rows in blocks(len(rows_u)):
        added = mlp(layer.norm(rows_near[rows]).to(dtype), layer.mlp)
        torch.add(rows_u[rows], added, out=rows_out[rows])
    return result
