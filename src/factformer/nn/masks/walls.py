"""How close the walls of bodies are, as fields that a network sees."""

from __future__ import annotations

from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor, nn

from factformer.grid import Grid
from factformer.nn.grid_tables import TableCache
from factformer.nn.masks.inside import Mask


class WallCloseness(nn.Module):
    """``c_σ(x) = 1 - ∫_Ω G_σ(x - y) dy``: how much of the surroundings of a point lies outside the domain.

    ``G_σ`` is a Gaussian of σ = 2 and 8 times the extent over the points of the ``home`` grid, normalised over the box,
    so that c is 0 far from bodies, near ½ at a straight wall, and the same field at any resolution. An encoder that
    works point by point could not tell otherwise how far away a body is.
    """

    spacings = (2.0, 8.0)

    def __init__(self, home: Grid) -> None:
        super().__init__()
        self.lengths = [home.extent[m] / home.shape[m] for m in range(home.num_axes)]
        self.tables = TableCache()

    @property
    def num_channels(self) -> int:
        return len(self.spacings)

    def forward(self, mask: Mask, grid: Grid, dtype: torch.dtype) -> Float[Tensor, "batch *grid channel"]:
        if grid.cut_axes:  # a body may lie in the part of another process
            whole = self.forward(grid.put_together(mask, 1), grid.whole, dtype)
            return grid.cut(whole, 1)
        share = mask.to(dtype).expand(self.num_channels, *mask.shape)  # (channel, batch, *grid)
        smoothing = self.tables.get("smoothing", grid, 0, share, partial(self._matrices, grid), dtype)
        with torch.autocast(mask.device.type, enabled=False):
            for matrices in smoothing:  # the first axis goes last, so that after all of them it is the first again
                lines = share.movedim(2, -1)
                share = torch.bmm(lines.flatten(1, -2), matrices).view(lines.shape)
        return 1 - share.movedim(0, -1)

    def _matrices(self, grid: Grid) -> tuple[Float[Tensor, "channel points points"], ...]:
        """Of each axis, to be multiplied from the right."""
        found = []
        for m, length in enumerate(self.lengths):
            points = grid.axis(m)
            distance = (points[:, None] - points).abs()
            if grid.periodic[m]:
                distance = torch.minimum(distance, grid.extent[m] - distance)
            widths = length * torch.tensor(self.spacings, dtype=distance.dtype).view(-1, 1, 1)
            density = torch.exp(-((distance / widths) ** 2) / 2) * grid.weights(m)
            found.append((density / density.sum(2, keepdim=True)).transpose(1, 2))
        return tuple(found)
