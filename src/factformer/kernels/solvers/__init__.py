"""Pseudo-spectral steps as a few GPU kernels, each beside a plain form elsewhere that is its oracle in tests.

They are chosen automatically for float32 on a CUDA device and for numbers of points that they know;
``FACTFORMER_FUSED=off`` turns them off, and ``FACTFORMER_FUSED=force`` uses them on any device, for tests under
Triton's interpreter.
"""

from __future__ import annotations

import importlib.util
import os

import torch
from torch import Tensor

from factformer.errors import UserError
from factformer.numerics.spectral import Spectrum

FACTORS = {16: (4, 4, 4, 4), 64: (8, 8, 8, 8), 96: (12, 8, 24, 4), 512: (8, 64, 8, 64)}
"""Points of a line that the kernels know, and how they hold it: lists and lanes, narrow and wide (`fourier`)."""

MOST_WASTE = 1.15
"""Points per axis over the fewest possible up to which the kernels pay."""


def product_shape(spectrum: Spectrum) -> tuple[int, ...] | None:
    """The points on which the kernels form products of such fields, ``S > 3K``; ``None``: take the plain path."""
    mode = os.environ.get("FACTFORMER_FUSED", "auto")
    if mode not in ("auto", "off", "force"):
        raise UserError(f"FACTFORMER_FUSED must be auto, off or force, got {mode!r}")
    if mode == "off" or spectrum.dtype != torch.float32 or not (mode == "force" or _is_able(spectrum.device)):
        return None
    shape = []
    for cutoff in spectrum.cutoff:
        size = min((size for size in FACTORS if size > 3 * cutoff), default=None)
        if size is None or size > MOST_WASTE * (3 * cutoff + 1):
            return None
        shape.append(size)
    return tuple(shape)


def to_planes(coefficients: Tensor, num_axes: int) -> Tensor:
    """Real and imaginary parts as an axis before the modes: ``(..., 2, *modes)``."""
    return torch.view_as_real(coefficients).movedim(-1, -1 - num_axes).contiguous()


def from_planes(planes: Tensor, num_axes: int) -> Tensor:
    """The complex numbers that planes hold."""
    return torch.complex(*planes.unbind(-1 - num_axes))


def _is_able(device: torch.device) -> bool:
    return device.type == "cuda" and torch.version.hip is None and importlib.util.find_spec("triton") is not None
