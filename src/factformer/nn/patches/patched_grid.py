"""The grid of patches: a point stands for ``p`` neighbouring points along each axis."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from factformer.errors import UserError
from factformer.grid import Grid


@dataclass(frozen=True, init=False, kw_only=True)
class PatchedGrid(Grid):
    """Points at the centres of patches of ``fine``; their quadrature weights are the sums over the patch.

    A periodic axis must be a multiple of its patch. The last patch of an axis with walls may reach beyond the end;
    points that are not there have no weight.
    """

    fine: Grid
    patch: tuple[int, ...]

    def __init__(self, fine: Grid, patch: tuple[int, ...]) -> None:
        shape, extent = [], list(fine.extent)
        coordinates: list[tuple[float, ...] | None] = []
        for m, (size, p) in enumerate(zip(fine.shape, patch, strict=True)):
            _require_whole_patches(m, size, p, fine.periodic[m])
            shape.append(math.ceil(size / p))
            with torch.device("cpu"):  # a network that is built without memory needs numbers here
                uneven = None if fine.is_even(m) else tuple(_centres(fine, m, p).tolist())
            coordinates.append(uneven)
            if uneven is not None and not fine.periodic[m]:
                extent[m] = uneven[-1] - uneven[0]
        super().__init__(shape, extent, fine.periodic, "cells", coordinates=coordinates)
        object.__setattr__(self, "fine", fine)
        object.__setattr__(self, "patch", patch)

    @property
    def missing(self) -> tuple[int, ...]:
        """Points of the last patch of each axis that lie beyond its end."""
        return tuple(-size % p for size, p in zip(self.fine.shape, self.patch, strict=True))

    @cached_property
    def key(self) -> str:
        return repr((self.fine.key, self.patch))

    def spacing(self, m: int) -> float:
        return self.patch[m] * self.fine.spacing(m)

    def axis(
        self, m: int, *, dtype: torch.dtype = torch.float64, device: torch.device | str | None = None
    ) -> Float[Tensor, "points"]:
        return _centres(self.fine, m, self.patch[m]).to(device=device, dtype=dtype)

    def equal_weights(self, m: int) -> bool:
        return self.fine.equal_weights(m) and not self.missing[m]

    def weights(
        self, m: int, *, dtype: torch.dtype = torch.float64, device: torch.device | str | None = None
    ) -> Float[Tensor, "points"]:
        weights = torch.nn.functional.pad(self.fine.weights(m), [0, self.missing[m]])
        sums: Tensor = weights.unflatten(0, (-1, self.patch[m])).sum(1)
        return sums.to(device=device, dtype=dtype)


def _centres(fine: Grid, m: int, p: int) -> Float[Tensor, "points"]:
    """Mean coordinate of each patch; beyond the end of the axis the last gap is repeated."""
    x = fine.axis(m)
    beyond = torch.arange(1, -len(x) % p + 1, dtype=x.dtype)
    centres: Tensor = torch.cat([x, x[-1] + beyond * (x[-1] - x[-2])]).unflatten(0, (-1, p)).mean(1)
    return centres


def _require_whole_patches(m: int, size: int, p: int, wraps: bool) -> None:
    if wraps and size % p:
        below = size - size % p
        sizes = f"{below} and {below + p}" if below >= 2 * p else f"{below + p}"
        raise UserError(
            f"model.patch={p} does not divide the {size} points of periodic axis {m}: "
            f"the nearest sizes that it divides are {sizes}"
        )
    if math.ceil(size / p) < 2:
        raise UserError(f"model.patch={p} leaves one point along axis {m} of {size}: choose a smaller patch")
