"""Predictions of a command on a grid that is cut: over processes that it starts, or in pieces on one device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from factformer.errors import LostProcess, UserError
from factformer.parallel.pieces import Cut
from factformer.parallel.together import together
from factformer.parallel.turns import in_pieces
from factformer.surrogate import Surrogate
from factformer.training.loop.failures import is_lost_process
from factformer.training.loop.machine import Machine, is_launched_process, start


def _by_fabric(count: int) -> AbstractContextManager[None]:
    return nullcontext()


@dataclass(frozen=True)
class Sharing:
    """The grid of a sample in ``domain`` parts, on so many ``devices``: one for each part, or one for all in turn."""

    domain: int = 1
    devices: int | None = None
    device: Any = None
    launch: Callable[[int], AbstractContextManager[None]] = _by_fabric
    """Starts the other processes for a block, with the environment of ``torchrun``; by default Fabric does."""

    def __post_init__(self) -> None:
        if self.domain < 1 or self.devices not in (None, 1, self.domain):
            raise UserError(
                f"--domain {self.domain} with --devices {self.devices}: predictions take a device for each part of the "
                "grid, or --devices 1 for one part after the other"
            )

    @property
    def over_processes(self) -> bool:
        return self.domain > 1 and self.devices != 1

    def join(self, surrogate: Surrogate) -> None:
        """In a process that another one of the command has started: answer that one, and end with it."""
        if self.over_processes and is_launched_process():
            with self.applied(surrogate):
                pass

    @contextmanager
    def applied(self, surrogate: Surrogate) -> Iterator[None]:
        """Within the block calls of ``surrogate`` are shared; of several processes the first one alone gets there."""
        if not self.over_processes:
            with in_pieces(surrogate, self.domain) if self.domain > 1 else nullcontext():
                yield
            return
        kind = "auto" if self.device is None else str(self.device)
        machine = Machine(kind, self.domain, domain=self.domain)  # type: ignore[arg-type]  # which it checks
        Cut(surrogate, self.domain)  # says what cannot be cut before there are processes that would all say it
        with self.launch(self.domain):
            fabric = start(machine, "32-true")
            surrogate.to(fabric.device)
            try:
                with together(surrogate) as first:
                    if not first:
                        raise SystemExit(0)
                    yield
            except RuntimeError as error:
                if is_lost_process(error):
                    raise LostProcess("a process that predicts a part of the grid was lost; start again") from error
                raise
