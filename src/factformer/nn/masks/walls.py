"""How close the walls of bodies are, as fields that a network sees."""

from __future__ import annotations

from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor, nn

from factformer.grid import Grid
from factformer.nn.grid_tables import TableCache
from factformer.nn.masks.inside import Mask
from factformer.nn.resample import apply_matrices


class WallCloseness(nn.Module):
    """``c_σ(x) = 1 - ∫_Ω G_σ(x - y) dy``: how much of the surroundings of a point lies outside the domain.

    ``G_σ`` is a Gaussian of σ = 2 and 8 spacings of the ``home`` grid, normalised over the box, so that c is 0 far from
    bodies, near ½ at a straight wall, and the same field at any resolution. An encoder that works point by point
    could not tell otherwise how far away a body is.
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
        share = mask.unsqueeze(-1).to(dtype)
        channels = []
        with torch.autocast(mask.device.type, enabled=False):
            for index, count in enumerate(self.spacings):
                make = partial(self._matrices, grid, count)
                channels.append(1 - apply_matrices(share, self.tables.get("smoothing", grid, index, share, make)))
        return torch.cat(channels, dim=-1)

    def _matrices(self, grid: Grid, count: float) -> tuple[Float[Tensor, "points points"], ...]:
        matrices = []
        for m, length in enumerate(self.lengths):
            points = grid.axis(m)
            distance = (points[:, None] - points).abs()
            if grid.periodic[m]:
                distance = torch.minimum(distance, grid.extent[m] - distance)
            density = torch.exp(-((distance / (count * length)) ** 2) / 2) * grid.weights(m)
            matrices.append(density / density.sum(1, keepdim=True))
        return tuple(matrices)
