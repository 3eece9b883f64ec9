"""What a device has for a program: shared memory, and TMA or not. Tiles are chosen within it.

The engine says what holds for a stage. Gradients are computed in threads of autograd's own, so a function remembers
what its forward pass was told (`within_limits`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any, NamedTuple, TypeVar


class Limits(NamedTuple):
    """Bytes of shared memory that a program may have, and whether tiles may be moved by TMA."""

    shared_memory: int
    tma: bool


FULL = Limits(227 * 1024, True)
"""Hopper and its successors in servers."""
MEDIUM = Limits(163 * 1024, False)
"""A100."""
SMALL = Limits(99 * 1024, False)
"""Cards for desktops and graphics since Ampere: RTX 30, 40 and 50, A10, L40."""

_current: ContextVar[Limits] = ContextVar("limits", default=FULL)


def limits() -> Limits:
    """What holds here."""
    return _current.get()


@contextlib.contextmanager
def restricted(to: Limits) -> Iterator[None]:
    """Kernels that are launched in here stay within ``to``."""
    token = _current.set(to)
    try:
        yield
    finally:
        _current.reset(token)


Choice = TypeVar("Choice")


def chosen(full: Choice, medium: Choice, small: Choice | None = None) -> Choice:
    """The tile for what the device has; without a ``small`` one that for `MEDIUM` serves all others."""
    room = limits().shared_memory
    if room >= FULL.shared_memory:
        return full
    return medium if small is None or room >= MEDIUM.shared_memory else small


Function = TypeVar("Function", bound=type)


def within_limits(function: Function) -> Function:
    """A ``torch.autograd.Function`` whose backward pass keeps to the limits of its forward pass."""
    forward, backward = function.forward, function.backward  # type: ignore[attr-defined]

    def remembering(ctx: Any, *arguments: Any) -> Any:
        ctx.limits = limits()
        return forward(ctx, *arguments)

    def restricted_backward(ctx: Any, *grads: Any) -> Any:
        with restricted(ctx.limits):
            return backward(ctx, *grads)

    function.forward = staticmethod(remembering)  # type: ignore[attr-defined]
    function.backward = staticmethod(restricted_backward)  # type: ignore[attr-defined]
    return function
