"""How processes share an update, and what they send each other for weights and gradients."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import torch.distributed as dist
from torch import nn

from factformer.parallel.part import GridPart
from factformer.training.loop.machine import sharded_parts


@dataclass(frozen=True)
class Share:
    """So many devices; ``domain`` of them share the grid of a sample, and each such group has samples of its own."""

    devices: int = 1
    domain: int = 1
    strategy: Literal["ddp", "fsdp"] = "ddp"
    gpu: bool = True
    """Whether they are GPUs, which have fused kernels and number formats of their own in bfloat16."""

    @property
    def groups(self) -> int:
        return self.devices // self.domain

    @contextmanager
    def process(self, rank: int) -> Iterator[None]:
        """This process as one of so many whose exchanges send nothing; where no grid is cut, as it is."""
        if self.domain == 1:
            yield
            return
        from torch.testing._internal.distributed.fake_pg import FakeStore

        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=self.devices)
        try:
            yield
        finally:
            dist.destroy_process_group()


def largest_rank(part: GridPart) -> int:
    """The process of a mesh that holds most points; where several do, one that has neighbours on both sides."""
    rank = 0
    for points in part.cuts:
        sizes = [b - a for a, b in pairwise(points)]
        middle = len(sizes) // 2
        place = max(range(len(sizes)), key=lambda at: (sizes[at], -abs(at - middle)))
        rank = rank * len(sizes) + place
    return rank


def shared_traffic(module: nn.Module, share: Share) -> Counter[str]:
    """Bytes that a device gives to the exchanges of weights and gradients in an update.

    Copies of the weights (DDP) have one sum over all gradients. Shared out (FSDP), a device gives its share of the
    layers in the forward and in the backward pass, its share of the rest once, and all gradients to be summed up.
    """
    if share.devices == 1:
        return Counter()
    whole = _bytes(module)
    if share.strategy == "ddp":
        return Counter({"gradients": whole})
    return Counter({"weights": (whole + sum(_part_bytes(module))) // share.devices, "gradients": whole})


def gathered_bytes(module: nn.Module) -> int:
    """Whole weights and gradients that a process holds at once where they are shared out.

    What is in no layer stays for the update, with its gradient; of the layers the one at work, its gradient, and the
    one that is fetched meanwhile.
    """
    layers = _part_bytes(module)
    return 2 * (_bytes(module) - sum(layers)) + 3 * max(layers, default=0)


def _part_bytes(module: nn.Module) -> list[int]:
    """Bytes of the weights that are gathered together."""
    seen: set[int] = set()
    sizes = []
    for part in sharded_parts(module):
        own = [p for p in part.parameters() if id(p) not in seen]
        seen |= {id(p) for p in own}
        sizes.append(sum(p.nbytes for p in own))
    return sizes


def _bytes(module: nn.Module) -> int:
    return sum(p.nbytes for p in module.parameters())
