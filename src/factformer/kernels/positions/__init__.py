"""The learned map of the Fourier features.

Reference implementation: `factformer.nn.fourier_features.FourierFeatures`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from factformer.grid import Grid
    from factformer.nn.fourier_features import FourierFeatures


def width(layer: FourierFeatures) -> int:
    return layer.linear.in_features


def fits(layer: FourierFeatures, *_: object) -> bool:
    return layer.linear.in_features <= 256


def run(layer: FourierFeatures, grid: Grid, *, dtype: torch.dtype) -> Tensor:
    from factformer.kernels.positions.op import encode_positions

    return encode_positions(layer.table(grid, dtype), layer.linear.weight, layer.linear.bias)
