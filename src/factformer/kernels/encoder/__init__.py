"""The frame encoder.

Reference implementation: `factformer.nn.frame_encoder.FrameEncoder`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from factformer.grid import Grid
    from factformer.nn.frame_encoder import FrameEncoder
    from factformer.nn.patches import Patches


def width(layer: FrameEncoder) -> int:
    return layer.dim


def fits(layer: FrameEncoder, *_: object) -> bool:
    return layer.dim <= 128 and layer.num_channels < 64 and (layer.num_channels > 1 or layer.num_frames < 64)


def run(
    layer: FrameEncoder,
    frames: Tensor,
    statistics: Tensor | None,
    patches: Patches | None = None,
    grid: Grid | None = None,
    *,
    dtype: torch.dtype,
) -> Tensor:
    from factformer.kernels.encoder.op import encode_frames

    if statistics is None:
        zeros = torch.zeros(layer.num_channels, device=frames.device)
        statistics = torch.stack([zeros, zeros + 1.0])
    return encode_frames(layer, frames, statistics, dtype, patches, grid)
