"""Elliptic problems on tensor grids: direct solves for constant coefficients, conjugate gradients for others.

Fields are ``(batch, *points)``; ``spacing`` holds the step of each axis.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from factformer.numerics.trigonometric import (
    cosine_transform,
    inverse_cosine_transform,
    second_difference_eigenvalues,
    sine_transform,
)

Scalar = Float[Tensor, "batch *points"]
Operator = Callable[[Tensor], Tensor]
Transform = Callable[[Tensor, int], Tensor]


def dirichlet_poisson(
    shape: Sequence[int], spacing: Sequence[float], *, dtype: torch.dtype, device: torch.device | str
) -> Operator:
    """The exact inverse of ``-Σ_m δ_m²/h_m²`` on inner nodes, with zeros beyond them (sine transforms)."""
    inverse = 1 / _eigenvalues(shape, spacing, "sine", dtype, device)
    return _in_modes(sine_transform, inverse, sine_transform)


def neumann_poisson(
    shape: Sequence[int], spacing: Sequence[float], *, dtype: torch.dtype, device: torch.device | str
) -> Operator:
    """The exact inverse of ``-Σ_m δ_m²/h_m²`` on cells with zero flux through the walls (cosine transforms).

    The mean has no inverse: it is taken to zero.
    """
    eigenvalues = _eigenvalues(shape, spacing, "cosine", torch.float64, device)
    eigenvalues.flatten()[0] = torch.inf
    inverse = (1 / eigenvalues).to(dtype)
    return _in_modes(cosine_transform, inverse, inverse_cosine_transform)


def _in_modes(
    there: Callable[[Tensor, int], Tensor], factors: Tensor, back: Callable[[Tensor, int], Tensor]
) -> Operator:
    """The operator that multiplies each mode by its factor."""
    axes = range(-factors.ndim, 0)

    def apply(values: Tensor) -> Tensor:
        for axis in axes:
            values = there(values, axis)
        values = values * factors
        for axis in axes:
            values = back(values, axis)
        return values

    return apply


def face_means(coefficient: Scalar, axis: int, harmonic: bool = False) -> Scalar:
    """Means of neighbouring nodes along ``axis``: arithmetic, or harmonic as two resistances in a row."""
    size = coefficient.shape[axis]
    low, high = coefficient.narrow(axis, 0, size - 1), coefficient.narrow(axis, 1, size - 1)
    return 2 * low * high / (low + high) if harmonic else 0.5 * (low + high)


def divergence_form(coefficient: Scalar, spacing: Sequence[float], harmonic: bool = False) -> Operator:
    """``u → -∇·(a ∇u)`` on the inner nodes with ``u = 0`` on the boundary, second order in the spacing.

    ``coefficient`` holds ``a`` on all nodes, boundary included; ``u`` the inner nodes alone.
    """
    num_axes = len(spacing)
    diagonal = coefficient.new_zeros((len(coefficient), *(size - 2 for size in coefficient.shape[1:])))
    couplings = []
    for m, step in enumerate(spacing):
        axis = m + 1
        faces = face_means(coefficient, axis, harmonic) / step**2
        for other in range(1, num_axes + 1):
            if other != axis:
                faces = faces.narrow(other, 1, faces.shape[other] - 2)
        inner = faces.shape[axis] - 1
        diagonal = diagonal + faces.narrow(axis, 0, inner) + faces.narrow(axis, 1, inner)
        couplings.append((axis, -faces.narrow(axis, 1, inner - 1)))

    def apply(values: Tensor) -> Tensor:
        result = diagonal * values
        for axis, coupling in couplings:
            count = coupling.shape[axis]
            result.narrow(axis, 0, count).addcmul_(coupling, values.narrow(axis, 1, count))
            result.narrow(axis, 1, count).addcmul_(coupling, values.narrow(axis, 0, count))
        return result

    return apply


def conjugate_gradients(
    operator: Operator,
    right: Scalar,
    preconditioner: Operator,
    *,
    tolerance: float = 1e-8,
    max_iterations: int = 500,
) -> tuple[Scalar, Float[Tensor, " batch"]]:
    """Solve ``A u = b`` for each sample of a batch; returns ``u`` and ``|b - A u| / |b|``.

    ``A`` and the preconditioner are symmetric and positive. A sample stands still once it has reached the
    tolerance, so that it does not depend on the others; whether all have is looked at every fourth iteration,
    so as not to wait for the device. After ``max_iterations`` the caller looks at the residuals that come back.
    """
    axes = tuple(range(1, right.ndim))
    view = (-1, *[1] * len(axes))
    tiny = torch.finfo(right.dtype).tiny

    def dot(a: Tensor, b: Tensor) -> Tensor:
        return (a.flatten(1) * b.flatten(1)).sum(1)

    goal = tolerance**2 * dot(right, right)
    solution = torch.zeros_like(right)
    residual = right.clone()
    direction = preconditioner(residual)
    product = dot(residual, direction)
    done = torch.zeros_like(product, dtype=torch.bool)
    for iteration in range(1, max_iterations + 1):
        image = operator(direction)
        length = torch.where(done, 0, product / dot(direction, image).clamp_min(tiny))
        solution.addcmul_(length.view(view), direction)
        residual.addcmul_(-length.view(view), image)
        done = dot(residual, residual) <= goal
        if iteration % 4 == 0 and bool(done.all()):
            break
        improved = preconditioner(residual)
        previous, product = product, dot(residual, improved)
        direction = improved.addcmul(direction, (product / previous.clamp_min(tiny)).view(view))
    residual = right - operator(solution)
    return solution, (dot(residual, residual) / dot(right, right).clamp_min(tiny)).sqrt()


class Inverse(torch.autograd.Function):
    """``u = A(a)⁻¹ b`` for a symmetric ``A``, with the gradient by ``a`` from one more solve.

    For a function J of u let ``A λ = ∂J/∂u``; then ``∂J/∂a = -λ · (∂A/∂a) u``. Called with ``a``, ``b``, ``build`` that
    makes the operator ``A`` of ``a``, and ``solve(A, b)``. What an iteration does on its way is not recorded.
    """

    @staticmethod
    def forward(
        ctx: Any,
        coefficient: Tensor,
        right: Tensor,
        build: Callable[[Tensor], Operator],
        solve: Callable[[Operator, Tensor], Tensor],
    ) -> Tensor:
        solution = solve(build(coefficient), right)
        ctx.save_for_backward(coefficient, solution)
        ctx.build, ctx.solve = build, solve
        return solution

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        coefficient, solution = ctx.saved_tensors
        adjoint = ctx.solve(ctx.build(coefficient), gradient.contiguous())
        with torch.enable_grad():
            variable = coefficient.detach().requires_grad_()
            image = ctx.build(variable)(solution)
        (slope,) = torch.autograd.grad(image, variable, -adjoint)
        return slope, None, None, None


def _eigenvalues(
    shape: Sequence[int], spacing: Sequence[float], kind: str, dtype: torch.dtype, device: torch.device | str
) -> Tensor:
    total = torch.zeros(tuple(shape), dtype=torch.float64, device=device)
    for m, (size, step) in enumerate(zip(shape, spacing, strict=True)):
        view = [1] * len(shape)
        view[m] = size
        total += second_difference_eigenvalues(size, step, kind, torch.float64, device).reshape(view)
    return total.to(dtype)
