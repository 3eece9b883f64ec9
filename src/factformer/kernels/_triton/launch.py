# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""How our kernels are launched, and the warm-up that compiles them side by side before the first launch.

Compiled one after the other, as they are first launched, the kernels of a surrogate would keep a user waiting for half
a minute. During a warm-up `launch` compiles a kernel in the background for the sizes and addresses it is given, and
runs nothing. What the call around it computes is of no use and is thrown away.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch

MOST_THREADS = 16
_local = threading.local()
_one_at_a_time = threading.Lock()


def launch(kernel: Any, grid: tuple[int, ...], /, *args: Any, **options: Any) -> None:
    """``kernel[grid](*args, **options)``; during a warm-up of this thread the kernel is compiled and not run."""
    load = getattr(_local, "load", None)
    if load is None:
        kernel[grid](*args, **options)
    else:
        load(kernel.warmup(*args, grid=grid, **options))


@functools.cache
def can_warm_up() -> bool:
    """Whether this Triton can compile in the background; an older one compiles kernels one by one, as they come."""
    if importlib.util.find_spec("triton") is None:
        return False
    import triton

    return hasattr(triton, "AsyncCompileMode") and not triton.knobs.runtime.interpret


def warming_up() -> bool:
    """Whether this thread is in a warm-up."""
    return getattr(_local, "load", None) is not None


@contextmanager
def warm_up() -> Iterator[None]:
    """Kernels that this thread launches in here are compiled, side by side, and not run."""
    from triton import AsyncCompileMode

    threads = min(MOST_THREADS, os.cpu_count() or 1)
    with _one_at_a_time, ThreadPoolExecutor(threads, "kernel-compiler") as executor, AsyncCompileMode(executor):
        _local.load = _loader()
        try:
            yield
        finally:
            _local.load = None


def _loader() -> Callable[[Any], None]:
    """Makes the launcher of every kernel once it is compiled; a C compiler would otherwise run at the first launch."""
    from triton import FutureKernel

    device = torch.cuda.current_device() if torch.cuda.is_available() else None
    asked: set[Future[Any]] = set()

    def initialize(compiled: Future[Any]) -> None:
        # What goes wrong here goes wrong at the first launch again, and is reported there.
        with contextlib.suppress(Exception), torch.cuda.device(device):
            compiled.result()._init_handles()

    def load(kernel: Any) -> None:
        if isinstance(kernel, FutureKernel) and kernel.future not in asked:
            asked.add(kernel.future)
            kernel.future.add_done_callback(initialize)

    return load
