"""Orthonormal sine and cosine transforms along one axis.

* `sine_transform` (DST-I): ``X_k = √(2/(N+1)) Σ_j x_j sin(π (j+1)(k+1)/(N+1))``, its own inverse; it
  diagonalises second differences on the ``N`` inner nodes of an axis whose ends are held at zero.
* `cosine_transform` (DCT-II): ``X_k = √((2-δ_k0)/N) Σ_j x_j cos(π (j+½) k/N)``; it diagonalises second
  differences on ``N`` cells with zero flux through the ends. `inverse_cosine_transform` is its transpose.

On a CPU short axes are multiplied by the matrix of the transform, which beats the fast algorithm up to a few
hundred points; everything else goes through an FFT, so that the cost grows as ``N log N``.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from jaxtyping import Float
from torch import Tensor

Values = Float[Tensor, "..."]
LONGEST_MATRIX = 256


def sine_transform(values: Values, axis: int) -> Values:
    """DST-I along ``axis``, orthonormal and its own inverse."""
    size = values.shape[axis]
    if _use_matrix(values, size):
        return multiply_axis(_sine_matrix(size, values.dtype, values.device), values, axis)
    x = values.movedim(axis, -1)
    zero = x.new_zeros((*x.shape[:-1], 1))
    odd = torch.cat([zero, x, zero, -x.flip(-1)], dim=-1)
    transform: Tensor = torch.fft.rfft(odd, dim=-1).imag[..., 1 : size + 1] * -math.sqrt(0.5 / (size + 1))
    return transform.movedim(-1, axis)


def cosine_transform(values: Values, axis: int) -> Values:
    """DCT-II along ``axis``, orthonormal."""
    size = values.shape[axis]
    if _use_matrix(values, size):
        return multiply_axis(_cosine_matrix(size, values.dtype, values.device), values, axis)
    x = values.movedim(axis, -1)
    folded = torch.cat([x[..., ::2], x[..., 1::2].flip(-1)], dim=-1)  # Makhoul (1980): one FFT of length N
    shift = _quarter_shift(size, values.dtype, values.device)
    transform: Tensor = (torch.fft.fft(folded, dim=-1) * shift).real
    return transform.movedim(-1, axis)


def inverse_cosine_transform(values: Values, axis: int) -> Values:
    """DCT-III along ``axis``: the inverse and transpose of `cosine_transform`."""
    size = values.shape[axis]
    if _use_matrix(values, size):
        return multiply_axis(_cosine_matrix(size, values.dtype, values.device).T, values, axis)
    x = values.movedim(axis, -1)
    mirrored = torch.cat([x.new_zeros((*x.shape[:-1], 1)), x[..., 1:].flip(-1)], dim=-1)
    shift = _quarter_shift(size, values.dtype, values.device)
    folded = torch.fft.ifft(torch.complex(x, -mirrored) / shift, dim=-1).real
    result = torch.empty_like(x)
    half = (size + 1) // 2
    result[..., ::2] = folded[..., :half]
    result[..., 1::2] = folded[..., half:].flip(-1)
    return result.movedim(-1, axis)


def _use_matrix(values: Tensor, size: int) -> bool:
    # on a GPU products of matrices may be set to TF32, whose 10 bits would ruin a direct solve
    return size <= LONGEST_MATRIX and values.device.type == "cpu"


def multiply_axis(matrix: Float[Tensor, "rows columns"], values: Values, axis: int) -> Values:
    """``result[…, i, …] = Σ_j matrix[i, j] values[…, j, …]`` along ``axis``."""
    axis = axis % values.ndim
    if axis == values.ndim - 1:
        return torch.matmul(values, matrix.T)
    if axis == values.ndim - 2:
        return torch.matmul(matrix, values)
    before, after = values.shape[:axis], values.shape[axis + 1 :]
    return torch.matmul(matrix, values.flatten(axis + 1)).reshape(*before, -1, *after)


def second_difference_eigenvalues(
    size: int, spacing: float, kind: str, dtype: torch.dtype, device: torch.device | str | None = None
) -> Float[Tensor, " modes"]:
    """Eigenvalues of ``-δ²/h²`` in the modes of the transform ``kind``, ``"sine"`` or ``"cosine"``."""
    k = torch.arange(size, dtype=torch.float64)
    angle = math.pi * (k + 1) / (size + 1) if kind == "sine" else math.pi * k / size
    return ((2 * torch.sin(angle / 2) / spacing) ** 2).to(device, dtype)


@lru_cache(maxsize=32)
def _sine_matrix(size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    k = torch.arange(1, size + 1)
    turns = (k[:, None] * k) % (2 * (size + 1))  # whole numbers keep the angle exact
    matrix = torch.sin(turns.double() * (math.pi / (size + 1))) * math.sqrt(2 / (size + 1))
    return matrix.to(device, dtype)


@lru_cache(maxsize=32)
def _cosine_matrix(size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    k = torch.arange(size)
    turns = (k[:, None] * (2 * k + 1)) % (4 * size)
    matrix = torch.cos(turns.double() * (math.pi / (2 * size))) * math.sqrt(2 / size)
    matrix[0] *= math.sqrt(0.5)
    return matrix.to(device, dtype)


@lru_cache(maxsize=32)
def _quarter_shift(size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    k = torch.arange(size, dtype=torch.float64)
    shift = torch.polar(torch.full_like(k, math.sqrt(2 / size)), -math.pi / (2 * size) * k)
    shift[0] *= math.sqrt(0.5)
    return shift.to(device, torch.complex128 if dtype == torch.float64 else torch.complex64)
