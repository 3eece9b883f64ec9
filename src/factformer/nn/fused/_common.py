# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""What the kernels share: tile sizes, the precision of their matrix products, the GELU and its slope."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

MULTIPROCESSORS = 132
"""Programs are cut so that this many run at a time; a chip with more or fewer is served a little less well."""


def padded(size: int, least: int = 16) -> int:
    """The tile that holds ``size`` entries: matrix units want a power of two of at least 16."""
    return max(least, 1 << (size - 1).bit_length())


def precision(dtype: torch.dtype) -> str:
    """Float32 products are exact, so that the float32 kernels can be held against their plain twins."""
    return "ieee" if dtype == torch.float32 else "tf32"


def pieces(work: int, others: int, waves: int = 4) -> int:
    """Into how many parts to cut ``work`` items that each of ``others`` programs has, to fill the chip.

    Rounded down: a few programs beyond full waves would cost a whole one.
    """
    return max(1, min(work, waves * MULTIPROCESSORS // others))


def rows_of(x: Tensor) -> Tensor:
    return x if x.is_contiguous() else x.contiguous()


@triton.jit
def _normal(x):
    """Cumulative distribution of the normal law, and exp(-x²/2).

    Abramowitz & Stegun 7.1.26, to 1.5e-7: without branches and with one exponential, which the slope of the GELU
    needs as well. The library's erf took more time in these kernels than the memory.
    """
    e = tl.exp(-0.5 * x * x)
    t = 1.0 / (1.0 + 0.23164190 * tl.abs(x))
    tail = t * (0.127414796 + t * (-0.142248368 + t * (0.710706870 + t * (-0.726576013 + t * 0.530702715)))) * e
    return tl.where(x < 0.0, tail, 1.0 - tail), e


@triton.jit
def gelu(x):
    below, _ = _normal(x)
    return x * below


@triton.jit
def gelu_slope(x):
    below, e = _normal(x)
    return below + x * 0.3989422804014327 * e
