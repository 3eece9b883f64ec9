"""Finds accesses outside of the tensors of a launch: every address that a kernel reads or writes is looked up.

Under Triton's interpreter a wrong address of a masked-in lane often reads whatever lies there and nobody notices; on a
GPU it is an illegal memory access. The interpreter of a test run is watched, so this is for tests alone.
"""

import contextlib

import numpy as np
import torch
from triton.runtime import interpreter
from triton.tools.tensor_descriptor import TensorDescriptor


def _ranges(arguments):
    for argument in arguments:
        if isinstance(argument, tuple):
            yield from _ranges(argument)
        if isinstance(argument, TensorDescriptor):
            argument = argument.base
        if isinstance(argument, torch.Tensor) and argument.numel():
            last = sum((size - 1) * stride for size, stride in zip(argument.shape, argument.stride(), strict=True))
            yield argument.data_ptr(), argument.data_ptr() + (last + 1) * argument.element_size()


def meets_tma_rules(descriptor, element_size):
    """Whether TMA can move the tiles of a descriptor (CUDA driver API, ``cuTensorMapEncodeTiled``).

    Base and outer strides are multiples of 16 bytes, so is the inner extent of a tile; no extent is above 256.
    """
    *outer, inner = descriptor.strides
    block = descriptor.block_shape
    aligned = descriptor.base.data_ptr() % 16 == 0 and all(stride * element_size % 16 == 0 for stride in outer)
    return aligned and inner == 1 and block[-1] * element_size % 16 == 0 and max(block) <= 256


@contextlib.contextmanager
def checked(monkeypatch):
    """Raises where a kernel leaves its tensors; gives the launches, each by name and arguments."""
    launches, current = [], []
    run = interpreter.GridExecutor.__call__
    load, store = interpreter.InterpreterBuilder.create_masked_load, interpreter.InterpreterBuilder.create_masked_store

    def call(self, *args, **kwargs):
        launches.append((self.fn.__name__, [*args, *kwargs.values()]))
        current.append(sorted(_ranges([*args, *kwargs.values()])))
        try:
            return run(self, *args, **kwargs)
        finally:
            current.pop()

    def check(ptrs, mask, what):
        addresses = np.asarray(ptrs.data).ravel()[np.broadcast_to(mask.data, np.shape(ptrs.data)).ravel().astype(bool)]
        width = max(1, ptrs.get_element_ty().primitive_bitwidth // 8)
        inside = np.zeros(addresses.shape, dtype=bool)
        for first, end in current[-1]:
            inside |= (addresses >= first) & (addresses + width <= end)
        if not inside.all():
            raise AssertionError(f"{launches[-1][0]} {what} {int((~inside).sum())} addresses outside of its tensors")

    def checked_load(self, ptrs, mask, *args, **kwargs):
        check(ptrs, mask, "reads")
        return load(self, ptrs, mask, *args, **kwargs)

    def checked_store(self, ptrs, value, mask, *args, **kwargs):
        check(ptrs, mask, "writes")
        return store(self, ptrs, value, mask, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(interpreter.GridExecutor, "__call__", call)
        patch.setattr(interpreter.InterpreterBuilder, "create_masked_load", checked_load)
        patch.setattr(interpreter.InterpreterBuilder, "create_masked_store", checked_store)
        yield launches
