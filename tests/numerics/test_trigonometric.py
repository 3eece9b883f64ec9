"""Sine and cosine transforms against scipy, in both ways of computing them."""

import pytest
import scipy.fft
import torch

from factformer.numerics import trigonometric
from factformer.numerics.trigonometric import (
    cosine_transform,
    inverse_cosine_transform,
    multiply_axis,
    second_difference_eigenvalues,
    sine_transform,
)


@pytest.fixture(params=["matrix", "fft"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(trigonometric, "LONGEST_MATRIX", 256 if request.param == "matrix" else 0)
    return str(request.param)


@pytest.mark.parametrize("shape", [(2, 7), (1, 8, 5), (2, 3, 9, 4)])
def test_transforms_match_scipy_along_every_axis(way: str, shape: tuple[int, ...]) -> None:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for axis in range(1, len(shape)):
        for ours, theirs, kind in (
            (sine_transform, scipy.fft.dst, 1),
            (cosine_transform, scipy.fft.dct, 2),
            (inverse_cosine_transform, scipy.fft.dct, 3),
        ):
            expected = torch.from_numpy(theirs(values.numpy(), kind, axis=axis, norm="ortho"))
            torch.testing.assert_close(ours(values, axis), expected)
            torch.testing.assert_close(ours(values, axis - len(shape)), expected)


def test_transforms_are_inverse(way: str) -> None:
    values = torch.randn(3, 11, 6, dtype=torch.float64)
    torch.testing.assert_close(sine_transform(sine_transform(values, 1), 1), values)
    torch.testing.assert_close(inverse_cosine_transform(cosine_transform(values, 1), 1), values)


@pytest.mark.parametrize("kind", ["sine", "cosine"])
def test_eigenvalues_belong_to_second_differences(kind: str) -> None:
    size, spacing = 9, 0.3
    operator = torch.diag(torch.full((size,), 2.0)) - torch.diag(torch.ones(size - 1), 1)
    operator = operator - torch.diag(torch.ones(size - 1), -1)
    if kind == "cosine":
        operator[0, 0] = operator[-1, -1] = 1
    expected = torch.linalg.eigvalsh(operator.double() / spacing**2)
    ours = second_difference_eigenvalues(size, spacing, kind, torch.float64)
    torch.testing.assert_close(ours.sort().values, expected, atol=1e-12, rtol=1e-12)


def test_multiply_axis_contracts_the_named_axis() -> None:
    values, matrix = torch.randn(2, 3, 4, 5), torch.randn(6, 3)
    torch.testing.assert_close(multiply_axis(matrix, values, 1), torch.einsum("ij,bjkl->bikl", matrix, values))
    matrix = torch.randn(6, 5)
    torch.testing.assert_close(multiply_axis(matrix, values, -1), torch.einsum("ij,bklj->bkli", matrix, values))
    matrix = torch.randn(6, 4)
    torch.testing.assert_close(multiply_axis(matrix, values, 2), torch.einsum("ij,bkjl->bkil", matrix, values))
