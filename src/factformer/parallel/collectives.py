"""Exchanges between those that hold the parts of a grid, with their gradients.

A loss is the sum of what each process adds to it. So the gradient of a value that all processes share is the sum of the
gradients that they have of it, and the gradient of what was sent comes back the way it went.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from factformer.parallel.groups import Group

sent_bytes: Counter[str] = Counter()
"""Bytes of the tensors that this process has given to each kind of exchange; for measurements."""


class _Sum(torch.autograd.Function):
    """``Σ_r x_r`` on every process."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return _reduced(x, group)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _reduced(gradients[0], ctx.group), None


class _Exchange(torch.autograd.Function):
    """Gives one tensor to the process before and one to the process after; returns what these gave."""

    @staticmethod
    def forward(ctx: Any, to_left: Tensor, to_right: Tensor, group: Group, wraps: bool) -> tuple[Tensor, Tensor]:
        ctx.group, ctx.wraps = group, wraps
        return _swapped(to_left, to_right, group, wraps)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        # What came from the left was given to its right, so its gradient goes there and arrives as that of `to_right`.
        return *_swapped(gradients[0], gradients[1], ctx.group, ctx.wraps), None, None


class _Gather(torch.autograd.Function):
    """The parts of all processes side by side along a dimension, on every process."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, sizes: tuple[int, ...], group: Group) -> Tensor:
        ctx.dim, ctx.sizes, ctx.group = dim, sizes, group
        most = max(sizes)
        padded = x.new_zeros([*x.shape[:dim], most, *x.shape[dim + 1 :]])
        padded.narrow(dim, 0, x.shape[dim]).copy_(x)
        sent_bytes["gather"] += x.numel() * x.element_size()
        parts = group.gathered(padded)
        return torch.cat([part.narrow(dim, 0, size) for part, size in zip(parts, sizes, strict=True)], dim=dim)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        total = _reduced(gradients[0], ctx.group)
        rank = ctx.group.rank
        return total.narrow(ctx.dim, sum(ctx.sizes[:rank]), ctx.sizes[rank]), None, None, None


class _RingContraction(torch.autograd.Function):
    """``Σ_r (q k_rᵀ) v_r`` of the pieces ``v_r`` of all processes, which are passed around a ring.

    The next piece is on its way while the one at hand is contracted. The gradient of a sum goes around in the same way:
    a process needs of another its piece of it, and has itself what that is multiplied with.
    """

    @staticmethod
    def forward(
        ctx: Any, values: Tensor, queries: Tensor, keys: Tensor, sizes: tuple[int, ...], group: Group
    ) -> Tensor:
        ctx.sizes, ctx.group = sizes, group
        ctx.save_for_backward(values, queries, keys)
        mine = queries.split(sizes, dim=2)[group.rank]
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
        rank, rows = ctx.group.rank, queries.split(ctx.sizes, dim=2)
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


def _around(mine: Tensor, sizes: tuple[int, ...], group: Group) -> Iterator[tuple[int, Tensor]]:
    """The pieces ``(batch, head, rest, points, channel)`` of all processes, one's own first, with whose they are."""
    rank, count = group.rank, len(sizes)
    piece = mine.contiguous()
    for step in range(count - 1):
        coming = piece.new_empty([*piece.shape[:3], sizes[(rank - step - 1) % count], piece.shape[4]])
        sent_bytes["ring"] += piece.numel() * piece.element_size()
        received = group.passed_on(piece, coming)
        yield (rank - step) % count, piece
        piece = received()
    yield (rank - count + 1) % count, piece


def ring_contraction(values: Tensor, queries: Tensor, keys: Tensor, sizes: tuple[int, ...], group: Group) -> Tensor:
    """``(q kᵀ) V`` of a cut axis: ``values (batch, head, rest, points, channel)`` of this process, all rows of both."""
    result: Tensor = _RingContraction.apply(values, queries, keys, sizes, group)
    return result


def all_sum(x: Tensor, group: Group) -> Tensor:
    """The sum of the tensors of all members of the group."""
    result: Tensor = _Sum.apply(x, group)
    return result


def all_largest(x: Tensor, group: Group) -> Tensor:
    """The largest of each entry over the members of the group; it has no gradient."""
    return _reduced(x.detach(), group, largest=True)


def exchange(to_left: Tensor, to_right: Tensor, group: Group, *, wraps: bool) -> tuple[Tensor, Tensor]:
    """What the processes before and after this one give; zeros beyond the ends, unless the axis wraps around."""
    left, right = _Exchange.apply(to_left, to_right, group, wraps)
    return left, right


def gather(x: Tensor, dim: int, sizes: tuple[int, ...], group: Group) -> Tensor:
    """The parts of all processes, of these ``sizes`` along dimension ``dim``, put together."""
    result: Tensor = _Gather.apply(x, dim, sizes, group)
    return result


def _reduced(x: Tensor, group: Group, *, largest: bool = False) -> Tensor:
    given = x.clone(memory_format=torch.contiguous_format)
    sent_bytes["reduce"] += given.numel() * given.element_size()
    return group.reduced(given, largest=largest)


def _swapped(to_left: Tensor, to_right: Tensor, group: Group, wraps: bool) -> tuple[Tensor, Tensor]:
    to_left, to_right = to_left.contiguous(), to_right.contiguous()
    for tensor, place in ((to_left, group.rank - 1), (to_right, group.rank + 1)):
        if group.has(place, wraps):
            sent_bytes["halo"] += tensor.numel() * tensor.element_size()
    return group.swapped(to_left, to_right, wraps)
