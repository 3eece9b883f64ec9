"""Exchanges between the processes that hold the parts of a grid, with their gradients.

A loss is the sum of what each process adds to it. So the gradient of a value that all processes share is the sum of the
gradients that they have of it, and the gradient of what was sent comes back the way it went.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

sent_bytes: Counter[str] = Counter()
"""Bytes of the tensors that this process has given to each kind of exchange; for measurements."""


class _Sum(torch.autograd.Function):
    """``Σ_r x_r`` on every process."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return _reduced(x, group, dist.ReduceOp.SUM)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _reduced(gradients[0], ctx.group, dist.ReduceOp.SUM), None


class _Exchange(torch.autograd.Function):
    """Gives one tensor to the process before and one to the process after; returns what these gave."""

    @staticmethod
    def forward(
        ctx: Any, to_left: Tensor, to_right: Tensor, group: dist.ProcessGroup, wraps: bool
    ) -> tuple[Tensor, Tensor]:
        ctx.group, ctx.wraps = group, wraps
        return _swapped(to_left, to_right, group, wraps)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        # What came from the left was given to its right, so its gradient goes there and arrives as that of `to_right`.
        return *_swapped(gradients[0], gradients[1], ctx.group, ctx.wraps), None, None


class _Gather(torch.autograd.Function):
    """The parts of all processes side by side along a dimension, on every process."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, sizes: tuple[int, ...], group: dist.ProcessGroup) -> Tensor:
        ctx.dim, ctx.sizes, ctx.group = dim, sizes, group
        most = max(sizes)
        padded = x.new_zeros([*x.shape[:dim], most, *x.shape[dim + 1 :]])
        padded.narrow(dim, 0, x.shape[dim]).copy_(x)
        parts = [torch.empty_like(padded) for _ in sizes]
        sent_bytes["gather"] += x.numel() * x.element_size()
        dist.all_gather(parts, padded, group=group)
        return torch.cat([part.narrow(dim, 0, size) for part, size in zip(parts, sizes, strict=True)], dim=dim)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        total = _reduced(gradients[0], ctx.group, dist.ReduceOp.SUM)
        rank = dist.get_rank(ctx.group)
        return total.narrow(ctx.dim, sum(ctx.sizes[:rank]), ctx.sizes[rank]), None, None, None


def all_sum(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """The sum of the tensors of all processes of the group."""
    result: Tensor = _Sum.apply(x, group)
    return result


def all_largest(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """The largest of each entry over the processes of the group; it has no gradient."""
    return _reduced(x.detach(), group, dist.ReduceOp.MAX)


def exchange(to_left: Tensor, to_right: Tensor, group: dist.ProcessGroup, *, wraps: bool) -> tuple[Tensor, Tensor]:
    """What the processes before and after this one give; zeros beyond the ends, unless the axis wraps around."""
    left, right = _Exchange.apply(to_left, to_right, group, wraps)
    return left, right


def gather(x: Tensor, dim: int, sizes: tuple[int, ...], group: dist.ProcessGroup) -> Tensor:
    """The parts of all processes, of these ``sizes`` along dimension ``dim``, put together."""
    result: Tensor = _Gather.apply(x, dim, sizes, group)
    return result


def _reduced(x: Tensor, group: dist.ProcessGroup, operation: dist.ReduceOp.RedOpType) -> Tensor:
    result = x.clone(memory_format=torch.contiguous_format)
    sent_bytes["reduce"] += result.numel() * result.element_size()
    dist.all_reduce(result, operation, group=group)
    return result


LEFTWARD, RIGHTWARD = 0, 1


def _swapped(to_left: Tensor, to_right: Tensor, group: dist.ProcessGroup, wraps: bool) -> tuple[Tensor, Tensor]:
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    to_left, to_right = to_left.contiguous(), to_right.contiguous()
    from_right, from_left = torch.zeros_like(to_left), torch.zeros_like(to_right)
    operations = []
    # Both processes name the two messages in the same order, so that they pair even where left and right are the same.
    for kind, send, receive, sent_to, received_from in (
        (LEFTWARD, to_left, from_right, rank - 1, rank + 1),
        (RIGHTWARD, to_right, from_left, rank + 1, rank - 1),
    ):
        for action, tensor, peer in ((dist.isend, send, sent_to), (dist.irecv, receive, received_from)):
            if wraps or 0 <= peer < size:
                there = dist.get_global_rank(group, peer % size)
                operations.append(dist.P2POp(action, tensor, there, group, kind))
                if action is dist.isend:
                    sent_bytes["halo"] += tensor.numel() * tensor.element_size()
    for work in dist.batch_isend_irecv(operations) if operations else ():
        work.wait()
    return from_left, from_right
