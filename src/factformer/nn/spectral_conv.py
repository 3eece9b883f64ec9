"""Spectral convolution: a learned matrix for each kept Fourier mode (Li et al. 2020).

    (K u)(x) = Σ_k R(k) û(k) e^{ikx},   û = Fourier transform of u along the chosen axes

All corners of the spectrum are kept: frequencies 0 … M-1 and -M … -1 along every axis but the last, whose
negative half follows from the field being real.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from factformer.errors import UserError
from factformer.grid import Grid
from factformer.nn.masks import Mask


class SpectralConvolution(nn.Module):
    """Multiply the modes of ``u`` along the grid axes ``axes`` by learned complex matrices.

    ``modes`` holds the number of frequencies kept per axis. The weights, one real tensor whose last dimension
    is (real, imaginary), are indexed by frequency in FFT order: ``0, …, M-1, -M, …, -1`` along all axes but
    the last one and ``0, …, M-1`` along that. On a grid too coarse for ``modes``, the frequencies it resolves
    are used; the Nyquist frequency of an even size is not among them: its sign, and so its weight, is
    ambiguous.
    """

    def __init__(self, axes: Sequence[int], modes: Sequence[int], dim_in: int, dim_out: int) -> None:
        super().__init__()
        if len(axes) != len(modes) or min(modes) < 1:
            raise UserError(f"give one positive number of modes per axis, got {tuple(modes)} for axes {axes}")
        self.axes = tuple(axes)
        self.modes = tuple(modes)
        shape = [*(2 * count for count in modes[:-1]), modes[-1], dim_in, dim_out, 2]
        self.weight = nn.Parameter(torch.empty(shape))
        # Glorot: real and imaginary parts share the variance 2 / (fan in + fan out).
        nn.init.normal_(self.weight, std=math.sqrt(1 / (dim_in + dim_out)))

    def forward(self, u: Float[Tensor, "batch *grid dim_in"]) -> Float[Tensor, "batch *grid dim_out"]:
        # Half precision has no FFT of general sizes and too few digits for one: float32 under autocast too.
        with torch.autocast(u.device.type, enabled=False):
            working = u if u.dtype == torch.float64 else u.float()
            return self._convolve(working).to(u.dtype)

    def _convolve(self, u: Tensor) -> Tensor:
        *full, last = (m + 1 for m in self.axes)
        sizes = {dim: u.shape[dim] for dim in (*full, last)}
        weight = torch.view_as_complex(self.weight.to(u.dtype))

        # Transform axis by axis and cut before the next one: later transforms only see the kept modes.
        num_kept = min(self.modes[-1], (sizes[last] + 1) // 2)
        modes = torch.fft.rfft(u, dim=last).narrow(last, 0, num_kept)
        weight = weight.narrow(len(full), 0, num_kept)
        splits = {}
        for position, dim in enumerate(full):
            count, size = self.modes[position], sizes[dim]
            splits[dim] = positive, negative = min(count, (size + 1) // 2), min(count, (size - 1) // 2)
            modes = torch.fft.fft(modes, dim=dim)
            if positive + negative < size:
                modes = _ends(modes, dim, positive, negative)
            if positive + negative < 2 * count:
                weight = _ends(weight, position, positive, negative)

        front = range(len(self.axes))
        rows = modes.movedim((*full, last), tuple(front))
        product = rows.flatten(len(front), -2) @ weight
        modes = product.unflatten(len(front), rows.shape[len(front) : -1])
        modes = modes.movedim(tuple(front), (*full, last))

        for dim in reversed(full):
            positive, negative = splits[dim]
            num_cut = sizes[dim] - positive - negative
            gap = modes.new_zeros([*modes.shape[:dim], num_cut, *modes.shape[dim + 1 :]])
            parts = [modes.narrow(dim, 0, positive), gap, modes.narrow(dim, positive, negative)]
            modes = torch.fft.ifft(torch.cat(parts, dim=dim), dim=dim)
        result: Tensor = torch.fft.irfft(modes, n=sizes[last], dim=last)
        return result


class DomainPadding:
    """Continues a field by zeros beyond the end of its non-periodic axes, and cuts it back.

    A Fourier series takes the field for periodic; the gap keeps the two walls apart. It is the ``fraction``
    of the length of the axis whatever the resolution, so that the padded box, and with it the meaning of
    each mode, is the same on every grid.
    """

    def __init__(self, fraction: float) -> None:
        self.fraction = fraction

    def widths(self, grid: Grid) -> list[int]:
        """Number of points added at the end of each axis."""
        result = []
        for m, (size, wraps) in enumerate(zip(grid.shape, grid.periodic, strict=True)):
            # Nodes span S - 1 intervals: the S-th is the first of the gap.
            num_intervals = size if grid.points[m] == "cells" and grid.is_uniform(m) else size - 1
            # Whole points: the gap is never narrower than asked for, but for rounding.
            width = math.ceil(num_intervals * (1 + self.fraction) - 1e-6) - size
            result.append(0 if wraps or self.fraction == 0 else max(1, width))
        return result

    def extend(self, u: Float[Tensor, "batch *grid dim"], grid: Grid) -> Float[Tensor, "batch *padded dim"]:
        ends = self._ends(grid)
        return torch.nn.functional.pad(u, [0, 0, *ends]) if any(ends) else u

    def extend_mask(self, mask: Mask, grid: Grid) -> Bool[Tensor, "batch *padded"]:
        """The mask of the padded box: the gap is no wall, as layers write into it."""
        ends = self._ends(grid)
        return torch.nn.functional.pad(mask, ends, value=True) if any(ends) else mask

    def _ends(self, grid: Grid) -> list[int]:
        ends: list[int] = []
        for width in reversed(self.widths(grid)):
            ends += [0, width]
        return ends

    def crop(self, u: Float[Tensor, "batch *padded dim"], grid: Grid) -> Float[Tensor, "batch *grid dim"]:
        for m, size in enumerate(grid.shape):
            u = u.narrow(m + 1, 0, size)
        return u


def require_even_spacing(grid: Grid, model: str) -> None:
    """Refuse a grid on which a discrete Fourier transform is not a Fourier series."""
    for m in range(grid.num_axes):
        if not grid.is_even(m):
            raise UserError(f"{model} needs evenly spaced axes and axis {m} is not; use factformer or linear_attention")


def _ends(x: Tensor, dim: int, first: int, last: int) -> Tensor:
    return torch.cat([x.narrow(dim, 0, first), x.narrow(dim, x.shape[dim] - last, last)], dim=dim)
