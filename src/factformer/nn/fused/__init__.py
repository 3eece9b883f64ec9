"""Fused GPU kernels, each beside a plain twin elsewhere in `factformer.nn` that is its oracle in tests.

They are chosen automatically for bfloat16 work on a CUDA device; ``FACTFORMER_FUSED=off`` turns them off, and
``FACTFORMER_FUSED=force`` uses them everywhere, for tests under Triton's interpreter.
"""

from __future__ import annotations

import functools
import importlib.util
import os

import torch
from torch import Tensor

from factformer.errors import UserError

WIDEST = 256
"""Channels of a point that one tile holds."""


def working_dtype(x: Tensor, *widths: int) -> torch.dtype | None:
    """The type to run the fused kernels in for ``x`` with these channel widths; ``None``: take the plain path."""
    mode = os.environ.get("FACTFORMER_FUSED", "auto")
    if mode not in ("auto", "off", "force"):
        raise UserError(f"FACTFORMER_FUSED must be auto, off or force, got {mode!r}")
    if mode == "off" or max(widths, default=0) > WIDEST or torch.compiler.is_compiling():
        return None
    if mode == "force":
        return x.dtype if x.dtype in (torch.float32, torch.bfloat16) else None
    if not x.is_cuda or not _has_triton():
        return None
    if torch.is_autocast_enabled("cuda"):
        dtype = torch.get_autocast_dtype("cuda")
        return dtype if dtype == torch.bfloat16 else None
    return torch.bfloat16 if x.dtype == torch.bfloat16 else None


@functools.cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None and torch.cuda.get_device_capability() >= (8, 0)
