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
    """The tile that holds ``size`` entries: tensor cores want a power of two of at least 16."""
    return max(least, 1 << (size - 1).bit_length())


def precision(dtype: torch.dtype) -> str:
    """Float32 products are exact, so that the float32 kernels can be held against their reference implementations."""
    return "ieee" if dtype == torch.float32 else "tf32"


def pieces(work: int, others: int, waves: int = 4) -> int:
    """Into how many parts to cut ``work`` items that each of ``others`` programs has, to fill the chip.

    Rounded down: a few programs beyond full waves would cost a whole one.
    """
    return max(1, min(work, waves * MULTIPROCESSORS // others))


def rows_of(x: Tensor) -> Tensor:
    return x if x.is_contiguous() else x.contiguous()


@triton.jit
def zeros(ROWS: tl.constexpr, COLUMNS: tl.constexpr = None):
    """A vector or a tile to add to."""
    return tl.zeros((ROWS,) if COLUMNS is None else (ROWS, COLUMNS), dtype=tl.float32)


@triton.jit
def to_nearest(x, PRECISION: tl.constexpr):
    """``x`` as a product in TF32 takes it, rounded to the nearest: tensor cores cut the last bits off.

    Cutting errs in one direction: in a box it cost the kernels of the axes more than all roundings to bfloat16.
    """
    if PRECISION == "tf32":
        nearest = (x.to(tl.int32, bitcast=True) + 0x1000).to(tl.float32, bitcast=True)
        x = tl.where(tl.abs(x) < float("inf"), nearest, x)  # the bits of a NaN must not run over
    return x


@triton.jit
def _tail(x):
    """1 - Φ(|x|) of the normal law, and exp(-x²/2).

    The exponential times a polynomial in |x| (Mills' ratio, minimax of degree 9 with the weight that it has in the
    GELU: to 5e-7): one special function and no division, which took more time in these kernels than the memory.
    """
    a = tl.minimum(tl.abs(x), 64.0)  # far out the exponential is nothing, and the polynomial must not be infinite
    e = tl.exp2(x * (x * -0.7213475204444817))
    ratio = -2.13965148e-2 + a * (5.91389047e-3 + a * (-1.12173974e-3 + a * (1.26912807e-4 - a * 6.35758431e-6)))
    ratio = -1.31306385e-1 + a * (5.86505029e-2 + a * ratio)
    ratio = 4.99999553e-1 + a * (-3.98910364e-1 + a * (2.49628035e-1 + a * ratio))
    return e * ratio, e


@triton.jit
def gelu(x):
    tail, _ = _tail(x)
    return tl.maximum(x, 0.0) - tl.abs(x) * tail


@triton.jit
def gelu_slope(x):
    tail, e = _tail(x)
    return tl.where(x < 0.0, tail, 1.0 - tail) + x * (0.3989422804014327 * e)


@triton.jit
def gelu_and_slope(x):
    """Both with one exponential."""
    tail, e = _tail(x)
    value = tl.maximum(x, 0.0) - tl.abs(x) * tail
    return value, tl.where(x < 0.0, tail, 1.0 - tail) + x * (0.3989422804014327 * e)
