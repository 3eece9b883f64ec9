"""Fused GPU kernels, each beside a plain twin elsewhere in `factformer.nn` that is its oracle in tests.

They are chosen automatically for bfloat16 work on a CUDA device; ``FACTFORMER_FUSED=off`` turns them off, and
``FACTFORMER_FUSED=force`` uses them everywhere, for tests under Triton's interpreter.
"""

from __future__ import annotations

import functools
import importlib.util
import os
from collections.abc import Sequence

import torch
from torch import Tensor

from factformer.errors import UserError

SHARED_MEMORY = 227 * 1024
"""Bytes that the tiles of the kernels may take on a multiprocessor: what Hopper and its successors in servers have."""

NARROWEST = 64
"""Channels of a point or a head below which the plain path is taken: a network of width 32 with heads of 16 ended in an
illegal memory access on an H200, which has not been explained. Widths from 64 on were held against float64 there."""


def attention_fits(dim: int, head_dim: int, kernel_dim: int) -> bool:
    """Whether the tiles of the attention kernels fit; wider layers take the plain path."""
    return dim <= 128 and head_dim <= 64 and kernel_dim <= 256


def marching_fits(dim_hidden: int, dim_latent: int, num_channels: int) -> bool:
    """The same of marching and decoder, whose kernels hold the hidden layer of a tile of points in registers."""
    return dim_hidden <= 128 and dim_latent <= 256 and num_channels <= 64


def local_fits(shape: Sequence[int], kinds: Sequence[str], widths: Sequence[int], step: int, dim: int) -> bool:
    """The same of the local branch, as wide along all axes, whose neighbours lie within one turn around an axis.

    Mirrored ends are not made.
    """
    reach = step * (widths[0] // 2)
    return dim <= 128 and "reflect" not in kinds and len(set(widths)) == 1 and min(shape) > reach


def encoder_fits(dim: int, num_frames: int, num_channels: int) -> bool:
    """The same of the frame encoder."""
    return dim <= 128 and num_channels < 64 and (num_channels > 1 or num_frames < 64)


def working_dtype(x: Tensor, fits: bool, narrowest: int) -> torch.dtype | None:
    """The type to run the fused kernels in for ``x``; ``None``: take the plain path.

    ``fits`` is the answer of one of the functions above, ``narrowest`` the smallest of the layer's widths.
    """
    mode = os.environ.get("FACTFORMER_FUSED", "auto")
    if mode not in ("auto", "off", "force"):
        raise UserError(f"FACTFORMER_FUSED must be auto, off or force, got {mode!r}")
    if mode == "off" or not fits or torch.compiler.is_compiling():
        return None
    if mode == "force":
        return x.dtype if x.dtype in (torch.float32, torch.bfloat16) else None
    if not x.is_cuda or narrowest < NARROWEST or not _is_able(x.device.index or 0):
        return None
    if torch.is_autocast_enabled("cuda"):
        dtype = torch.get_autocast_dtype("cuda")
        return dtype if dtype == torch.bfloat16 else None
    return torch.bfloat16 if x.dtype == torch.bfloat16 else None


@functools.cache
def _is_able(device: int) -> bool:
    """Whether Triton is there and the device has room for the tiles."""
    if importlib.util.find_spec("triton") is None or torch.version.hip is not None:
        return False
    properties = torch.cuda.get_device_properties(device)
    room = getattr(properties, "shared_memory_per_block_optin", None)
    return properties.major in (9, 10) if room is None else int(room) >= SHARED_MEMORY
