# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""The learned map of the Fourier features, with its gradients summed over the points in float32.

The features are a table of the grid, so only the weights have gradients: one tall product and the sums of its columns.
Reference implementation: the linear layer of `factformer.nn.fourier_features.FourierFeatures`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from factformer.kernels._triton.arithmetic import rows_of
from factformer.kernels._triton.limits import within_limits
from factformer.kernels._triton.products import gram
from factformer.kernels._triton.sums import column_sums
from factformer.kernels._triton.weights import working


@within_limits
class _Positions(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, features: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        dtype = features.dtype
        with torch.autocast(features.device.type, enabled=False):
            result = torch.nn.functional.linear(features, working(weight, dtype), working(bias, dtype))
        ctx.save_for_backward(features)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        (features,) = ctx.saved_tensors
        flat = rows_of(grad).flatten(0, -2)
        rows = features.flatten(0, -2)
        return None, gram(flat[None], rows[None])[0], column_sums(flat)


def encode_positions(features: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """``features Wᵀ + b`` of a table of features, which has no gradient, in its own type."""
    result: Tensor = _Positions.apply(features, weight, bias)
    return result
