"""All kernels of a network compiled at once before the first call that needs them."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from factformer.kernels._triton.launch import can_warm_up, warm_up, warming_up

_seen: WeakKeyDictionary[nn.Module, set[Hashable]] = WeakKeyDictionary()


def compile_once(module: nn.Module, key: Hashable, call: Callable[[], Tensor]) -> None:
    """Before the first ``call()`` of ``module`` with these sizes: compile the kernels of it and of its gradient."""
    if not can_warm_up():
        return
    grad = torch.is_grad_enabled()
    full = (key, grad, torch.is_autocast_enabled("cuda"))
    known = _seen.setdefault(module, set())
    if full in known or warming_up() or torch.cuda.is_current_stream_capturing():
        return
    known.add(full)
    parameters = [p for p in module.parameters() if p.requires_grad] if grad else []
    if any(hasattr(p, "to_local") for p in parameters):
        return  # sharded weights are gathered for the call itself, not for a warm-up
    if any(part._forward_hooks or part._forward_pre_hooks for part in module.modules()):
        return  # a hook would see the call twice
    try:
        # In this thread alone; and memory that no kernel has written may well hold NaN.
        with warm_up(), torch.autograd.set_multithreading_enabled(False), torch.autograd.set_detect_anomaly(False):
            result = call()
            if parameters and result.requires_grad:
                torch.autograd.grad(result.sum(), parameters, allow_unused=True)
    except torch.OutOfMemoryError:
        return  # the call itself will say so
