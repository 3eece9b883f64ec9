"""Divergence-free projections, periodic and in a staggered box."""

import itertools
import math

import pytest
import torch

from factformer.grid import Grid
from factformer.numerics import staggered
from factformer.numerics.projection import (
    fourier_divergence,
    fourier_projection,
    staggered_divergence,
    staggered_projection,
)
from factformer.numerics.spectral import Spectrum, full_cutoff


@pytest.mark.parametrize("shape", [(12, 9), (8, 7, 10)])
def test_fourier_projection(shape: tuple[int, ...]) -> None:
    """Divergence at round-off, idempotent, orthogonal, gradients vanish and the mean stays."""
    num_axes = len(shape)
    spectrum = Spectrum([2 * math.pi] * num_axes, full_cutoff(shape))
    field = spectrum.coefficients(torch.randn(2, num_axes, *shape, dtype=torch.float64))
    once = fourier_projection(field, spectrum)
    assert fourier_divergence(once, spectrum).abs().max() < 1e-13
    torch.testing.assert_close(fourier_projection(once, spectrum), once)
    assert spectrum.mean_product(once, field - once).sum(1).abs().max() < 1e-13
    potential = spectrum.coefficients(torch.randn(2, *shape, dtype=torch.float64))
    gradient = torch.stack([spectrum.derivative(m) * potential for m in range(num_axes)], dim=1)
    assert fourier_projection(gradient, spectrum).abs().max() < 1e-13
    origin = (..., *[0] * num_axes)
    torch.testing.assert_close(once[origin], field[origin])


def random_faces(cells: tuple[int, ...], dtype: torch.dtype) -> list[torch.Tensor]:
    return [torch.randn(2, *(size - (m == c) for m, size in enumerate(cells)), dtype=dtype) for c in range(len(cells))]


@pytest.mark.parametrize("cells", [(9,), (8, 11), (7, 8, 5), (300, 4)])
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-12), (torch.float32, 1e-4)])
def test_staggered_projection(cells: tuple[int, ...], dtype: torch.dtype, bound: float) -> None:
    """Discrete divergence at round-off, with its 1/h; idempotent and orthogonal to gradients."""
    spacing = [8 / size for size in cells]
    project = staggered_projection(cells, spacing, dtype=dtype, device="cpu")
    faces = random_faces(cells, dtype)
    once = project(faces)
    assert staggered_divergence(once, spacing).abs().max() < bound / min(spacing)
    for a, b in zip(project(once), once, strict=True):
        torch.testing.assert_close(a, b, atol=bound, rtol=0)
    inner = sum(float(((a - b) * b).sum()) for a, b in zip(faces, once, strict=True))
    assert abs(inner) < bound * 1e2
    if len(cells) == 1:
        assert once[0].abs().max() < bound  # nothing can flow along a closed line


def test_staggered_operators_are_second_order() -> None:
    """Divergence and Laplacian of fields that vanish on the walls as the scheme assumes."""
    errors: dict[str, list[float]] = {"divergence": [], "laplacian": []}
    for size in (16, 32, 64):
        spacing = [1 / size] * 2
        faces = torch.arange(1, size, dtype=torch.float64) / size
        cells = Grid((size,), 1.0, periodic=False, points="cells").axis(0)
        u = torch.sin(math.pi * faces)[:, None] * torch.cos(cells)[None, :]
        v = torch.cos(cells)[:, None] * torch.sin(2 * math.pi * faces)[None, :]
        exact = math.pi * torch.cos(math.pi * cells)[:, None] * torch.cos(cells) + 2 * math.pi * torch.cos(cells)[
            :, None
        ] * torch.cos(2 * math.pi * cells)
        difference = staggered_divergence([u[None], v[None]], spacing)[0] - exact
        errors["divergence"].append(float(difference.square().mean().sqrt()))
        # zero at the ghost points, half a cell outside: the box of the ghost is longer by one cell
        length = 1 + 1 / size
        w = torch.sin(math.pi * faces)[:, None] * torch.sin(math.pi * (cells + 0.5 / size) / length)
        exact = -(math.pi**2) * (1 + 1 / length**2) * w
        difference = staggered.laplacian(w[None], spacing)[0] - exact
        errors["laplacian"].append(float(difference.square().mean().sqrt()))
    for name, values in errors.items():
        assert min(math.log2(a / b) for a, b in itertools.pairwise(values)) > 1.75, name


def test_staggered_positions() -> None:
    """Means along the right axes: a field that is linear in each coordinate comes out exact."""
    cells = (4, 5, 6)
    coordinates = [
        [torch.arange(size - (m == c), dtype=torch.float64) + (1.0 if m == c else 0.5) for m, size in enumerate(cells)]
        for c in range(3)
    ]
    velocity = [
        torch.stack(torch.meshgrid(*axes, indexing="ij"))[(c + 1) % 3][None] for c, axes in enumerate(coordinates)
    ]  # component c is the coordinate along the next axis
    at_cells = staggered.at_cells(velocity)
    own = torch.meshgrid(*coordinates[0], indexing="ij")
    here = staggered.at_faces(at_cells, velocity, 0)
    torch.testing.assert_close(here[0][0], own[1])
    torch.testing.assert_close(here[1][0][:, 1:-1], own[2][:, 1:-1])  # next to walls the wall's zero counts
    torch.testing.assert_close(here[2][0][..., 1:-1], own[0][..., 1:-1])
    lower = staggered.lower_faces(velocity[1], 1)
    assert lower.shape == (1, *cells)
    assert lower[:, :, 0].abs().max() == 0
    torch.testing.assert_close(lower[:, :, 1:], velocity[1])
