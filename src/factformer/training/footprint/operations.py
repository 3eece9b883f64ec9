"""The operations of a stretch of code: bytes that each must move through memory, and its arithmetic.

An operation reads its tensors and writes its result once; a view does nothing. Products and convolutions have
floating-point operations as `torch.utils.flop_counter` counts them.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

Operations = dict[tuple[int, int], float]
"""How often an operation of so many bytes and so much arithmetic was done."""


class CountOperations(TorchDispatchMode):
    """Counts the operations in its block by bytes and arithmetic."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[tuple[int, int]] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        given = _tensors((args, kwargs))
        made = _tensors(result)
        if made and not _is_view(func, given, made):
            formula = flop_registry.get(func._overloadpacket)
            flops = 0 if formula is None else int(formula(*args, **kwargs, out_val=result))
            self.found[sum(map(_size, (*given, *made))), flops] += 1
        return result


def _tensors(values: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]


def _size(tensor: Tensor) -> int:
    """Bytes that are there: a repeated tensor is read as often as it has values, but from a cache."""
    return min(tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes())


def _is_view(func: Any, given: list[Tensor], made: list[Tensor]) -> bool:
    """Whether nothing is moved: the result lies in the memory of what was given, which is not changed."""
    if func._schema.is_mutable:
        return False
    if func._overloadpacket in (torch.ops.aten.empty, torch.ops.aten.empty_strided, torch.ops.aten.empty_like):
        return True
    places = {tensor.untyped_storage()._cdata for tensor in given}
    return all(tensor.untyped_storage()._cdata in places for tensor in made)


def seconds(operations: Operations, bandwidth: float, rate: float, launch: float = 0.0) -> float:
    """One operation after the other, each as long as its bytes or its arithmetic take, and a launch."""
    return sum(
        count * (max(num_bytes / bandwidth, flops / rate) + launch) for (num_bytes, flops), count in operations.items()
    )
