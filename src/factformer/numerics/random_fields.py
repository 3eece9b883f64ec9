"""Gaussian random fields: each sample is a function of its own generator, whatever the batch or the grid.

Noise is drawn for one shell of modes after another, from the largest scales down. A finer grid therefore
draws the same large scales and adds small ones to them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
from jaxtyping import Complex, Float
from torch import Tensor

from factformer.numerics.spectral import Spectrum


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
    shape = (*(2 * k + 1 for k in cutoff[:-1]), cutoff[-1] + 1)
    noise = torch.empty(len(order), dtype=torch.complex64)
    noise[order] = torch.view_as_complex(draws) * 0.5**0.5
    noise = noise.reshape(shape)
    plane = noise[..., 0]
    mirrored = plane.conj()
    if plane.ndim:
        axes = tuple(range(plane.ndim))
        mirrored = mirrored.flip(axes).roll((1,) * plane.ndim, axes)
    noise[..., 0] = (plane + mirrored) * 0.5**0.5
    return noise


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
