"""The frame encoder, block by block: the lifted frames of all points are never there at once.

Reference implementation: `factformer.nn.frame_encoder.FrameEncoder.plain`.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from factformer.grid import Grid
from factformer.kernels.blocked.products import are_plain, blocks, linear, weights
from factformer.nn.frame_encoder import FrameEncoder
from factformer.nn.patches import Patches


def fits(layer: FrameEncoder, *_: object) -> bool:
    lift = () if isinstance(layer.lift, nn.Identity) else tuple(layer.lift)
    return are_plain(*lift, layer.compress)


def run(
    layer: FrameEncoder,
    frames: Float[Tensor, "batch frame *grid channel"],
    statistics: Float[Tensor, "2 channels"] | None,
    patches: Patches | None = None,
    grid: Grid | None = None,
    onto: Tensor | None = None,
    *,
    dtype: torch.dtype,
) -> Float[Tensor, "batch *latent_grid dim"]:
    if patches is not None and grid is not None:
        frames = patches.split(frames, grid)
    latent = frames.new_empty(frames.shape[0], *frames.shape[2:-1], layer.dim, dtype=dtype)
    lift = None if isinstance(layer.lift, nn.Identity) else weights(layer.lift[0], dtype)
    compress = weights(layer.compress, dtype)
    for seen, out in zip(frames.flatten(2, -2), latent.flatten(1, -2), strict=True):
        for rows in blocks(len(out)):
            block = seen[:, rows]
            if statistics is not None:
                block = (block - statistics[0]) / statistics[1]
            block = block.transpose(0, 1).to(dtype)
            if lift is not None:
                block = linear(block.flatten(0, 1), *lift, "gelu")
            out[rows] = linear(block.reshape(len(out[rows]), -1), *compress)
    return latent if onto is None else latent.add_(onto)
