"""One process, piece after piece: predictions on grids whose latent field no device holds at once.

Each piece of the grid has a thread, and one thread runs at a time. It runs until it needs what the others know, a sum
over the domain or the points beyond its ends. Then it moves the fields that it holds to the memory of the computer and
waits; the last one that arrives lets the others go on. So the device holds the fields of one piece, and the computer
those of all.
"""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from factformer.batch import Batch
from factformer.grid import Grid
from factformer.nn.grid_tables import TableCache
from factformer.parallel.groups import Group
from factformer.parallel.pieces import Cut, put_in, taken_apart, whole_frames
from factformer.surrogate import Surrogate

Merge = Callable[[Tensor, Tensor], Tensor]


@contextmanager
def in_pieces(surrogate: Surrogate, count: int, *, offload: bool | None = None) -> Iterator[None]:
    """Within the block the surrogate predicts its grid in ``count`` pieces, one after the other.

    Calls take and give whole frames, on the device that the batch is on; pieces are computed where the weights are.
    They have no gradients. Waiting pieces ``offload`` their fields: by default where the weights are on a GPU.
    """
    before = surrogate.implementation
    surrogate.implementation = InTurn(Cut(surrogate, count), offload)
    try:
        yield
    finally:
        surrogate.implementation = before


class InTurn:
    """The implementation of a surrogate that predicts its pieces in turn."""

    def __init__(self, cut: Cut, offload: bool | None = None) -> None:
        self.cut, self.offload = cut, offload
        self.turns = Turns(cut.count)
        for rank, groups in enumerate(_groups(cut, self.turns)):
            cut.connect(rank, groups)

    def __call__(self, surrogate: Surrogate, batch: Batch, num_steps: int, grid: Grid) -> Tensor:
        device = next(surrogate.parameters()).device
        turns, parts = self.turns, self.cut.parts(grid)
        frames = whole_frames(batch, num_steps, surrogate.problem.num_state_channels, grid)
        batches = taken_apart(batch, parts)
        offload = device.type != "cpu" if self.offload is None else self.offload
        low = torch.is_autocast_enabled(device.type)
        kind, inference = torch.get_autocast_dtype(device.type), torch.is_inference_mode_enabled()

        def predict(place: int) -> None:
            part = parts[place]
            held = HeldFields(surrogate, [frames, *batch.tensors]) if offload else None
            # Weights that autocast has rounded would be remembered for all threads, and moved away by one of them.
            region = torch.autocast(device.type, kind, enabled=low, cache_enabled=False)
            with torch.inference_mode(inference), torch.no_grad(), region, turns.taken(place, held):
                predicted = surrogate.predict(batches[place].to(device), num_steps, part)
                put_in(frames, predicted, part)

        turns.run(predict)
        return frames


class Turns:
    """Threads of which one runs at a time; they meet where they exchange."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.fields: list[HeldFields | None] = [None] * count
        self.failure: BaseException | None = None
        self._turn = threading.Condition()
        self._met: dict[Any, Meeting] = {}
        self._meetings: Counter[Any] = Counter()

    def run(self, work: Callable[[int], None]) -> None:
        """``work(place)`` in a thread for each place; raises what one of them has raised."""
        self.failure = None
        self._met.clear()
        self._meetings.clear()

        def guarded(place: int) -> None:
            try:
                work(place)
            except BaseException as error:  # all of them end, and the caller is told why
                with self._turn:
                    self.failure = self.failure or error
                    self._turn.notify_all()

        threads = [threading.Thread(target=guarded, args=(place,), daemon=True) for place in range(self.count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self.failure is not None:
            raise self.failure

    @contextmanager
    def taken(self, place: int, fields: HeldFields | None) -> Iterator[None]:
        """The turn of one thread, which ends for a while wherever it has to wait."""
        with self._turn:
            self.fields[place] = fields
            if fields is None:
                yield
                return
            with fields:
                yield

    def meet(self, members: tuple[int, ...], rank: int, given: Any, merge: Merge | None = None) -> Meeting:
        """The next meeting of ``members`` when all have given theirs; ``rank`` is that of the thread that asks.

        They go on in their order, so that they come in their order to the next one.
        """
        fields = self.fields[members[rank]]
        self._meetings[members, rank] += 1
        key = (members, self._meetings[members, rank])
        meeting = self._met.setdefault(key, Meeting(len(members)))
        meeting.give(rank, given, merge)
        if fields is not None and meeting.merged is not None:
            fields.leave(meeting.merged)
        if not meeting.lets_go(rank):
            if fields is not None:
                fields.put_away()
            self._turn.notify_all()
            self._turn.wait_for(lambda: meeting.lets_go(rank) or self.failure is not None)
            if self.failure is not None:
                raise _OthersFailedError
            if fields is not None:
                fields.bring_back()
        meeting.num_gone += 1
        if meeting.num_gone == meeting.size:
            del self._met[key]
        self._turn.notify_all()
        return meeting


class Meeting:
    """What threads give each other at one point of their way, by rank; or what they have merged it to."""

    def __init__(self, size: int) -> None:
        self.size, self.num_come, self.num_gone = size, 0, 0
        self.given: dict[int, Any] = {}
        self.merged: Tensor | None = None
        self._num_merged = 0

    def give(self, rank: int, given: Any, merge: Merge | None) -> None:
        self.given[rank] = given
        self.num_come += 1
        while merge is not None and self._num_merged in self.given:  # in the order of ranks: always the same bits
            piece = self.given.pop(self._num_merged)
            self.merged = piece if self.merged is None else merge(self.merged, piece)
            self._num_merged += 1

    def lets_go(self, rank: int) -> bool:
        return self.num_come == self.size and self.num_gone == rank


class _OthersFailedError(Exception):
    """Another thread has failed, and says why."""


class TurnGroup(Group):
    """The threads along one axis. What they give each other lies in the memory of the computer meanwhile."""

    def __init__(self, turns: Turns, members: Sequence[int], rank: int) -> None:
        self.turns, self.members = turns, tuple(members)
        self.rank, self.size = rank, len(members)

    def reduced(self, x: Tensor, *, largest: bool = False) -> Tensor:
        total = self._meet(x, torch.maximum if largest else Tensor.add_).merged
        assert total is not None
        return x.copy_(total)

    def gathered(self, x: Tensor) -> list[Tensor]:
        given = self._meet(x).given
        return [given[rank].to(x.device, copy=True) for rank in range(self.size)]

    def swapped(self, to_left: Tensor, to_right: Tensor, wraps: bool) -> tuple[Tensor, Tensor]:
        given = self._meet((to_left, to_right)).given
        from_right, from_left = torch.zeros_like(to_left), torch.zeros_like(to_right)
        if self.has(self.rank + 1, wraps):
            from_right.copy_(given[(self.rank + 1) % self.size][0])
        if self.has(self.rank - 1, wraps):
            from_left.copy_(given[(self.rank - 1) % self.size][1])
        return from_left, from_right

    def passed_on(self, piece: Tensor, coming: Tensor) -> Callable[[], Tensor]:
        before = self._meet(piece).given[(self.rank - 1) % self.size]

        def received() -> Tensor:
            return coming.copy_(before)

        return received

    def _meet(self, given: Any, merge: Merge | None = None) -> Meeting:
        """With what all give: copies, since whoever is first to go on may write into its fields."""
        fields = self.turns.fields[self.members[self.rank]]

        def copied(tensor: Tensor) -> Tensor:
            copy = tensor.clone() if fields is None else tensor.to("cpu", copy=True)
            if fields is not None:
                fields.leave(copy)
            return copy

        return self.turns.meet(self.members, self.rank, tree_map(copied, given), merge)


def _groups(cut: Cut, turns: Turns) -> list[list[Group | None]]:
    """The groups of each place: for every axis that is cut, the places that differ along it alone."""
    found, order = [], [places.place for places in cut.places]
    for place in order:
        groups: list[Group | None] = []
        for axis, parts in enumerate(cut.shape):
            row = [order.index((*place[:axis], at, *place[axis + 1 :])) for at in range(parts)]
            groups.append(TurnGroup(turns, row, place[axis]) if parts > 1 else None)
        found.append(groups)
    return found


class HeldFields(TorchDispatchMode):
    """The fields that a thread has made and still holds, to be put away while it waits."""

    def __init__(self, surrogate: Surrogate, shared: Sequence[Tensor]) -> None:
        """``shared`` tensors stay, as the weights do."""
        super().__init__()
        staying = (*surrogate.parameters(), *surrogate.buffers(), *shared)
        self._shared = {tensor.untyped_storage()._cdata for tensor in staying}
        self._caches = [part for part in surrogate.modules() if isinstance(part, TableCache)]
        self._made: weakref.WeakSet[torch.UntypedStorage] = weakref.WeakSet()
        self._away: list[tuple[torch.UntypedStorage, torch.UntypedStorage]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor) and leaf.untyped_storage()._cdata not in self._shared:
                self._made.add(leaf.untyped_storage())
        return result

    def leave(self, tensor: Tensor) -> None:
        """This one is for others and stays."""
        self._made.discard(tensor.untyped_storage())

    def put_away(self) -> None:
        """Move all fields to the memory of the computer; tables of the grid stay, as others may use them."""
        tables = {t.untyped_storage()._cdata for cache in self._caches for row in cache.tables.values() for t in row}
        for storage in list(self._made):
            if storage.nbytes() and storage._cdata not in tables:
                copy = torch.UntypedStorage(storage.nbytes(), device="cpu")
                copy.copy_(storage)
                self._made.discard(copy)  # which copying has shown to the mode
                self._away.append((storage, copy))
                storage.resize_(0)

    def bring_back(self) -> None:
        for storage, copy in self._away:
            storage.resize_(copy.nbytes())
            storage.copy_(copy)
        self._away = []
