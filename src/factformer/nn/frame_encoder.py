"""Context frames to one latent field: a convolution over time of the width of the context."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from factformer.kernels import encoder_fits, working_dtype


class FrameEncoder(nn.Module):
    """``(1, T_in)`` convolution over the frames of each point; several fields are lifted pointwise first.

    The convolution spans all frames, so it is one linear map of the stacked frames of a point. A steady
    problem has one frame, and lift and convolution are a two-layer network.
    """

    def __init__(self, num_frames: int, num_channels: int, dim: int) -> None:
        super().__init__()
        self.num_frames, self.num_channels, self.dim = num_frames, num_channels, dim
        lifted = num_channels > 1 or num_frames == 1
        self.lift = nn.Sequential(nn.Linear(num_channels, dim), nn.GELU()) if lifted else nn.Identity()
        self.compress = nn.Linear(num_frames * (dim if lifted else num_channels), dim)

    def forward(
        self,
        frames: Float[Tensor, "batch frame *grid channel"],
        statistics: Float[Tensor, "2 channel"] | None = None,
    ) -> Float[Tensor, "batch *grid dim"]:
        """The latent field; with mean and deviation of each channel as ``statistics``, of normalised frames."""
        dtype = working_dtype(frames, encoder_fits(self.dim, self.num_frames, self.num_channels), self.dim)
        if dtype is not None:
            from factformer.kernels.encoder.op import encode_frames

            if statistics is None:
                zeros = torch.zeros(self.num_channels, device=frames.device)
                statistics = torch.stack([zeros, zeros + 1.0])
            return encode_frames(self, frames, statistics, dtype)
        if statistics is not None:
            frames = (frames - statistics[0]) / statistics[1]
        lifted: Tensor = self.lift(frames.movedim(1, -2))
        latent: Tensor = self.compress(lifted.flatten(-2))
        return latent
