"""Random fields: each sample is a function of its own generator, whatever the batch or the grid.

Noise is drawn for one shell of modes after another, from the largest scales down. A finer grid therefore
draws the same large scales and adds small ones to them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache

import torch
from jaxtyping import Complex, Float
from torch import Tensor

from factformer.grid import Grid
from factformer.numerics.spectral import Spectrum, mirror_modes
from factformer.numerics.trigonometric import multiply_axis


def periodic_field(
    spectrum: Spectrum, amplitude: Float[Tensor, "*modes"], generators: Sequence[torch.Generator]
) -> Complex[Tensor, " batch *modes"]:
    """Coefficients of real fields with independent modes of variance ``E|f̂_k|² = amplitude_k²``."""
    noise = torch.stack([hermitian_noise(spectrum.cutoff, generator) for generator in generators])
    complex_dtype = torch.complex128 if spectrum.dtype == torch.float64 else torch.complex64
    return noise.to(spectrum.device, complex_dtype) * amplitude.to(spectrum.device, spectrum.dtype)


def hermitian_noise(cutoff: Sequence[int], generator: torch.Generator) -> Complex[Tensor, "*modes"]:
    """Complex white noise of unit variance per mode, in the layout of `Spectrum`, for a real field.

    ``n_{-k} = conj n_k``; the mean mode is real and of unit variance too.
    """
    order, counts = _shell_order(tuple(cutoff))
    draws = torch.cat([torch.randn(count, 2, generator=generator) for count in counts])
    noise = torch.empty(len(order), dtype=torch.complex64)
    noise[order] = torch.view_as_complex(draws) * 0.5**0.5
    noise = noise.reshape(_modes_shape(cutoff))
    return mirror_modes(noise, len(cutoff), average=True, scale=0.5**0.5)


def uniform_modes(
    cutoff: Sequence[int], count: int, generators: Sequence[torch.Generator]
) -> Float[Tensor, " batch count *modes"]:
    """``count`` numbers of [0, 1) for every mode in the layout of `Spectrum`, float64."""
    order, counts = _shell_order(tuple(cutoff))
    result = torch.empty((len(generators), count, len(order)), dtype=torch.float64)
    for rows, generator in zip(result, generators, strict=True):
        draws = [torch.rand(size, count, generator=generator, dtype=torch.float64) for size in counts]
        rows[:, order] = torch.cat(draws).T
    return result.reshape(len(generators), count, *_modes_shape(cutoff))


def truncated_series(grid: Grid, generator: torch.Generator, cutoff: int = 5, fine: int = 64) -> Float[Tensor, "*grid"]:
    """A random Fourier series of zero mean whose largest value is 1, float64; alike on every grid that resolves it.

    Modes up to ``cutoff`` along each axis have amplitudes uniform in (-1, 1) and random phases, as APEBench's starts.
    The largest value is that on ``fine`` points per axis.
    """
    number = min(cutoff, *((size - 1) // 2 for size in grid.shape))
    cut = (number,) * grid.num_axes
    amplitude, phase = uniform_modes(cut, 2, [generator])[0]
    waves = mirror_modes((2 * amplitude - 1) * torch.exp(2j * math.pi * phase), grid.num_axes, average=False)
    waves.flatten()[0] = 0
    spectrum = Spectrum([1.0] * grid.num_axes, cut)
    largest = spectrum.values(waves, (fine if grid.num_axes < 3 else 32,) * grid.num_axes).abs().max()
    return spectrum.values(waves, grid.shape) / largest


def _modes_shape(cutoff: Sequence[int]) -> tuple[int, ...]:
    return (*(2 * k + 1 for k in cutoff[:-1]), cutoff[-1] + 1)


@lru_cache(maxsize=32)
def _shell_order(cutoff: tuple[int, ...]) -> tuple[Tensor, list[int]]:
    """Where the modes, sorted by shell ``max_m |k_m|`` and then by index, sit in the layout, and shell sizes.

    Within a shell the order does not depend on the cut, nor does the size of a shell on cubic cuts.
    """
    spectrum = Spectrum([1.0] * len(cutoff), cutoff)
    indices = [index.expand(spectrum.shape).flatten() for index in spectrum.indices]
    shell = torch.stack([index.abs() for index in indices]).amax(0)
    radix = 2 * max(cutoff) + 1
    key = shell
    for index in indices:
        key = key * radix + index + max(cutoff)
    return key.argsort(), torch.bincount(shell).tolist()


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
    """As `_shell_order`, for indices ``0 … S_m - 1``."""
    axes = torch.meshgrid(*[torch.arange(size) for size in shape], indexing="ij")
    indices = [index.flatten() for index in axes]
    shell = torch.stack(indices).amax(0)
    key = shell
    for index in indices:
        key = key * max(shape) + index
    return key.argsort(), torch.bincount(shell).tolist()
