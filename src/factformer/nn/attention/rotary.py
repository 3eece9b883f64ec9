"""Rotary encoding of queries and keys in physical coordinates (paper eq. 3).

Pair ``l`` of channels is rotated by the angle ``f_l x``, so that the product of an encoded query at ``x`` and
an encoded key at ``ξ`` depends on the positions through ``x - ξ`` alone.

* ``"paper"``: ``f_l = λ θ_l`` with ``θ_l = 10000^(-2(l-1)/d)``.
* ``"periodic"``: the same, rounded to whole wavenumbers ``2πk/L`` on periodic axes, which makes the kernel
  periodic there; other axes keep the paper's frequencies.
* ``"off"``: no rotation.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from factformer.errors import UserError
from factformer.grid import Grid

Rotary = Literal["paper", "periodic", "off"]


def require_pairs(name: str, number: int) -> None:
    """Refuse a ``number`` of channels that cannot be rotated in pairs."""
    if number % 2:
        raise UserError(f"the rotary encoding rotates pairs of channels: {name} must be even, got {number}")


def rotary_frequencies(grid: Grid, m: int, kernel_dim: int, mode: Rotary, scale: float = 64.0) -> Float[Tensor, "pair"]:
    """Angular frequencies ``f_l`` of axis ``m``."""
    pair = torch.arange(kernel_dim // 2, dtype=torch.float64)
    frequencies = scale * 10000.0 ** (-2 * pair / kernel_dim)
    if mode == "periodic" and grid.periodic[m]:
        unit = 2 * math.pi / grid.extent[m]
        frequencies = (frequencies / unit).round() * unit
    return frequencies


def rotary_table(
    grid: Grid, m: int, kernel_dim: int, mode: Rotary, scale: float = 64.0
) -> tuple[Float[Tensor, "points pair"], Float[Tensor, "points pair"]]:
    """Cosine and sine of every rotation along axis ``m``."""
    angle = grid.axis(m)[:, None] * rotary_frequencies(grid, m, kernel_dim, mode, scale)
    return angle.cos(), angle.sin()


def rotate(
    x: Float[Tensor, "*batch points channel"],
    cosine: Float[Tensor, "points pair"],
    sine: Float[Tensor, "points pair"],
) -> Float[Tensor, "*batch points channel"]:
    """Rotate the neighbouring channels ``(2l-1, 2l)`` of ``x`` by the tabulated angles."""
    even, odd = x.unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack([even * cosine - odd * sine, even * sine + odd * cosine], dim=-1).flatten(-2)


def turn(x: Float[Tensor, "*batch channel"], turns: Tensor) -> Float[Tensor, "*batch channel"]:
    """`rotate` as a product with ``turns = exp(i f_l x)``, which broadcast over the pairs of ``x``.

    One pass over a wide tensor instead of eight; compilers of PyTorch do not know complex numbers, hence both.
    """
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * turns).flatten(-2)
