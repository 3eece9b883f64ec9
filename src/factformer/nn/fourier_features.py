"""Random Fourier features of the coordinates with a learned linear map: the positional encoding ψ(x)."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from factformer.errors import UserError
from factformer.grid import Grid
from factformer.kernels import working_dtype
from factformer.nn.tables import TableCache

FourierMode = Literal["paper", "periodic", "off"]


class FourierFeatures(nn.Module):
    """``ψ(x) = [sin 2πBx, cos 2πBx] W + b`` with fixed Gaussian frequencies ``B`` (Tancik 2020).

    ``mode="periodic"`` rounds the frequencies of periodic axes to whole numbers of waves per period, so that
    ψ has no jump at the seam.
    """

    frequencies: Tensor

    def __init__(self, num_axes: int, dim: int, std: float, mode: FourierMode = "paper") -> None:
        super().__init__()
        if dim % 2:
            raise UserError(f"Fourier features need an even number of channels, got dim={dim}")
        self.mode = mode
        self.register_buffer("frequencies", torch.randn(num_axes, dim // 2) * std)
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

    def forward(self, grid: Grid) -> Float[Tensor, "*grid dim"]:
        weight = self.linear.weight
        dtype = working_dtype(weight, self.linear.in_features <= 256, self.linear.in_features)
        (features,) = self.tables.get("features", grid, 0, weight, lambda: (self.features(grid),), dtype)
        if dtype is not None:
            from factformer.kernels.attention.positions import encode_positions

            return encode_positions(features, weight, self.linear.bias)
        encoded: Tensor = self.linear(features)
        return encoded
