"""Predictions on a cut grid, applied to a surrogate from outside: its calls take and give whole frames as before.

`Cut` says into which parts; it takes a batch apart and puts predicted frames together. Who predicts the parts is
`factformer.parallel.together` (processes) or `factformer.parallel.turns` (one process, piece after piece).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import torch
from torch import Tensor

from factformer.batch import Batch
from factformer.errors import UserError
from factformer.grid import Grid
from factformer.parallel.attaching import check_cuttable, cut_multiples, cut_shape
from factformer.parallel.groups import Group, Places
from factformer.parallel.part import GridPart, cut_batch
from factformer.surrogate import Surrogate


class Cut:
    """A surrogate's grid in ``count`` parts; those of another resolution lie in the same mesh."""

    def __init__(self, surrogate: Surrogate, count: int) -> None:
        check_cuttable(surrogate.config)
        if surrogate.part is not None:
            raise UserError("the surrogate holds a part of its grid already, and it is not cut again")
        self.count, self.multiples = count, cut_multiples(surrogate)
        self.shape = cut_shape(surrogate.problem.grid.shape, count, self.multiples)
        self.places = [Places(self.shape, place) for place in product(*map(range, self.shape))]
        """Those of the parts, in the order of the processes. Only those with groups can exchange."""

    def connect(self, rank: int, groups: Sequence[Group | None]) -> None:
        """Give the place of one process the groups that it exchanges with."""
        self.places[rank] = replace(self.places[rank], groups=tuple(groups))

    def parts(self, grid: Grid) -> list[GridPart]:
        """The parts of ``grid``, in the order of the processes."""
        return [GridPart.of(grid, places, self.multiples) for places in self.places]


def taken_apart(batch: Batch, parts: Sequence[GridPart]) -> list[Batch]:
    """What each part sees of a batch."""
    return [cut_batch(batch, part) for part in parts]


def whole_frames(like: Batch, num_steps: int, channels: int, grid: Grid) -> Tensor:
    """Room for the predicted frames of a whole grid."""
    shape = (like.size, num_steps, *grid.shape, channels)
    return torch.empty(shape, dtype=like.seen.dtype, device=like.device)


def put_in(frames: Tensor, predicted: Tensor, part: GridPart) -> None:
    """Write the frames that were predicted on a part into those of the whole grid."""
    part.cut(frames, 2).copy_(predicted)
