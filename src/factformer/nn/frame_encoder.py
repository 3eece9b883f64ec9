"""Context frames to one latent field: a convolution over time of the width of the context."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn

from factformer.grid import Grid
from factformer.nn.patches import Patches
from factformer.nn.stage import Stage


class FrameEncoder(Stage):
    """``(1, T_in)`` convolution over the frames of each point; several fields are lifted pointwise first.

    The convolution spans all frames, so it is one linear map of the stacked frames of a point. A steady
    problem has one frame, and lift and convolution are a two-layer network. An encoder without ``bias`` adds what it
    knows to the latent field of another.
    """

    def __init__(self, num_frames: int, num_channels: int, dim: int, *, bias: bool = True) -> None:
        super().__init__()
        self.num_frames, self.num_channels, self.dim = num_frames, num_channels, dim
        lifted = num_channels > 1 or num_frames == 1
        self.lift = nn.Sequential(nn.Linear(num_channels, dim), nn.GELU()) if lifted else nn.Identity()
        self.compress = nn.Linear(num_frames * (dim if lifted else num_channels), dim, bias=bias)

    def forward(
        self,
        frames: Float[Tensor, "batch frame *grid channel"],
        statistics: Float[Tensor, "2 channels"] | None = None,
        patches: Patches | None = None,
        grid: Grid | None = None,
        onto: Float[Tensor, "batch *latent_grid dim"] | None = None,
    ) -> Float[Tensor, "batch *latent_grid dim"]:
        """The latent field; with mean and deviation of each channel as ``statistics``, of normalised frames.

        With ``patches``, one latent point for each patch of the frames, which are on ``grid``. It is added to ``onto``
        where that is given.
        """
        if patches is not None and grid is not None and grid.cut_axes:  # the encoder itself needs no neighbours
            frames, patches = patches.split(frames, grid), None
        beside = [] if patches is None and onto is None else [patches, None if patches is None else grid]
        latent: Tensor = self.execute(frames, statistics, *beside, *([] if onto is None else [onto]))
        return latent

    def plain(
        self,
        frames: Tensor,
        statistics: Tensor | None,
        patches: Patches | None = None,
        grid: Grid | None = None,
        onto: Tensor | None = None,
    ) -> Tensor:
        if patches is not None and grid is not None:
            frames = patches.split(frames, grid)
        if statistics is not None:
            frames = (frames - statistics[0]) / statistics[1]
        lifted: Tensor = self.lift(frames.movedim(1, -2))
        latent: Tensor = self.compress(lifted.flatten(-2))
        return latent if onto is None else onto + latent
