# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""All kernels of a surrogate compiled at once, in threads, before the first call that needs them.

One after the other, as they are first launched, they would keep a user waiting for half a minute. A rehearsal of the
call meets every kernel with the sizes and places that the call itself has, compiles it in the background and launches
nothing; what it computes is of no use and thrown away. Most of the work is done outside of Python.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

MOST_THREADS = 16
_seen: WeakKeyDictionary[nn.Module, set[Hashable]] = WeakKeyDictionary()
_local = threading.local()
_one_at_a_time = threading.Lock()


@functools.cache
def able() -> bool:
    """Whether this Triton can compile in the background; an older one compiles kernels one by one, as they come."""
    import triton

    return hasattr(triton, "AsyncCompileMode") and not triton.knobs.runtime.interpret


def compile_once(module: nn.Module, key: Hashable, call: Callable[[], Tensor]) -> None:
    """Before the first ``call()`` of ``module`` with these sizes: compile the kernels of it and of its gradient."""
    if not able():
        return
    grad = torch.is_grad_enabled()
    full = (key, grad, torch.is_autocast_enabled("cuda"))
    known = _seen.setdefault(module, set())
    if full in known or getattr(_local, "rehearsing", False) or torch.cuda.is_current_stream_capturing():
        return
    known.add(full)
    parameters = [p for p in module.parameters() if p.requires_grad] if grad else []
    if any(hasattr(p, "to_local") for p in parameters):
        return  # sharded weights are gathered for the call itself, not for a rehearsal
    if any(part._forward_hooks or part._forward_pre_hooks for part in module.modules()):
        return  # someone is watching the call
    try:
        # In this thread alone; and what is left in the memory may well be no number.
        with rehearsal(), torch.autograd.set_multithreading_enabled(False), torch.autograd.set_detect_anomaly(False):
            result = call()
            if parameters and result.requires_grad:
                torch.autograd.grad(result.sum(), parameters, allow_unused=True)
    except torch.OutOfMemoryError:
        return  # the call itself will say so


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
            ours = getattr(_local, "rehearsing", False) and self.__module__.startswith("factformer.")
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
