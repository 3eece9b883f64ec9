"""Matrix products on a CPU, by oneDNN where this PyTorch has it, and how large the pieces are.

PyTorch itself takes oneDNN for products in bfloat16, and for those in float32 the library it was built with. That one
is slow on processors of other makers: 80 against 190 GFLOP/s on a core of an AMD EPYC (docs/performance.md).
"""

from __future__ import annotations

import functools
import platform
from collections.abc import Iterator
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from factformer.nn.mlp import MLP

POINTS = 1024
"""Points of a block for each thread: with a few hundred channels they stay in the cache of a core."""
PIECE = 2**22
"""Numbers of a piece at most. The C library keeps pieces of less than 32 MiB for the next one; larger ones it gives
back to the system, which costs more than the product that fills them."""


def linear(
    x: Float[Tensor, "row dim_in"],
    weight: Float[Tensor, "dim_out dim_in"],
    bias: Float[Tensor, " dim_out"] | None = None,
    activation: Literal["none", "gelu"] = "none",
) -> Float[Tensor, "row dim_out"]:
    """``σ(x Wᵀ + b)`` of matrices of one number format."""
    if by_onednn():
        result: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, activation, [], "none")
        return result
    result = functional.linear(x, weight, bias)
    return functional.gelu(result) if activation == "gelu" else result


def mlp(x: Float[Tensor, "row dim_in"], network: MLP) -> Float[Tensor, "row dim_out"]:
    """Linear – GELU – Linear of rows."""
    first, _, second = network
    hidden = linear(x, *weights(first, x.dtype), "gelu")
    return linear(hidden, *weights(second, x.dtype))


def weights(layer: nn.Module, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
    """Weight and bias of a linear layer in ``dtype``."""
    assert isinstance(layer, nn.Linear)
    bias: Tensor | None = layer.bias
    return layer.weight.to(dtype), None if bias is None else bias.to(dtype)


def number_format(x: Tensor) -> torch.dtype | None:
    """What the products of a call on ``x`` are computed in, as the autocast region around it says.

    ``None`` where there are no blocked stages for it.
    """
    if x.device.type != "cpu" or x.dtype not in (torch.float32, torch.bfloat16):
        return None
    dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else x.dtype
    if dtype == torch.bfloat16:
        return dtype if by_onednn() and _has_bfloat16() else None
    return dtype if dtype == torch.float32 else None


def blocks(num_points: int) -> Iterator[slice]:
    """The points, block by block."""
    size = POINTS * torch.get_num_threads()
    return (slice(start, min(start + size, num_points)) for start in range(0, num_points, size))


def are_plain(*layers: nn.Module) -> bool:
    """Whether layers are PyTorch's own, so that their weights say what they compute."""
    kinds = (nn.Linear, nn.LayerNorm, nn.GELU)
    return all(
        are_plain(*layer) if type(layer) is MLP else type(layer) in kinds and not _has_hooks(layer) for layer in layers
    )


def by_onednn() -> bool:
    """Whether products are oneDNN's; ``torch.backends.mkldnn.flags(enabled=False)`` says no, as to PyTorch itself."""
    return bool(torch.backends.mkldnn.enabled) and _has_onednn()


def _has_hooks(layer: nn.Module) -> bool:
    return bool(layer._forward_hooks or layer._forward_pre_hooks)


@functools.cache
def _has_onednn() -> bool:
    """Whether this PyTorch has the product, which is not part of its public interface, and it does what we ask of it.

    On ARM PyTorch's own products are the processor maker's already.
    """
    if platform.machine().lower() not in ("x86_64", "amd64") or not torch.backends.mkldnn.is_available():
        return False
    with torch.inference_mode(False), torch.no_grad(), torch.autocast("cpu", enabled=False):
        x, weight = torch.arange(12.0).reshape(3, 4) - 6.0, torch.arange(8.0).reshape(2, 4) - 4.0
        bias = torch.tensor([-85.0, 3.0])
        wanted = functional.gelu(functional.linear(x, weight, bias))
        try:
            found = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "gelu", [], "none")
        except (AttributeError, RuntimeError, TypeError):
            return False
        return bool(torch.allclose(found, wanted))


@functools.cache
def _has_bfloat16() -> bool:
    try:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    except (AttributeError, RuntimeError):
        return False
