"""Tables that depend on the grid alone (coordinates, rotations, weights), made once per grid and device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from factformer.grid import Grid


class TableCache(nn.Module):
    """Remembers the tensors of the grids a layer has seen; holds no parameters and is not saved.

    Only a few grids are kept, so that a sweep over resolutions does not fill the memory.
    """

    def __init__(self, capacity: int = 16) -> None:
        super().__init__()
        self.capacity = capacity
        self.tables: dict[tuple[Any, ...], tuple[Tensor, ...]] = {}

    def get(
        self,
        name: str,
        grid: Grid,
        axis: int,
        like: Tensor,
        make: Callable[[], tuple[Tensor, ...]],
        dtype: torch.dtype | None = None,
    ) -> tuple[Tensor, ...]:
        """Tables ``name`` of an axis of ``grid`` on the device of ``like``.

        In ``dtype``; by default in float64 if ``like`` is, else in float32.
        """
        if dtype is None:
            dtype = torch.float64 if like.dtype == torch.float64 else torch.float32
        key = (name, grid.key, axis, str(like.device), dtype)
        if key not in self.tables:
            if len(self.tables) >= self.capacity:
                self.tables.clear()
            # Outside of autograd and inference mode: a table made during evaluation must serve in training.
            with torch.inference_mode(False), torch.no_grad():
                self.tables[key] = tuple(t.to(device=like.device, dtype=dtype) for t in make())
        return self.tables[key]

    def clear(self) -> None:
        self.tables.clear()

    def __deepcopy__(self, memo: dict[int, Any]) -> TableCache:
        return TableCache(self.capacity)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "tables": {}}


def axis_weights(tables: TableCache, grid: Grid, m: int, like: Tensor) -> Tensor:
    """Quadrature weights of axis ``m`` on the device of ``like``."""
    return tables.get("weights", grid, m, like, lambda: (grid.weights(m),))[0]
