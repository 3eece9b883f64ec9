"""The number formats of training in bfloat16 on a GPU, for tensors that are counted and not computed.

Tensors without values lie on a CPU. There autocast leaves in bfloat16 what it computes in float32 on a GPU, and the
norm over a domain is one operation that keeps its format. These inputs and results are a sixth of the peak of a step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import _engine_run_backward
from torch.overrides import TorchFunctionMode

IN_SINGLE_PRECISION = {
    "__pow__",
    "__rpow__",
    "__rtruediv__",
    "cosine_similarity",
    "cumprod",
    "cumsum",
    "exp",
    "expm1",
    "group_norm",
    "l1_loss",
    "layer_norm",
    "log",
    "log10",
    "log1p",
    "log2",
    "log_softmax",
    "mse_loss",
    "norm",
    "normalize",
    "pow",
    "prod",
    "reciprocal",
    "rsqrt",
    "smooth_l1_loss",
    "softmax",
    "softplus",
    "sum",
}
"""Functions that CUDA's autocast computes in float32, of those in the documentation that networks here may use."""


class GpuPrecision(TorchFunctionMode):
    """In here norms, sums and the like of bfloat16 are taken in float32, also where a backward pass recomputes them."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if getattr(func, "__name__", "") in IN_SINGLE_PRECISION:
            args = [a.float() if isinstance(a, Tensor) and a.dtype == torch.bfloat16 else a for a in args]
        return func(*args, **(kwargs or {}))


def backward(loss: Tensor) -> None:
    """``loss.backward()`` that stays within a mode of functions, which recomputed layers need."""
    _engine_run_backward(
        (loss,), (torch.ones_like(loss),), False, False, (), allow_unreachable=True, accumulate_grad=True
    )
