"""Truncated Fourier series of real periodic fields.

A field ``f(x) = Σ_k f̂_k exp(i k·x)`` is held by its coefficients with ``|k_m| ≤ K_m``; those with a negative
last index follow from ``f̂_{-k} = conj f̂_k`` and are not stored. The coefficients do not depend on the
number of points (``norm="forward"``), so that resampling and padding are one and the same evaluation:

* 2/3 rule: keep ``K = (S - 1) // 3`` and multiply on ``S`` points;
* 3/2 rule: keep ``K = (S - 1) // 2`` and multiply on ``3S/2`` points.

A process may hold a part of a field (`factformer.numerics.pencils`): a `Spectrum` of a part has its modes alone, and
transforms exchange what they need. Sums and symmetry go through the spectrum, so that one code serves whole and part.

On a CPU transforms run axis by axis and skip the rows and columns that are known to be zero, and the bits of a field do
not depend on the batch it is in. On a GPU, where such copies cost more than they save, all axes go at once.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Bool, Complex, Float
from torch import Tensor

from factformer.errors import UserError
from factformer.grid import Grid
from factformer.numerics.mirror import mirror_modes as mirror_modes
from factformer.numerics.mirror import shape_of, signed_indices
from factformer.numerics.pencils import WHOLE, Pencils, pencils_of

Values = Float[Tensor, "*batch_and_grid"]
Coefficients = Complex[Tensor, "*batch_and_modes"]


class Spectrum:
    """The modes ``|k_m| ≤ cutoff[m]`` (integer indices) on a periodic box, batched over leading axes.

    Coefficients are ``(..., 2 K_1 + 1, …, 2 K_{n-1} + 1, K_n + 1)`` in the order of ``fft``:
    ``0, 1, …, K, -K, …, -1``. With ``pencils``, ``shape``, indices and symbols are those of the modes that this process
    holds; shapes of points are those of the whole grid.
    """

    def __init__(
        self,
        extent: Sequence[float],
        cutoff: Sequence[int],
        *,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str | None = None,
        pencils: Pencils = WHOLE,
    ) -> None:
        self.extent = tuple(float(length) for length in extent)
        self.cutoff = tuple(int(k) for k in cutoff)
        self.dtype, self.device = dtype, torch.device(device or "cpu")
        self.num_axes = len(self.cutoff)
        self.pencils = pencils
        self.ranges = pencils.ranges(self.cutoff)
        """For each axis ``|k|`` of the modes that are held: the least, and the one after the largest."""
        self.shape = shape_of(self.ranges)
        self.axes = tuple(range(-self.num_axes, 0))

    @classmethod
    def of_grid(
        cls, grid: Grid, cutoff: Sequence[int], *, dtype: torch.dtype, device: torch.device | str | None = None
    ) -> Spectrum:
        """The modes of a periodic, uniform grid, or of a part of one."""
        for m in range(grid.num_axes):
            if not (grid.periodic[m] and grid.is_uniform(m)):
                raise UserError(f"axis {m} has no Fourier modes: it is not periodic and uniform")
        return cls(grid.extent, cutoff, dtype=dtype, device=device, pencils=pencils_of(grid))

    def to(self, dtype: torch.dtype) -> Spectrum:
        """The same modes in another precision."""
        return Spectrum(self.extent, self.cutoff, dtype=dtype, device=self.device, pencils=self.pencils)

    @cached_property
    def indices(self) -> list[Tensor]:
        """Integer wavenumber index of each axis, shaped to broadcast against the coefficients."""
        result = []
        for m, (first, end) in enumerate(self.ranges):
            index = signed_indices(first, end, last=m == self.num_axes - 1)
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
        counts[self.indices[-1].flatten() == 0] = 1.0
        return counts.expand(self.shape)

    def at(self, *index: int) -> Bool[Tensor, "*modes"]:
        """Which of the stored modes has this integer index; none where another process holds it."""
        marks = torch.ones(self.shape, dtype=torch.bool, device=self.device)
        for own, wanted in zip(self.indices, index, strict=True):
            marks = marks & (own == wanted)
        return marks

    @cached_property
    def is_mean(self) -> Bool[Tensor, "*modes"]:
        """Which of the stored modes is the mean of the field."""
        return self.at(*[0] * self.num_axes)

    def derivative(self, m: int) -> Complex[Tensor, "*modes"]:
        """The symbol ``i k_m`` of the derivative along axis ``m``, shaped to broadcast."""
        return 1j * self.wavenumbers[m]

    def mean_product(self, a: Coefficients, b: Coefficients) -> Float[Tensor, " ..."]:
        """The mean of the product of two fields (Parseval), over the modes alone."""
        product = torch.view_as_real(a) * torch.view_as_real(b)
        return self.pencils.total((product.sum(-1) * self.multiplicity).sum(self.axes))

    def mirrored(self, coefficients: Coefficients, *, average: bool, scale: float = 0.5) -> Coefficients:
        """`mirror_modes` of the modes that are held: a mode and its mirror image always are together."""
        return mirror_modes(
            coefficients, self.num_axes, average=average, scale=scale, first=[first for first, _ in self.ranges]
        )

    def held(self, coefficients: Coefficients) -> Coefficients:
        """The modes that this process holds, of the coefficients of a whole field."""
        for m in range(1, self.num_axes):
            coefficients = self.pencils.modes_of(coefficients.movedim(self.axes[m], -1), m).movedim(-1, self.axes[m])
        return coefficients

    def values(self, coefficients: Coefficients, shape: Sequence[int]) -> Values:
        """The field at the points ``j L / S`` of a grid of ``shape``, which must resolve the modes."""
        self._check(shape)
        if coefficients.is_cuda and self.pencils.is_whole:
            return self._values_at_once(coefficients, shape)
        result = coefficients
        for m, (axis, size, cutoff) in enumerate(zip(self.axes[:-1], shape, self.cutoff, strict=False)):
            result = _widen(result.movedim(axis, -1), size, cutoff)
            result = transform(torch.fft.ifft, result, -1, "forward").movedim(-1, axis)
            result = self.pencils.to_points(result, m, self._count(m + 1))
        kept = self.cutoff[-1] + 1
        padded = result.new_empty((*result.shape[:-1], shape[-1] // 2 + 1))
        padded[..., :kept] = result
        padded[..., kept:] = 0
        return transform(torch.fft.irfft, padded, -1, "forward", shape[-1])

    def coefficients(self, values: Values, shape: Sequence[int] | None = None) -> Coefficients:
        """The coefficients of a field on a uniform grid; modes beyond the cut are dropped.

        ``shape`` is that of the whole grid, where ``values`` are those of a part of it.
        """
        whole = tuple(values.shape[-self.num_axes :] if shape is None else shape)
        self._check(whole)
        if shape is None and not self.pencils.is_whole:
            raise TypeError("give the shape of the whole grid: these values are those of a part of it")
        if values.is_cuda and self.pencils.is_whole:
            return self._coefficients_at_once(values)
        result = transform(torch.fft.rfft, values, -1, "forward").narrow(-1, 0, self.cutoff[-1] + 1)
        for m in reversed(range(self.num_axes - 1)):
            axis, cutoff = self.axes[m], self.cutoff[m]
            result = self.pencils.to_modes(result, m, whole[m])
            result = transform(torch.fft.fft, result, axis, "forward")
            result = _narrow(result, axis, cutoff, following=axis - 1 if m else None)
        return result

    def _count(self, m: int) -> int:
        """Modes of an axis, of all processes together."""
        return self.cutoff[m] + 1 if m == self.num_axes - 1 else 2 * self.cutoff[m] + 1

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


def transform(
    function: Callable[..., Tensor], x: Tensor, axis: int, norm: str | None = None, size: int | None = None
) -> Tensor:
    """A transform along one axis, such as ``torch.fft.fft``, which may be given no lines at all.

    On a CPU the bits of a line depend on how lines lie in memory and on whether there is one or several. So that those
    of a field do not depend on its batch, lines are made contiguous, and a single one is transformed twice.
    """
    if not x.numel():
        line = function(x.new_zeros(x.shape[axis]), n=size, norm=norm)
        return line.new_empty((*x.movedim(axis, -1).shape[:-1], len(line))).movedim(-1, axis)
    if x.is_cuda:
        return function(x, n=size, dim=axis, norm=norm)
    lines = x.movedim(axis, -1).contiguous()
    if lines.numel() == lines.shape[-1]:
        return function(torch.stack((lines, lines)), n=size, dim=-1, norm=norm)[0].movedim(-1, axis)
    return function(lines, n=size, dim=-1, norm=norm).movedim(-1, axis)


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


def resample(values: Values, num_axes: int, shape: Sequence[int], grid: Grid | None = None) -> Values:
    """A periodic field on another uniform grid: its spectrum truncated, or continued by zeros.

    The Nyquist mode of an even grid has no sign and is dropped when the size changes. ``grid`` is what the values are
    on, where that is a part; the result is this process's part of the other grid.
    """
    old = tuple(values.shape[-num_axes:]) if grid is None else grid.whole.shape
    if old == tuple(shape):
        return values
    cutoff = [min(a, b) for a, b in zip(full_cutoff(old), full_cutoff(shape), strict=True)]
    pencils = WHOLE if grid is None else pencils_of(grid)
    spectrum = Spectrum([1.0] * num_axes, cutoff, dtype=values.dtype, device=values.device, pencils=pencils)
    return spectrum.values(spectrum.coefficients(values, old), tuple(shape))


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
        turned = transform(torch.fft.rfft, values, self.axis) * factor
        return transform(torch.fft.irfft, turned, self.axis, size=self.size)
