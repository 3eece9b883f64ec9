# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Triton kernels compiled side by side, in threads, before the first launch of any.

One after the other, as they are first launched, they would keep a user waiting for half a minute. A rehearsal of a call
meets every kernel with the sizes and places that the call itself has, compiles it in the background and launches
nothing; what it computes is of no use and thrown away. Most of the work is done outside of Python.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch

MOST_THREADS = 16
_local = threading.local()
_one_at_a_time = threading.Lock()


@functools.cache
def able() -> bool:
    """Whether this Triton can compile in the background; an older one compiles kernels one by one, as they come."""
    if importlib.util.find_spec("triton") is None:
        return False
    import triton

    return hasattr(triton, "AsyncCompileMode") and not triton.knobs.runtime.interpret


def rehearsing() -> bool:
    """Whether this thread is in a rehearsal."""
    return getattr(_local, "rehearsing", False)


@contextmanager
def rehearsal() -> Iterator[None]:
    """Kernels that this thread launches in here are compiled, side by side, and not run."""
    from triton import AsyncCompileMode, FutureKernel
    from triton.runtime.jit import JITFunction

    device = torch.cuda.current_device() if torch.cuda.is_available() else None

    def load(compiled: Future[Any]) -> None:
        # Its launcher is made by a C compiler, and would otherwise be when it is first launched. What goes wrong here
        # goes wrong there again, and is reported.
        with contextlib.suppress(Exception), torch.cuda.device(device):
            compiled.result()._init_handles()

    threads = min(MOST_THREADS, os.cpu_count() or 1)
    with _one_at_a_time, ThreadPoolExecutor(threads, "kernel-compiler") as executor, AsyncCompileMode(executor):
        launch: Any = JITFunction.run
        asked: set[Future[Any]] = set()

        def run(self, *args, grid, warmup, **kwargs):
            # Other threads, and kernels of other libraries, are not ours to hold back.
            ours = rehearsing() and self.__module__.startswith("factformer.")
            kernel = launch(self, *args, grid=grid, warmup=warmup or ours, **kwargs)
            if ours and isinstance(kernel, FutureKernel) and kernel.future not in asked:
                asked.add(kernel.future)
                kernel.future.add_done_callback(load)
            return kernel

        JITFunction.run, _local.rehearsing = run, True
        try:
            yield
        finally:
            JITFunction.run, _local.rehearsing = launch, False
