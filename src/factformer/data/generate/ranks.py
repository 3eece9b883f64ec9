"""Several processes at one job: who we are (the environment of ``torchrun``), who shares a grid, and meeting points."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from factformer.errors import LostProcess, UserError
from factformer.numerics.pencils import WHOLE, Pencils, cut_for

PATIENCE = timedelta(days=7)  # of a rank that waits for a slower one; a dead one is noticed at once
SIGNS_OF_LOSS = ("Connection closed by peer", "Connection reset", "Broken pipe", "gloo", "monitoredBarrier")


@dataclass(frozen=True)
class Ranks:
    """This process among ``count``, which work in teams of ``domain``: a team shares the grid of its trajectories."""

    rank: int
    count: int
    domain: int = 1
    team_group: dist.ProcessGroup | None = None
    """The processes of this one's team, over gloo."""

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    @property
    def team(self) -> int:
        return self.rank // self.domain

    @property
    def num_teams(self) -> int:
        return self.count // self.domain

    def wait(self) -> None:
        """Return when all processes have come here; fail when one of them has died."""
        if self.count > 1:
            dist.monitored_barrier(timeout=PATIENCE)

    def device(self, name: str) -> torch.device:
        """``cuda`` means the GPU that belongs to this process."""
        if name == "cuda" and self.count > 1:
            return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        return torch.device(name)

    def pencils(self, shape: Sequence[int], device: torch.device) -> Pencils:
        """How a team cuts grids, of which this is the solver's. NCCL exchanges what is on GPUs, gloo the rest."""
        if self.domain == 1:
            return WHOLE
        cut = cut_for(shape, self.domain)
        names = ("team", *(f"axis{m}" for m in range(len(cut))))
        if device.type == "cuda":
            torch.cuda.set_device(device)
        backends: dict[int | str, Any] = dict.fromkeys(names, "nccl" if device.type == "cuda" else "gloo")
        mesh = init_device_mesh(device.type, (self.num_teams, *cut), mesh_dim_names=names, backend_override=backends)
        return Pencils(mesh[names[1:]])


@contextmanager
def joined_ranks(domain: int = 1) -> Iterator[Ranks]:
    """The processes that ``torchrun`` has started, or this one alone; ``domain`` of them share a grid."""
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if domain < 1 or count % domain:
        started = f"{count} process{'es' * (count > 1)}"
        raise UserError(
            f"--domain {domain} processes share a grid, so that their number must be a multiple of it, and there "
            f"{'are' if count > 1 else 'is'} {started}; add --devices {domain}"
        )
    if count == 1:
        yield Ranks(0, 1)
        return
    started_here = not dist.is_initialized()
    if started_here:
        dist.init_process_group("gloo", timeout=PATIENCE)
    try:
        team = dist.new_subgroups(domain, backend="gloo", timeout=PATIENCE)[0] if domain > 1 else None
        yield Ranks(dist.get_rank(), dist.get_world_size(), domain, team)
    except RuntimeError as error:
        if any(sign in str(error) for sign in SIGNS_OF_LOSS):
            raise LostProcess(
                "a process of the job was lost; finished batches are kept: start again with the same arguments"
            ) from error
        raise
    finally:
        if started_here:
            dist.destroy_process_group()
