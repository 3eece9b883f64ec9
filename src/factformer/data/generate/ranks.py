"""Several processes at one job: who we are (the environment of ``torchrun``) and meeting points."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

PATIENCE = timedelta(days=7)  # of a rank that waits for a slower one; a dead one is noticed at once


@dataclass(frozen=True)
class Ranks:
    """This process among ``count``."""

    rank: int
    count: int

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def wait(self) -> None:
        """Return when all processes have come here; fail when one of them has died."""
        if self.count > 1:
            dist.monitored_barrier(timeout=PATIENCE)

    def device(self, name: str) -> torch.device:
        """``cuda`` means the GPU that belongs to this process."""
        if name == "cuda" and self.count > 1:
            return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        return torch.device(name)


@contextmanager
def joined_ranks() -> Iterator[Ranks]:
    """The processes that ``torchrun`` has started, or this one alone."""
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if count == 1:
        yield Ranks(0, 1)
        return
    started_here = not dist.is_initialized()
    if started_here:
        dist.init_process_group("gloo", timeout=PATIENCE)
    try:
        yield Ranks(dist.get_rank(), dist.get_world_size())
    finally:
        if started_here:
            dist.destroy_process_group()
