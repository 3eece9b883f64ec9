"""Random fields: each sample is a function of its own generator, whatever the batch or the grid.

Noise is drawn for one shell of modes after another, from the largest scales down. A finer grid therefore
draws the same large scales and adds small ones to them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache

import torch
from jaxtyping import Complex, Float
from torch import Tensor

from factformer.grid import Grid
from factformer.numerics.mirror import Ranges, mirror_modes, shape_of, signed_indices, whole_ranges
from factformer.numerics.pencils import pencils_of
from factformer.numerics.spectral import Spectrum
from factformer.numerics.trigonometric import multiply_axis


def periodic_field(
    spectrum: Spectrum, amplitude: Float[Tensor, "*modes"], generators: Sequence[torch.Generator]
) -> Complex[Tensor, " batch *modes"]:
    """Coefficients of real fields with independent modes of variance ``E|f̂_k|² = amplitude_k²``."""
    noise = torch.stack([hermitian_noise(spectrum.cutoff, generator, spectrum.ranges) for generator in generators])
    complex_dtype = torch.complex128 if spectrum.dtype == torch.float64 else torch.complex64
    return noise.to(spectrum.device, complex_dtype) * amplitude.to(spectrum.device, spectrum.dtype)


def hermitian_noise(
    cutoff: Sequence[int], generator: torch.Generator, ranges: Ranges | None = None
) -> Complex[Tensor, "*modes"]:
    """Complex white noise of unit variance per mode, in the layout of `Spectrum`, for a real field.

    ``n_{-k} = conj n_k``; the mean mode is real and of unit variance too. With ``ranges``, as `Spectrum` has them, the
    modes of a part alone.
    """
    own = ranges or whole_ranges(cutoff)
    noise = torch.empty(math.prod(shape_of(own)), dtype=torch.complex64)
    for count, here, drawn in _shells(tuple(cutoff), own):
        draws = torch.randn(count, 2, generator=generator)
        noise[here] = torch.view_as_complex(draws[drawn]) * 0.5**0.5
    noise = noise.reshape(shape_of(own))
    return mirror_modes(noise, len(cutoff), average=True, scale=0.5**0.5, first=[first for first, _ in own])


def uniform_modes(
    cutoff: Sequence[int], count: int, generators: Sequence[torch.Generator], ranges: Ranges | None = None
) -> Float[Tensor, " batch count *modes"]:
    """``count`` numbers of [0, 1) for every mode in the layout of `Spectrum`, float64; with ``ranges`` of a part."""
    own = ranges or whole_ranges(cutoff)
    result = torch.empty((len(generators), count, math.prod(shape_of(own))), dtype=torch.float64)
    for rows, generator in zip(result, generators, strict=True):
        for size, here, drawn in _shells(tuple(cutoff), own):
            draws = torch.rand(size, count, generator=generator, dtype=torch.float64)
            rows[:, here] = draws[drawn].T
    return result.reshape(len(generators), count, *shape_of(own))


def truncated_series(grid: Grid, generator: torch.Generator, cutoff: int = 5, fine: int = 64) -> Float[Tensor, "*grid"]:
    """A random Fourier series of zero mean whose largest value is 1, float64; alike on every grid that resolves it.

    Modes up to ``cutoff`` along each axis have amplitudes uniform in (-1, 1) and random phases, as APEBench's starts.
    The largest value is that on ``fine`` points per axis. Of a part of a grid, the values on that part.
    """
    shape = grid.whole.shape
    number = min(cutoff, *((size - 1) // 2 for size in shape))
    cut = (number,) * grid.num_axes
    amplitude, phase = uniform_modes(cut, 2, [generator])[0]
    waves = mirror_modes((2 * amplitude - 1) * torch.exp(2j * math.pi * phase), grid.num_axes, average=False)
    waves.flatten()[0] = 0
    spectrum = Spectrum([1.0] * grid.num_axes, cut)
    largest = spectrum.values(waves, (fine if grid.num_axes < 3 else 32,) * grid.num_axes).abs().max()
    here = Spectrum([1.0] * grid.num_axes, cut, pencils=pencils_of(grid))
    return here.values(here.held(waves), shape) / largest


def _shells(cutoff: tuple[int, ...], ranges: Ranges) -> Iterator[tuple[int, Tensor, Tensor]]:
    """For each shell of modes: how many it has, where those of the part are in it, and where in the layout these lie.

    Numbers are drawn shell by shell for all modes, so that a part gets those that it has in the whole; no process holds
    more of them than one shell and its own.
    """
    find = _cached_shell_order if ranges == whole_ranges(cutoff) else _shell_order
    order, places, ends = find(cutoff, ranges)
    bounds = torch.searchsorted(places, torch.tensor([0, *ends])).tolist()
    for start, end, first, last in zip([0, *ends], ends, bounds, bounds[1:], strict=False):
        yield end - start, order[first:last], places[first:last] - start


def _shell_order(cutoff: tuple[int, ...], ranges: Ranges) -> tuple[Tensor, Tensor, list[int]]:
    """Modes of a part, sorted by shell ``max_m |k_m|`` and then by index: where they sit in the layout of the part,
    and their numbers in that order of all modes; and at which number each shell ends.

    Within a shell the order does not depend on the cut, nor does the size of a shell on cubic cuts.
    """
    shape = shape_of(ranges)
    signed = [signed_indices(*own, last=m == len(ranges) - 1) for m, own in enumerate(ranges)]
    views = [torch.Size([-1 if axis == m else 1 for axis in range(len(shape))]) for m in range(len(shape))]
    indices = [index.reshape(view) for index, view in zip(signed, views, strict=True)]
    shell = torch.zeros(shape, dtype=torch.long)
    for index in indices:
        shell = torch.maximum(shell, index.abs())

    def box(radius: Tensor, first_axis: int) -> Tensor:
        """Modes along the axes from ``first_axis`` on, none of whose indices is beyond ``radius``."""
        count = torch.ones_like(radius)
        for m, largest in enumerate(cutoff[first_axis:], start=first_axis):
            reach = radius.clamp(max=largest)
            count = count * (reach + 1 if m == len(cutoff) - 1 else 2 * reach + 1)
        return torch.where(radius < 0, 0, count)

    # Those of smaller shells, and of the same shell those that are smaller along the first axis in which they differ.
    number = box(shell - 1, 0)
    reached = torch.zeros(shape, dtype=torch.bool)
    for m, (index, largest) in enumerate(zip(indices, cutoff, strict=True)):
        behind, inside = box(shell, m + 1), box(shell - 1, m + 1)
        begin = torch.zeros_like(shell) if m == len(cutoff) - 1 else -shell.clamp(max=largest)
        smaller = index - begin
        # of these, the ones at -shell are on the shell by themselves, whatever follows
        edge = (begin == -shell) & (smaller > 0) & (shell > 0)
        number = number + smaller * torch.where(reached, behind, behind - inside) + edge * ~reached * inside
        reached = reached | (index.abs() == shell)
    ends = [int(end) for end in box(torch.arange(max(cutoff) + 1), 0)]
    places, order = number.flatten().sort()
    return order, places, ends


_cached_shell_order = lru_cache(maxsize=32)(_shell_order)


def neumann_field(
    grid: Grid,
    amplitude: Callable[[Float[Tensor, "*modes"]], Float[Tensor, "*modes"]],
    generators: Sequence[torch.Generator],
    *,
    dtype: torch.dtype,
    device: torch.device | str,
) -> Float[Tensor, " batch *grid"]:
    """``Σ_k amplitude(π²|k/L|²) ξ_k Π_m φ_{k_m}(x_m)`` with orthonormal cosines, of zero slope at the walls.

    ``φ_0 = 1`` and ``φ_k = √2 cos(π k x / L)``; as many modes per axis as points, without the constant one.
    Summed in float64, so that signs agree between devices.
    """
    modes = [torch.arange(size, dtype=torch.float64) for size in grid.shape]
    squared = torch.zeros(grid.shape, dtype=torch.float64)
    for m, index in enumerate(modes):
        view = [1] * grid.num_axes
        view[m] = len(index)
        squared += (math.pi * index / grid.extent[m]).square().reshape(view)
    scale = amplitude(squared).to(device)
    scale.flatten()[0] = 0
    bases = []
    for m, index in enumerate(modes):
        basis = torch.cos(math.pi / grid.extent[m] * grid.axis(m)[:, None] * index) * math.sqrt(2)
        basis[:, 0] = 1
        bases.append(basis.to(device))
    order, counts = _box_order(grid.shape)
    fields = []
    for generator in generators:
        noise = torch.empty(order.numel())
        noise[order] = torch.cat([torch.randn(count, generator=generator) for count in counts])
        field = noise.reshape(grid.shape).to(device).double() * scale
        for m, basis in enumerate(bases):
            field = multiply_axis(basis, field, m)
        fields.append(field.to(dtype))
    return torch.stack(fields)


@lru_cache(maxsize=32)
def _box_order(shape: tuple[int, ...]) -> tuple[Tensor, list[int]]:
    """Where the modes of indices ``0 … S_m - 1`` sit, sorted by shell and then by index, and the sizes of shells."""
    axes = torch.meshgrid(*[torch.arange(size) for size in shape], indexing="ij")
    indices = [index.flatten() for index in axes]
    shell = torch.stack(indices).amax(0)
    key = shell
    for index in indices:
        key = key * max(shape) + index
    return key.argsort(), torch.bincount(shell).tolist()
