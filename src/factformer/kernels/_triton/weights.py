"""The weights of a module in the working type, all cast in one launch per call instead of one launch each.

They are cast anew for every call, into memory of its own: weights may have moved since, and a backward pass may still
hold those of the call before. Which ones are needed is learned on the first call; one that a call did without, because
it lies elsewhere now, is forgotten.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

ALIGNMENT = 64
"""Entries between the starts of two weights are a multiple of this, as wide loads want."""


class _Casts(NamedTuple):
    asked: dict[int, Tensor]
    made: dict[int, Tensor]
    used: set[int]
    dtype: torch.dtype


_asked: WeakKeyDictionary[nn.Module, dict[int, Tensor]] = WeakKeyDictionary()
_current: ContextVar[_Casts | None] = ContextVar("working_weights", default=None)


@contextmanager
def working_weights(module: nn.Module, dtype: torch.dtype) -> Iterator[None]:
    """In here `working` finds the weights of ``module`` that it was asked for in calls before."""
    asked = _asked.setdefault(module, {})
    casts = _Casts(asked, _cast(asked, dtype), set(), dtype)
    token = _current.set(casts)
    try:
        yield
    finally:
        _current.reset(token)
    for place in asked.keys() - casts.used:
        del asked[place]


def working(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """``weight`` in ``dtype`` and out of autograd's sight: for functions that give its gradient themselves."""
    casts = _current.get()
    if casts is None or casts.dtype != dtype or weight.dtype == dtype:
        return weight.detach().to(dtype)
    place = weight.data_ptr()
    casts.used.add(place)
    cast = casts.made.get(place)
    if cast is None:
        casts.asked[place] = weight.detach()
        cast = casts.made[place] = weight.detach().to(dtype)
    return cast


def product(left: Tensor, right: Tensor) -> Tensor:
    """``left @ right`` in float32, as the library sums it: gradients of weights are not rounded on the way."""
    if left.is_cuda and left.dtype == torch.bfloat16:
        result: Tensor = torch.mm(left, right, out_dtype=torch.float32)
        return result
    return (left @ right).float()


def _cast(weights: dict[int, Tensor], dtype: torch.dtype) -> dict[int, Tensor]:
    sources = list(weights.values())
    if not sources:
        return {}
    sizes = [-(-w.numel() // ALIGNMENT) * ALIGNMENT for w in sources]
    pieces = sources[0].new_empty(sum(sizes), dtype=dtype).split(sizes)
    made = [piece[: w.numel()].view(w.shape) for piece, w in zip(pieces, sources, strict=True)]
    torch._foreach_copy_(made, sources)
    return dict(zip(weights, made, strict=True))
