"""Divergence-free projections: the part of a vector field that is no gradient."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Complex, Float
from torch import Tensor

from factformer.numerics.elliptic import neumann_poisson
from factformer.numerics.spectral import Spectrum

Vector = Complex[Tensor, "batch component *modes"]


def fourier_divergence(vector: Vector, spectrum: Spectrum) -> Complex[Tensor, " batch *modes"]:
    """``k·v̂`` (the divergence without its factor i); components sit before the modes."""
    components = vector.unbind(-1 - spectrum.num_axes)
    total = spectrum.wavenumbers[0] * components[0]
    for wavenumber, component in zip(spectrum.wavenumbers[1:], components[1:], strict=True):
        total = total + wavenumber * component
    return total


def fourier_projection(vector: Vector, spectrum: Spectrum) -> Vector:
    """``v̂ - k (k·v̂)/|k|²``: the divergence-free part on a periodic box; the mean stays."""
    potential = fourier_divergence(vector, spectrum) * spectrum.inverse_squared
    components = vector.unbind(-1 - spectrum.num_axes)
    return torch.stack(
        [v - k * potential for k, v in zip(spectrum.wavenumbers, components, strict=True)],
        dim=-1 - spectrum.num_axes,
    )


def staggered_divergence(
    faces: Sequence[Float[Tensor, " batch *inner_faces"]], spacing: Sequence[float]
) -> Float[Tensor, " batch *cells"]:
    """Divergence on cells of face velocities. ``faces[m]`` holds the inner faces normal to axis ``m``, one
    fewer than cells along it; the walls let nothing through."""
    total: Tensor | None = None
    for m, (values, step) in enumerate(zip(faces, spacing, strict=True)):
        axis = m + 1
        wall = values.new_zeros(()).expand(*values.shape[:axis], 1, *values.shape[axis + 1 :])
        part = torch.cat([wall, values, wall], dim=axis).diff(dim=axis) / step
        total = part if total is None else total + part
    assert total is not None
    return total


def staggered_projection(
    cells: Sequence[int], spacing: Sequence[float], *, dtype: torch.dtype, device: torch.device | str
) -> Callable[[Sequence[Tensor]], list[Tensor]]:
    """The divergence-free part of face velocities in a closed box, exact: ``v - ∇p`` with ``∇²p = ∇·v``.

    The Neumann problem for ``p`` on cells is solved directly by cosine transforms. Round-off in ``p`` counts
    ``1/h²`` times in the divergence: in single precision a second pass takes it to round-off there too.
    """
    solve = neumann_poisson(cells, spacing, dtype=dtype, device=device)
    num_passes = 2 if dtype == torch.float32 else 1

    def project(faces: Sequence[Tensor]) -> list[Tensor]:
        result = list(faces)
        for _ in range(num_passes):
            negative_pressure = solve(staggered_divergence(result, spacing))
            result = [
                torch.add(values, negative_pressure.diff(dim=m + 1), alpha=1 / step)
                for m, (values, step) in enumerate(zip(result, spacing, strict=True))
            ]
        return result

    return project
