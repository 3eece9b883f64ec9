"""Bytes that tensors hold at the peak of a stretch of code, counted as storages come and go.

Under `torch._subclasses.fake_tensor.FakeTensorMode` tensors have shapes and no values: a training step on any grid is
counted in a second, without its memory. What an operation needs inside itself, such as the workspace of a library, is
not seen.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

BLOCK = 512
"""Bytes that an allocation is rounded up to, as PyTorch does on a GPU."""


def rounded(num_bytes: int) -> int:
    """What an allocation of so many bytes takes."""
    return -(-num_bytes // BLOCK) * BLOCK


class LiveMemory(TorchDispatchMode):
    """Counts the storages that operations in its block make, and those of tensors it is told of.

    ``now`` is what is alive, ``peak`` the most that was alive at once.
    """

    def __init__(self, held: Iterable[Tensor] = ()) -> None:
        """``held``: tensors that are there before, such as weights and the batch."""
        super().__init__()
        self.now = 0
        self.peak = 0
        self._known: weakref.WeakSet[torch.UntypedStorage] = weakref.WeakSet()
        for tensor in held:
            self._count(tensor)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self._count(leaf)
        return result

    def _count(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage in self._known:
            return
        size = rounded(storage.nbytes())
        self._known.add(storage)
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._forget, size)

    def _forget(self, size: int) -> None:
        self.now -= size
