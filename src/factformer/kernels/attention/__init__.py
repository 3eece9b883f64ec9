"""Factorized attention with its residual add.

Reference implementation: `factformer.nn.attention.FactorizedAttention`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from factformer.nn.attention.axial_kernel import AxialKernel

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from factformer.grid import Grid
    from factformer.nn.attention import FactorizedAttention


def head_dim(layer: FactorizedAttention) -> int:
    return layer.to_values.out_features // layer.heads


def width(layer: FactorizedAttention) -> int:
    return min(layer.dim, head_dim(layer))


def fits(layer: FactorizedAttention, *_: object) -> bool:
    """Sequential contractions of small heads over the points of the grid, or of a domain in it."""
    if layer.parallel or any(type(kernel) is not AxialKernel for kernel in layer.kernels):
        return False
    return layer.dim <= 128 and head_dim(layer) <= 64 and layer.axes()[0].kernel_dim <= 256


def run(
    layer: FactorizedAttention,
    u: Tensor,
    encoding: Tensor | None,
    grid: Grid,
    mask: Tensor | None = None,
    *,
    dtype: torch.dtype,
) -> Tensor:
    from factformer.kernels.attention.op import attention_block

    layer.check(u, grid, mask)
    return attention_block(layer, u, encoding, grid, mask, dtype)
