"""Random Fourier features of the coordinates with a learned linear map: the positional encoding ψ(x)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from factformer.errors import UserError
from factformer.grid import Grid
from factformer.nn.grid_tables import TableCache
from factformer.nn.stage import Stage

FourierMode = Literal["paper", "periodic", "off"]


class FourierFeatures(Stage):
    """``ψ(x) = [sin 2πBx, cos 2πBx] W + b`` with fixed Gaussian frequencies ``B`` (Tancik 2020).

    ``mode="periodic"`` rounds the frequencies of periodic axes to whole numbers of waves per period, so that
    ψ has no jump at the seam. ``std`` may be one number for each axis.
    """

    frequencies: Tensor

    def __init__(self, num_axes: int, dim: int, std: float | Sequence[float], mode: FourierMode = "paper") -> None:
        super().__init__()
        if dim % 2:
            raise UserError(f"Fourier features need an even number of channels, got dim={dim}")
        self.mode = mode
        self.register_buffer("frequencies", torch.randn(num_axes, dim // 2) * torch.as_tensor(std).reshape(-1, 1))
        self.linear = nn.Linear(dim, dim)
        self.tables = TableCache()

    def _load_from_state_dict(self, *arguments: Any, **options: Any) -> None:
        super()._load_from_state_dict(*arguments, **options)
        self.tables.clear()  # they belong to the frequencies of before

    def features(self, grid: Grid) -> Float[Tensor, "*grid dim"]:
        """Sine and cosine of every frequency at every point, in float64."""
        frequencies = self.frequencies.double().cpu()
        if self.mode == "periodic":
            periods = torch.tensor(grid.extent, dtype=torch.float64)[:, None]
            wraps = torch.tensor(grid.periodic)[:, None]
            frequencies = torch.where(wraps, (frequencies * periods).round() / periods, frequencies)
        phase = 2 * math.pi * (grid.mesh() @ frequencies)
        return torch.cat([phase.sin(), phase.cos()], dim=-1)

    def table(self, grid: Grid, dtype: torch.dtype | None = None) -> Float[Tensor, "*grid dim"]:
        """`features` on the device of the weights, made once per grid."""
        (features,) = self.tables.get("features", grid, 0, self.linear.weight, lambda: (self.features(grid),), dtype)
        return features

    def forward(self, grid: Grid) -> Float[Tensor, "*grid dim"]:
        encoded: Tensor = self.execute(grid)
        return encoded

    def plain(self, grid: Grid) -> Tensor:
        encoded: Tensor = self.linear(self.table(grid))
        return encoded
