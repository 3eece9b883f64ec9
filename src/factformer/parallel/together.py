"""Several processes predict together: the first one asks, and each of them predicts its part of the grid.

The first process holds whole frames, which are small beside the latent fields of a network. It gives every other one
its part of a batch, and gets the part of the predicted frames back.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh

from factformer._support.signals import handling
from factformer.batch import Batch
from factformer.errors import UserError
from factformer.grid import Grid
from factformer.parallel.groups import Places
from factformer.parallel.pieces import Cut, put_in, taken_apart, whole_frames
from factformer.surrogate import Surrogate

IDLE = timedelta(days=365)
"""How long a process waits to be asked: as long as a server may run."""


@dataclass(frozen=True)
class Call:
    """What the first process asks of another one: the shapes of the parts of its batch, and what to make of them."""

    grid: dict[str, Any]
    num_steps: int
    shapes: dict[str, tuple[tuple[int, ...], torch.dtype]]
    low: torch.dtype | None
    """The number format of products, in an autocast region."""


@contextmanager
def together(surrogate: Surrogate) -> Iterator[bool]:
    """All processes of `torch.distributed` predict with ``surrogate``, each on its part of the grid.

    Every process opens the block with the same weights. The first one gets true: its calls of the surrogate take and
    give whole frames until its block ends. The others answer these calls before their block begins, and get false.
    Predictions have no gradients.
    """
    if not dist.is_initialized():
        raise UserError("together() is for the processes of torch.distributed; start them with torchrun")
    members = Members(surrogate)
    if dist.get_rank() != 0:
        with _interruptions_left_to_the_first():
            members.answer(surrogate)
        yield False
        return
    before = surrogate.implementation
    surrogate.implementation = members
    try:
        yield True
    finally:
        surrogate.implementation = before
        members.dismiss()


class Members:
    """The processes of a cut grid; in the first one it is the implementation of the surrogate."""

    def __init__(self, surrogate: Surrogate) -> None:
        self.cut = Cut(surrogate, dist.get_world_size())
        mesh = init_device_mesh(next(surrogate.parameters()).device.type, self.cut.shape)
        self.rank = dist.get_rank()
        self.cut.connect(self.rank, Places.of(mesh).groups)
        # Over the processors even where GPUs predict: whole frames may be larger than what is free there.
        self.talk = dist.new_group(backend="gloo", timeout=IDLE)
        self.listening = True
        """Whether the others wait for a call; where one has failed they do not, and end with this process."""

    def __call__(self, surrogate: Surrogate, batch: Batch, num_steps: int, grid: Grid) -> Tensor:
        parts = self.cut.parts(grid)
        pieces = [piece.map(lambda part: part.contiguous()) for piece in taken_apart(batch, parts)]
        device = next(surrogate.parameters()).device
        kind = device.type
        low = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
        self.listening = False
        for rank, piece in enumerate(pieces):
            if rank != self.rank:
                shapes = {n: (tuple(t.shape), t.dtype) for n, t in zip(piece.names, piece.tensors, strict=True)}
                self._say(Call(grid.to_dict(), num_steps, shapes, low), rank)
                for tensor in piece.tensors:
                    dist.send(tensor.cpu(), rank, group=self.talk)
        frames = whole_frames(batch, num_steps, surrogate.problem.num_state_channels, grid)
        with torch.no_grad():
            predicted = surrogate.predict(pieces[self.rank].to(device), num_steps, parts[self.rank])
        put_in(frames, predicted, parts[self.rank])
        for rank, part in enumerate(parts):
            if rank != self.rank:
                shape = (batch.size, num_steps, *part.shape, frames.shape[-1])
                received = torch.empty(shape, dtype=predicted.dtype)
                dist.recv(received, rank, group=self.talk)
                put_in(frames, received, part)
        self.listening = True
        return frames

    def answer(self, surrogate: Surrogate) -> None:
        """Predict one's part of every call of the first process, until that is done."""
        surrogate.eval()
        device = next(surrogate.parameters()).device
        while (call := self._heard()) is not None:
            part = self.cut.parts(Grid.from_dict(call.grid))[self.rank]
            tensors = {name: torch.empty(shape, dtype=dtype) for name, (shape, dtype) in call.shapes.items()}
            for tensor in tensors.values():
                dist.recv(tensor, 0, group=self.talk)
            batch = Batch(**tensors).to(device)
            with torch.no_grad(), torch.autocast(device.type, call.low, enabled=call.low is not None):
                predicted = surrogate.predict(batch, call.num_steps, part)
            dist.send(predicted.contiguous().cpu(), 0, group=self.talk)

    def dismiss(self) -> None:
        """Let the other processes go on."""
        for rank in range(1, self.cut.count) if self.listening else ():
            self._say(None, rank)

    def _say(self, call: Call | None, rank: int) -> None:
        dist.send_object_list([call], rank, group=self.talk)

    def _heard(self) -> Call | None:
        heard: list[Any] = [None]
        dist.recv_object_list(heard, 0, group=self.talk)
        call: Call | None = heard[0]
        return call


def _interruptions_left_to_the_first() -> AbstractContextManager[None]:
    """SIGINT and SIGTERM reach all processes of a terminal or job; the first one decides what they mean."""
    return handling(signal.SIG_IGN)
