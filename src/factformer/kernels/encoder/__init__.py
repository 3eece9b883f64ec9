"""The frame encoder.

Reference implementation: `factformer.nn.frame_encoder.FrameEncoder`.
"""

from __future__ import annotations

import functools
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


@functools.cache
def unscaled(channels: int, device: torch.device) -> Tensor:
    """The statistics of frames that stay as they are."""
    with torch.inference_mode(False):
        zeros = torch.zeros(channels, device=device)
        return torch.stack([zeros, zeros + 1.0])


def run(
    layer: FrameEncoder,
    frames: Tensor,
    statistics: Tensor | None,
    patches: Patches | None = None,
    grid: Grid | None = None,
    onto: Tensor | None = None,
    *,
    dtype: torch.dtype,
) -> Tensor:
    from factformer.kernels.encoder.op import encode_frames

    if statistics is None:
        statistics = unscaled(layer.num_channels, frames.device)
    return encode_frames(layer, frames, statistics, dtype, patches, grid, onto)
