"""All kernels of a surrogate compiled at once before the first call that needs them, `factformer.rehearsal`."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from factformer.rehearsal import able, rehearsal, rehearsing

_seen: WeakKeyDictionary[nn.Module, set[Hashable]] = WeakKeyDictionary()


def compile_once(module: nn.Module, key: Hashable, call: Callable[[], Tensor]) -> None:
    """Before the first ``call()`` of ``module`` with these sizes: compile the kernels of it and of its gradient."""
    if not able():
        return
    grad = torch.is_grad_enabled()
    full = (key, grad, torch.is_autocast_enabled("cuda"))
    known = _seen.setdefault(module, set())
    if full in known or rehearsing() or torch.cuda.is_current_stream_capturing():
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
