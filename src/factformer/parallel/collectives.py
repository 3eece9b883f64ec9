"""Exchanges between the processes that hold the parts of a grid, with their gradients.

A loss is the sum of what each process adds to it. So the gradient of a value that all processes share is the sum of the
gradients that they have of it, and the gradient of what was sent comes back the way it went.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
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


class _RingContraction(torch.autograd.Function):
    """``Σ_r (q k_rᵀ) v_r`` of the pieces ``v_r`` of all processes, which are passed around a ring.

    The next piece is on its way while the one at hand is contracted. The gradient of a sum goes around in the same way:
    a process needs of another its piece of it, and has itself what that is multiplied with.
    """

    @staticmethod
    def forward(
        ctx: Any, values: Tensor, queries: Tensor, keys: Tensor, sizes: tuple[int, ...], group: dist.ProcessGroup
    ) -> Tensor:
        ctx.sizes, ctx.group = sizes, group
        ctx.save_for_backward(values, queries, keys)
        mine = queries.split(sizes, dim=2)[dist.get_rank(group)]
        parts = keys.split(sizes, dim=2)
        total: Tensor | None = None
        for source, piece in _around(values, sizes, group):
            term = _product(mine @ parts[source].transpose(-1, -2), piece)
            total = term if total is None else total.add_(term)
        assert total is not None
        return total.to(values.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        values, queries, keys = ctx.saved_tensors
        rank, rows = dist.get_rank(ctx.group), queries.split(ctx.sizes, dim=2)
        mine = keys.split(ctx.sizes, dim=2)[rank]
        of_values = torch.zeros_like(values)
        of_rows: list[Tensor] = [torch.empty(0)] * len(ctx.sizes)
        of_mine = torch.zeros_like(mine)
        for source, piece in _around(gradients[0].to(values.dtype), ctx.sizes, ctx.group):
            of_values += _product(mine @ rows[source].transpose(-1, -2), piece)
            of_kernel = torch.einsum("bhrit,bhrjt->bhij", piece, values)
            of_rows[source] = of_kernel @ mine
            of_mine += of_kernel.transpose(-1, -2) @ rows[source]
        of_keys = torch.zeros_like(keys)
        of_keys.split(ctx.sizes, dim=2)[rank].copy_(of_mine)
        return of_values, torch.cat(of_rows, dim=2), of_keys, None, None


def _product(kernel: Tensor, values: Tensor) -> Tensor:
    return torch.einsum("bhij,bhrjt->bhrit", kernel, values)


def _around(mine: Tensor, sizes: tuple[int, ...], group: dist.ProcessGroup) -> Iterator[tuple[int, Tensor]]:
    """The pieces ``(batch, head, rest, points, channel)`` of all processes, one's own first, with whose they are."""
    rank, count = dist.get_rank(group), len(sizes)
    after, before = (dist.get_global_rank(group, (rank + step) % count) for step in (1, -1))
    piece = mine.contiguous()
    for step in range(count):
        waiting = []
        if step < count - 1:
            coming = piece.new_empty([*piece.shape[:3], sizes[(rank - step - 1) % count], piece.shape[4]])
            sent_bytes["ring"] += piece.numel() * piece.element_size()
            waiting = dist.batch_isend_irecv(
                [dist.P2POp(dist.isend, piece, after, group), dist.P2POp(dist.irecv, coming, before, group)]
            )
        yield (rank - step) % count, piece
        for work in waiting:
            work.wait()
        if step < count - 1:
            piece = coming


def ring_contraction(
    values: Tensor, queries: Tensor, keys: Tensor, sizes: tuple[int, ...], group: dist.ProcessGroup
) -> Tensor:
    """``(q kᵀ) V`` of a cut axis: ``values (batch, head, rest, points, channel)`` of this process, all rows of both."""
    result: Tensor = _RingContraction.apply(values, queries, keys, sizes, group)
    return result


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
