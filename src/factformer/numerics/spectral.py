"""Truncated Fourier series of real periodic fields.

A field ``f(x) = Σ_k f̂_k exp(i k·x)`` is held by its coefficients with ``|k_m| ≤ K_m``; those with a negative
last index follow from ``f̂_{-k} = conj f̂_k`` and are not stored. The coefficients do not depend on the
number of points (``norm="forward"``), so that resampling and padding are one and the same evaluation:

* 2/3 rule: keep ``K = (S - 1) // 3`` and multiply on ``S`` points;
* 3/2 rule: keep ``K = (S - 1) // 2`` and multiply on ``3S/2`` points.

On a CPU transforms run axis by axis and skip the rows and columns that are known to be zero, and the bits of a field do
not depend on the batch it is in. On a GPU, where such copies cost more than they save, all axes go at once.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Complex, Float
from torch import Tensor

from factformer.errors import UserError
from factformer.grid import Grid

Values = Float[Tensor, "*batch_and_grid"]
Coefficients = Complex[Tensor, "*batch_and_modes"]


class Spectrum:
    """The modes ``|k_m| ≤ cutoff[m]`` (integer indices) on a periodic box, batched over leading axes.

    Coefficients are ``(..., 2 K_1 + 1, …, 2 K_{n-1} + 1, K_n + 1)`` in the order of ``fft``:
    ``0, 1, …, K, -K, …, -1``.
    """

    def __init__(
        self,
        extent: Sequence[float],
        cutoff: Sequence[int],
        *,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str | None = None,
    ) -> None:
        self.extent = tuple(float(length) for length in extent)
        self.cutoff = tuple(int(k) for k in cutoff)
        self.dtype, self.device = dtype, torch.device(device or "cpu")
        self.num_axes = len(self.cutoff)
        self.shape = (*(2 * k + 1 for k in self.cutoff[:-1]), self.cutoff[-1] + 1)
        self.axes = tuple(range(-self.num_axes, 0))

    @classmethod
    def of_grid(
        cls, grid: Grid, cutoff: Sequence[int], *, dtype: torch.dtype, device: torch.device | str | None = None
    ) -> Spectrum:
        """The modes of a periodic, uniform grid."""
        for m in range(grid.num_axes):
            if not (grid.periodic[m] and grid.is_uniform(m)):
                raise UserError(f"axis {m} has no Fourier modes: it is not periodic and uniform")
        return cls(grid.extent, cutoff, dtype=dtype, device=device)

    @cached_property
    def indices(self) -> list[Tensor]:
        """Integer wavenumber index of each axis, shaped to broadcast against the coefficients."""
        result = []
        for m, cutoff in enumerate(self.cutoff):
            positive = torch.arange(cutoff + 1)
            index = positive if m == self.num_axes - 1 else torch.cat([positive, torch.arange(-cutoff, 0)])
            shape = [1] * self.num_axes
            shape[m] = len(index)
            result.append(index.reshape(shape).to(self.device))
        return result

    @cached_property
    def wavenumbers(self) -> list[Tensor]:
        """Angular wavenumber ``2π k / L`` of each axis, shaped to broadcast against the coefficients."""
        pairs = zip(self.indices, self.extent, strict=True)
        return [(index.double() * (2 * math.pi / length)).to(self.dtype) for index, length in pairs]

    @cached_property
    def squared(self) -> Float[Tensor, "*modes"]:
        """``|k|²`` of every mode."""
        pairs = zip(self.indices, self.extent, strict=True)
        total = sum((index.double() * (2 * math.pi / length)).square() for index, length in pairs)
        assert isinstance(total, Tensor)
        return total.to(self.dtype)

    @cached_property
    def inverse_squared(self) -> Float[Tensor, "*modes"]:
        """``1 / |k|²``, and 0 for the mean: the inverse of ``-∇²`` on fields of zero mean."""
        squared = self.squared
        return torch.where(squared > 0, 1 / squared.clamp_min(torch.finfo(self.dtype).tiny), 0)

    @cached_property
    def multiplicity(self) -> Float[Tensor, "*modes"]:
        """How often a stored mode counts in a sum over all modes: 1 where the last index is 0, else 2."""
        counts = torch.full((self.shape[-1],), 2.0, dtype=self.dtype, device=self.device)
        counts[0] = 1.0
        return counts.expand(self.shape)

    def derivative(self, m: int) -> Complex[Tensor, "*modes"]:
        """The symbol ``i k_m`` of the derivative along axis ``m``, shaped to broadcast."""
        return 1j * self.wavenumbers[m]

    def mean_product(self, a: Coefficients, b: Coefficients) -> Float[Tensor, " ..."]:
        """The mean of the product of two fields (Parseval), over the modes alone."""
        product = torch.view_as_real(a) * torch.view_as_real(b)
        return (product.sum(-1) * self.multiplicity).sum(self.axes)

    def values(self, coefficients: Coefficients, shape: Sequence[int]) -> Values:
        """The field at the points ``j L / S`` of a grid of ``shape``, which must resolve the modes."""
        self._check(shape)
        if coefficients.is_cuda:
            return self._values_at_once(coefficients, shape)
        result = coefficients
        for axis, size, cutoff in zip(self.axes[:-1], shape, self.cutoff, strict=False):
            widened = _widen(result.movedim(axis, -1), size, cutoff)
            result = torch.fft.ifft(widened, dim=-1, norm="forward").movedim(-1, axis)
        kept = self.cutoff[-1] + 1
        padded = result.new_empty((*result.shape[:-1], shape[-1] // 2 + 1))
        padded[..., :kept] = result
        padded[..., kept:] = 0
        values: Tensor = torch.fft.irfft(padded, n=shape[-1], dim=-1, norm="forward")
        return values

    def coefficients(self, values: Values) -> Coefficients:
        """The coefficients of a field on a uniform grid; modes beyond the cut are dropped."""
        self._check(values.shape[-self.num_axes :])
        if values.is_cuda:
            return self._coefficients_at_once(values)
        result: Tensor = torch.fft.rfft(values, dim=-1, norm="forward").narrow(-1, 0, self.cutoff[-1] + 1)
        for m in reversed(range(self.num_axes - 1)):
            axis, cutoff = self.axes[m], self.cutoff[m]
            transform = torch.fft.fft(result, dim=axis, norm="forward")
            result = _narrow(transform, axis, cutoff, following=axis - 1 if m else None)
        return result

    def _values_at_once(self, coefficients: Coefficients, shape: Sequence[int]) -> Values:
        padded = coefficients.new_zeros((*coefficients.shape[: -self.num_axes], *shape[:-1], shape[-1] // 2 + 1))
        for kept, wide in self._corners(shape):
            padded[wide] = coefficients[kept]
        values: Tensor = torch.fft.irfftn(padded, s=tuple(shape), dim=self.axes, norm="forward")
        return values

    def _coefficients_at_once(self, values: Values) -> Coefficients:
        shape = values.shape[-self.num_axes :]
        transform: Tensor = torch.fft.rfftn(values, dim=self.axes, norm="forward")
        result = transform.new_empty((*values.shape[: -self.num_axes], *self.shape))
        for kept, wide in self._corners(shape):
            result[kept] = transform[wide]
        return result

    def _corners(self, shape: Sequence[int]) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
        """Where the modes lie among themselves and in the half spectrum of a grid, block by block."""
        choices = [
            [(slice(0, cutoff + 1), slice(0, cutoff + 1)), (slice(cutoff + 1, None), slice(size - cutoff, size))]
            for size, cutoff in zip(shape[:-1], self.cutoff, strict=False)
        ]
        last = slice(0, self.cutoff[-1] + 1)
        for blocks in itertools.product(*choices):
            kept, wide = ([pair[side] for pair in blocks] for side in (0, 1))
            yield (..., *kept, last), (..., *wide, last)

    def _check(self, shape: Sequence[int]) -> None:
        for m, (size, cutoff) in enumerate(zip(shape, self.cutoff, strict=True)):
            if size < 2 * cutoff + 1:
                raise UserError(
                    f"axis {m}: {size} points do not resolve wavenumber index {cutoff}, use at least {2 * cutoff + 1}"
                )


def _widen(coefficients: Tensor, size: int, cutoff: int) -> Tensor:
    """Zeros between the positive and the negative indices of the last axis, up to ``size`` in all.

    The copy is contiguous, as the transform along that axis wants it.
    """
    gap = coefficients.new_zeros(()).expand(*coefficients.shape[:-1], size - 2 * cutoff - 1)
    return torch.cat([coefficients[..., : cutoff + 1], gap, coefficients[..., cutoff + 1 :]], dim=-1)


def _narrow(coefficients: Tensor, axis: int, cutoff: int, following: int | None) -> Tensor:
    """The indices ``-cutoff … cutoff`` of an axis in the order of ``fft``.

    The copy leaves ``following``, the axis to be transformed next, innermost in memory.
    """
    negative = coefficients.narrow(axis, coefficients.shape[axis] - cutoff, cutoff)
    parts = [coefficients.narrow(axis, 0, cutoff + 1), negative]
    if following is None:
        return torch.cat(parts, dim=axis)
    return torch.cat([part.movedim(following, -1) for part in parts], dim=axis - 1).movedim(-1, following)


def mirror_modes(coefficients: Tensor, num_axes: int, *, average: bool, scale: float = 0.5) -> Tensor:
    """Coefficients that stand for a real field, ``f̂_{-k} = conj f̂_k`` where both are stored (last index 0).

    ``average``: ``scale`` times the sum of a mode and its mirror image. Otherwise one of the two (the one
    whose first index that is not zero is positive) decides for both, which keeps its modulus.
    """
    plane = coefficients[..., 0]
    axes = tuple(range(-num_axes + 1, 0))
    mirrored = plane.conj()
    if axes:
        mirrored = mirrored.flip(axes).roll((1,) * len(axes), axes)
    result = coefficients.clone()
    if average:
        result[..., 0] = scale * (plane + mirrored)
        return result
    sign = torch.zeros((), dtype=torch.long)
    for axis in axes:
        size = plane.shape[axis]
        index = torch.arange(size)
        index = torch.where(index > size // 2, index - size, index).sign()
        sign = torch.where(sign[..., None] == 0, index, sign[..., None])
    sign = sign.to(plane.device)
    result[..., 0] = torch.where(sign > 0, plane, torch.where(sign < 0, mirrored, plane.real + 0j))
    return result


def two_thirds_cutoff(shape: Sequence[int]) -> tuple[int, ...]:
    """The largest cut for which a product of two fields on ``shape`` points holds no aliases: ``3K < S``."""
    return tuple((size - 1) // 3 for size in shape)


def full_cutoff(shape: Sequence[int]) -> tuple[int, ...]:
    """The largest cut that ``shape`` points resolve: every mode but Nyquist."""
    return tuple((size - 1) // 2 for size in shape)


def padded_shape(cutoff: Sequence[int]) -> tuple[int, ...]:
    """The fewest points, of a quick size, on which products are free of aliases: ``S > 3K``."""
    return tuple(quick_size(3 * k + 1) for k in cutoff)


def quick_size(least: int) -> int:
    """The smallest even number ``≥ least`` whose prime factors are 2, 3 and 5."""
    size = least + least % 2
    while True:
        rest = size
        for prime in (2, 3, 5):
            while rest % prime == 0:
                rest //= prime
        if rest == 1:
            return size
        size += 2


def resample(values: Values, num_axes: int, shape: Sequence[int]) -> Values:
    """A periodic field on another uniform grid: its spectrum truncated, or continued by zeros.

    The Nyquist mode of an even grid has no sign and is dropped when the size changes.
    """
    old = tuple(values.shape[-num_axes:])
    if old == tuple(shape):
        return values
    cutoff = [min(a, b) for a, b in zip(full_cutoff(old), full_cutoff(shape), strict=True)]
    spectrum = Spectrum([1.0] * num_axes, cutoff, dtype=values.dtype, device=values.device)
    return spectrum.values(spectrum.coefficients(values), tuple(shape))


def wavenumber_unit(length: float | Tensor) -> float | Tensor:
    """``2π / length`` with the same bits for a number and for a tensor: ``2π / tensor`` would be rounded twice."""
    return torch.full_like(length, 2 * math.pi) / length if isinstance(length, Tensor) else 2 * math.pi / length


class Shift:
    """``values(x - distance)`` along a periodic axis of ``length``, exact for every mode.

    The Nyquist mode of an even axis has no phase and stays as it is, so that the sum of squares is conserved.
    """

    def __init__(self, like: Tensor, axis: int, length: float | Tensor) -> None:
        self.axis, self.size = axis, like.shape[axis]
        index = torch.arange(self.size // 2 + 1, device=like.device, dtype=torch.float64)
        if self.size % 2 == 0:
            index[-1] = 0
        view = [-1 if m == axis else 1 for m in range(like.ndim)]
        self.wavenumbers = (wavenumber_unit(length) * index.reshape(view)).to(like.dtype)

    def factor(self, distance: Tensor) -> Tensor:
        """What the modes are multiplied with; ``distance`` broadcasts against the values, of size 1 along the axis."""
        angle = -self.wavenumbers * distance
        return torch.polar(torch.ones_like(angle), angle)

    def __call__(self, values: Tensor, factor: Tensor) -> Tensor:
        turned = torch.fft.rfft(values, dim=self.axis) * factor
        result: Tensor = torch.fft.irfft(turned, n=self.size, dim=self.axis)
        return result
