"""Who shares a grid: a mesh of places, and the groups along its dimensions that exchange tensors.

What exchanges is a process of `torch.distributed`, or a thread that predicts one piece of the grid
(`factformer.parallel.turns`). Parts of a grid and their collectives do not know which.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

LEFTWARD, RIGHTWARD = 0, 1


class Group(ABC):
    """The holders of all parts along one axis, in their order; ``rank`` is the one that asks."""

    rank: int
    size: int

    @abstractmethod
    def reduced(self, x: Tensor, *, largest: bool = False) -> Tensor:
        """The sum, or the largest of each entry, of a contiguous tensor that may be overwritten."""

    @abstractmethod
    def gathered(self, x: Tensor) -> list[Tensor]:
        """The tensors of all, which have one shape."""

    @abstractmethod
    def swapped(self, to_left: Tensor, to_right: Tensor, wraps: bool) -> tuple[Tensor, Tensor]:
        """What the ones before and after give; zeros beyond the ends, unless they wrap around."""

    @abstractmethod
    def passed_on(self, piece: Tensor, coming: Tensor) -> Callable[[], Tensor]:
        """Give a piece to the next one, around a ring; the answer waits for that of the one before, like ``coming``."""

    def has(self, place: int, wraps: bool) -> bool:
        """Whether there is a neighbour at this place."""
        return wraps or 0 <= place < self.size


class ProcessGroup(Group):
    """Processes of `torch.distributed`."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)

    def reduced(self, x: Tensor, *, largest: bool = False) -> Tensor:
        dist.all_reduce(x, dist.ReduceOp.MAX if largest else dist.ReduceOp.SUM, group=self.group)
        return x

    def gathered(self, x: Tensor) -> list[Tensor]:
        parts = [torch.empty_like(x) for _ in range(self.size)]
        dist.all_gather(parts, x, group=self.group)
        return parts

    def swapped(self, to_left: Tensor, to_right: Tensor, wraps: bool) -> tuple[Tensor, Tensor]:
        from_right, from_left = torch.zeros_like(to_left), torch.zeros_like(to_right)
        operations = []
        # Both processes name the two messages in the same order, so that they pair even where left and right are one.
        for kind, send, receive, sent_to, received_from in (
            (LEFTWARD, to_left, from_right, self.rank - 1, self.rank + 1),
            (RIGHTWARD, to_right, from_left, self.rank + 1, self.rank - 1),
        ):
            for action, tensor, peer in ((dist.isend, send, sent_to), (dist.irecv, receive, received_from)):
                if self.has(peer, wraps):
                    operations.append(dist.P2POp(action, tensor, self._process(peer), self.group, kind))
        for work in dist.batch_isend_irecv(operations) if operations else ():
            work.wait()
        return from_left, from_right

    def passed_on(self, piece: Tensor, coming: Tensor) -> Callable[[], Tensor]:
        after, before = self._process(self.rank + 1), self._process(self.rank - 1)
        waiting = dist.batch_isend_irecv(
            [dist.P2POp(dist.isend, piece, after, self.group), dist.P2POp(dist.irecv, coming, before, self.group)]
        )

        def received() -> Tensor:
            for work in waiting:
                work.wait()
            return coming

        return received

    def _process(self, place: int) -> int:
        return dist.get_global_rank(self.group, place % self.size)


@dataclass(frozen=True)
class Places:
    """A mesh with a dimension for each axis of a grid, and one's own ``place`` in it.

    ``groups`` are those along the dimensions; none where nothing is exchanged, only cut and put together.
    """

    shape: tuple[int, ...]
    place: tuple[int, ...]
    groups: tuple[Group | None, ...] = ()
    name: int = field(default_factory=itertools.count().__next__)
    """Of other groups: grids are remembered under their keys, and must not be found with groups that are gone."""

    @property
    def count(self) -> int:
        """All places."""
        return math.prod(self.shape)

    @property
    def index(self) -> int:
        """That of one's own place among them, in the order of the processes."""
        found = 0
        for size, at in zip(self.shape, self.place, strict=True):
            found = found * size + at
        return found

    @classmethod
    def of(cls, mesh: DeviceMesh) -> Places:
        """Those of a mesh of processes."""
        place = mesh.get_coordinate()
        assert place is not None
        groups = [ProcessGroup(mesh.get_group(m)) if size > 1 else None for m, size in enumerate(mesh.shape)]
        return cls(tuple(mesh.shape), tuple(place), tuple(groups))
