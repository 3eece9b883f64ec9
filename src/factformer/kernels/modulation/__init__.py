"""The modulation of a latent field by the parameters of its sample.

Reference implementation: `factformer.nn.conditions.Modulation`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from factformer.nn.conditions import Modulation


def width(layer: Modulation) -> int:
    return layer.dim


def fits(layer: Modulation, *_: object) -> bool:
    return layer.dim <= 1024


def run(layer: Modulation, z: Tensor, embedding: Tensor, *, dtype: torch.dtype) -> Tensor:
    from factformer.kernels.modulation.op import modulate

    return modulate(z, layer.scale_and_shift(embedding))  # in the number format of the field, as the plain layer
