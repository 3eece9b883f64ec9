"""Numbers that describe an attention kernel: singular-value energy, rank, stationarity, symmetry.

The energy of a kernel is the sum of its singular values, ``b_k = Σ_{i≤k} σ_i / Σ_i σ_i`` its normalised
cumulative form (paper §4.3).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from factformer.grid import Grid

LinearMap = Callable[[Tensor], Tensor]


def cumulative_energy(singular_values: Float[Tensor, "... rank"]) -> Float[Tensor, "... rank"]:
    """``b_k`` of singular values in descending order; all ones for a kernel that is zero."""
    total = singular_values.sum(-1, keepdim=True)
    curve = singular_values.cumsum(-1) / total.clamp_min(torch.finfo(total.dtype).tiny)
    return torch.where(total > 0, curve, torch.ones_like(curve))


def fraction_for_energy(cumulative: Float[Tensor, "rank"], share: float = 0.9) -> float:
    """The fraction of singular values, largest first, that holds ``share`` of the energy."""
    below = int((cumulative < share - 1e-9).sum())  # round-off must not ask for one more than the rank
    return min(below + 1, len(cumulative)) / len(cumulative)


def randomized_singular_values(
    apply: LinearMap,
    apply_transposed: LinearMap,
    num_columns: int,
    rank: int,
    generator: torch.Generator,
    *,
    oversampling: int = 10,
    power_iterations: int = 2,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> Float[Tensor, "rank"]:
    """The ``rank`` largest singular values of a matrix known only by its products (Halko et al. 2011).

    ``apply`` takes ``(num_columns, r)`` to ``A x`` and ``apply_transposed`` gives ``Aᵀ y``; nothing larger
    than ``max(shape) × (rank + oversampling)`` is formed. Orthonormalising between the products keeps the
    small singular values from drowning in round-off.
    """
    width = min(rank + oversampling, num_columns)
    probe = torch.randn(num_columns, width, generator=generator, dtype=dtype).to(device)
    basis = _orthonormal(apply(probe))
    for _ in range(power_iterations):
        basis = _orthonormal(apply(_orthonormal(apply_transposed(basis))))
    values: Tensor = torch.linalg.svdvals(apply_transposed(basis))
    return values[:rank]


def product_singular_values(
    queries: Float[Tensor, "points kernel"],
    keys: Float[Tensor, "points kernel"],
    num_components: int,
    generator: torch.Generator,
) -> Float[Tensor, "component"]:
    """The largest singular values of ``Q Kᵀ`` without forming it; those beyond its rank are exactly zero."""
    rank = min(num_components, queries.shape[1], queries.shape[0])
    values = randomized_singular_values(
        lambda x: queries @ (keys.mT @ x),
        lambda y: keys @ (queries.mT @ y),
        keys.shape[0],
        rank,
        generator,
        dtype=queries.dtype,
        device=queries.device,
    )
    result = values.new_zeros(min(num_components, queries.shape[0]))
    result[: len(values)] = values
    return result


def stationarity(kernel: Float[Tensor, "... points points"], grid: Grid, m: int) -> Float[Tensor, "..."]:
    """How much of a kernel depends only on ``x_i - x_j``: 1 if Toeplitz or circulant, about 0 for noise.

    The quadrature weights are divided out, then the variance of ``κ_ij`` is compared with what is left of it
    when the best function of the displacement (the mean over each diagonal) is taken away. Both are per
    degree of freedom, since 2S - 1 means explain a little of any S × S matrix; less than 0 is given as 0.
    """
    x = grid.axis(m, device=kernel.device)
    values = (kernel.double() / grid.weights(m, device=kernel.device)).flatten(-2)
    spacing = (x[-1] - x[0]) / (len(x) - 1)
    steps = ((x[:, None] - x[None, :]) / spacing).round().long().flatten()
    displacement, group = steps.unique(return_inverse=True)
    counts = torch.bincount(group, minlength=len(displacement)).double()
    sums = values.new_zeros(*values.shape[:-1], len(displacement)).index_add_(-1, group, values)
    count = values.shape[-1]
    residual = (values - (sums / counts)[..., group]).square().sum(-1) / max(count - len(displacement), 1)
    variance = (values - values.mean(-1, keepdim=True)).square().sum(-1) / (count - 1)
    constant = variance <= 1e-20 * values.square().mean(-1)
    ratio = residual / torch.where(constant, torch.ones_like(variance), variance)
    return torch.where(constant, torch.ones_like(ratio), (1 - ratio).clamp(0, 1))


def symmetry(kernel: Float[Tensor, "... points points"]) -> Float[Tensor, "..."]:
    """Share of the energy in the symmetric part: 1 symmetric, 0 antisymmetric, ½ for noise."""
    part = (0.5 * (kernel + kernel.mT)).square().sum((-1, -2))
    total = kernel.square().sum((-1, -2))
    share = part / total.clamp_min(torch.finfo(total.dtype).tiny)
    return torch.where(total > 0, share, torch.ones_like(share))


def _orthonormal(columns: Tensor) -> Tensor:
    basis: Tensor = torch.linalg.qr(columns).Q
    return basis
