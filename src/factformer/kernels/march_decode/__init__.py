"""Latent marching and decoder.

Reference implementation: `factformer.nn.marching.LatentMarching.plain` with `factformer.nn.decoder.Decoder`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from factformer.grid import Grid
    from factformer.nn.decoder import Decoder
    from factformer.nn.marching import LatentMarching
    from factformer.nn.patches import Patches


def width(layer: LatentMarching) -> int:
    hidden = layer.mlp[0].out_features
    assert isinstance(hidden, int)
    return hidden


def fits(layer: LatentMarching, z: Tensor, num_steps: int, decoder: Decoder, *_: object) -> bool:
    """The kernels hold the hidden layer of a tile of points in registers."""
    return width(layer) <= 128 and layer.expand.out_features <= 256 and decoder.project.out_features <= 64


def run(
    layer: LatentMarching,
    z: Tensor,
    num_steps: int,
    decoder: Decoder,
    grid: Grid,
    forcing: Tensor | None = None,
    mask: Tensor | None = None,
    patches: Patches | None = None,
    fine: Grid | None = None,
    *,
    dtype: torch.dtype,
) -> Tensor:
    from factformer.kernels.march_decode.op import march_and_decode

    return march_and_decode(layer, decoder, z, num_steps, grid, forcing, mask, dtype, patches, fine)
