"""What the kernels need of a mask, made once for all layers of a call.

Layers of a call get the same mask, so its line weights and shares are kept with it, by plain tensor operations alone: a
warm-up runs those and launches nothing. A mask that was written to since is another one.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from factformer.grid import Grid
from factformer.nn.attention.axial_kernel import axial_mean
from factformer.nn.grid_tables import TableCache, axis_weights
from factformer.nn.norms import cached_domain_weights


class MaskedDomain:
    """One mask ``(batch, *grid)``: as bytes, as weights of the points, and its share of the lines across an axis."""

    def __init__(self, mask: Tensor) -> None:
        self.bytes = mask.detach().contiguous().view(torch.uint8)
        self.version = _version(mask)
        self.made: dict[Hashable, Tensor] = {}

    def get(self, key: Hashable, make: Callable[[], Tensor]) -> Tensor:
        if key not in self.made:
            with torch.no_grad(), torch.autocast(self.bytes.device.type, enabled=False):
                self.made[key] = make().contiguous()
        return self.made[key]

    def weights(self, tables: TableCache, grid: Grid) -> Tensor:
        """``w χ / Σ w χ`` of each sample in float32, flat: ``(batch, point)``."""

        def make() -> Tensor:
            like = torch.empty(0, device=self.bytes.device)
            weights = cached_domain_weights(tables, grid, like, self.bytes.view(torch.bool))
            assert weights is not None
            return weights.flatten(1)

        return self.get(("weights", grid.key), make)

    def line_shares(self, tables: TableCache, grid: Grid, m: int) -> Tensor:
        """How much of each line across axis ``m`` lies inside: ``(batch, points, 1)``."""

        def make() -> Tensor:
            inside = self.bytes.unsqueeze(-1).float()  # not shared: the axes are side by side on streams
            weights = [
                None if grid.equal_weights(axis) else axis_weights(tables, grid, axis, inside)
                for axis in range(grid.num_axes)
            ]
            return axial_mean(inside, weights, m)

        return self.get(("lines", grid.key, m), make)

    def line_factors(self, tables: TableCache, grid: Grid, m: int) -> Tensor:
        """What makes a mean over the points inside of one over all points of a line; zero where nothing lies inside."""

        def make() -> Tensor:
            inverse = self.line_shares(tables, grid, m).reciprocal()
            return inverse.nan_to_num(posinf=0.0)

        return self.get(("factors", grid.key, m), make)


def _version(mask: Tensor) -> int | None:
    """How often the mask was written to; a tensor of inference mode does not say."""
    return None if mask.is_inference() else mask._version


_domains = WeakTensorKeyDictionary()


def masked_domain(mask: Tensor) -> MaskedDomain:
    """That of ``mask``, the same for every layer that gets it."""
    known: MaskedDomain | None = _domains.get(mask)
    if known is None or known.version is None or known.version != _version(mask):
        known = _domains[mask] = MaskedDomain(mask)
    return known
