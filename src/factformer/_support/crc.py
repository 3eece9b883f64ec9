"""CRC-32 of a text from those of its pieces (Mark Adler's way in zlib: polynomials over GF(2))."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

POLYNOMIAL = 0xEDB88320
ONE = 1 << 31
"""``x⁰``; the coefficient of ``xⁿ`` is n bits further down."""


class Appended:
    """The CRC of ``A + B`` from those of A and of B, for every B of ``length`` bytes; arrays of CRCs at once."""

    def __init__(self, length: int) -> None:
        factor, square, rest = ONE, ONE >> 8, length  # x⁸: one byte
        while rest:
            if rest & 1:
                factor = _product(factor, square)
            square, rest = _product(square, square), rest >> 1
        self._columns = [_product(factor, 1 << bit) for bit in range(32)]

    def __call__(self, first: NDArray[np.uint32], second: NDArray[np.uint32]) -> NDArray[np.uint32]:
        result = second.copy()
        for bit, column in enumerate(self._columns):
            result ^= np.where(first >> np.uint32(bit) & np.uint32(1), np.uint32(column), np.uint32(0))
        return result


def _product(a: int, b: int) -> int:
    """``a b`` modulo the polynomial."""
    result = 0
    for bit in range(31, -1, -1):
        if a >> bit & 1:
            result ^= b
        b = b >> 1 ^ (POLYNOMIAL if b & 1 else 0)
    return result
