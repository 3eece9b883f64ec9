"""Normalisation of groups of channels over the whole domain, with the grid's quadrature weights."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from factformer.errors import UserError
from factformer.grid import Grid
from factformer.nn.grid_tables import TableCache
from factformer.nn.masks import Mask, inside


def domain_weights(grid: Grid) -> Float[Tensor, "*grid"] | None:
    """Product of the axes' quadrature weights; ``None`` where the quadrature is a plain mean."""
    if all(grid.equal_weights(m) for m in range(grid.num_axes)):
        return None
    weights = torch.ones((), dtype=torch.float64)
    for m in range(grid.num_axes):
        weights = weights[..., None] * grid.weights(m)
    return weights


def domain_normalize(
    values: Float[Tensor, "batch group *grid channel"],
    weights: Float[Tensor, "*grid"] | Float[Tensor, "batch *grid"] | None,
    eps: float,
    grid: Grid | None = None,
) -> Float[Tensor, "batch group *grid channel"]:
    """Zero mean and unit variance of each group over the domain and its channels; statistics in float32.

    The weights of a masked domain are those of each sample; values outside must be finite. The statistics of a part
    of a ``grid`` are those of all of it.
    """
    if weights is None and values.device.type == "cpu":  # a GPU would give each group to one of its multiprocessors
        # Points count alike, so they are taken in the order in which they lie: a turned tensor is not copied first.
        order = [0, 1, *sorted(range(2, values.ndim), key=values.stride, reverse=True)]
        laid = values.permute(order)
        with torch.autocast(values.device.type, enabled=False):
            normalized = functional.layer_norm(laid, laid.shape[2:], eps=eps)
        return normalized.permute([order.index(axis) for axis in range(values.ndim)])
    working = values if values.dtype == torch.float64 else values.float()
    inner = tuple(range(2, values.ndim))
    if weights is not None and weights.ndim == len(inner):  # those of each sample hold for all of its groups
        weights = weights.unsqueeze(1)

    def average(x: Tensor) -> Tensor:
        if weights is None:
            return x.mean(inner, keepdim=True)
        sums = (x * (weights / x.shape[-1]).unsqueeze(-1)).sum(inner, keepdim=True)
        return sums if grid is None else grid.total(sums, range(grid.num_axes))

    centred = working - average(working)
    return (centred * (average(centred.square()) + eps).rsqrt()).to(values.dtype)


class DomainNorm(nn.Module):
    """Group normalisation of channel-last fields over the domain (Wu & He 2018, weighted by the quadrature)."""

    def __init__(self, num_groups: int, dim: int, eps: float = 1e-5) -> None:
        super().__init__()
        if dim % num_groups:
            raise UserError(f"{dim} channels do not divide into {num_groups} normalisation groups")
        self.num_groups = num_groups
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))
        self.bias = nn.Parameter(torch.zeros(dim))
        self.tables = TableCache()

    def forward(
        self, x: Float[Tensor, "batch *grid dim"], grid: Grid, mask: Mask | None = None
    ) -> Float[Tensor, "batch *grid dim"]:
        """The normalised field; the points of a ``mask`` alone count, and values outside of it are not read."""
        weights = cached_domain_weights(self.tables, grid, x, mask)
        grouped = inside(x, mask).unflatten(-1, (self.num_groups, -1)).movedim(-2, 1)
        normalized = domain_normalize(grouped, weights, self.eps, grid).movedim(1, -2).flatten(-2)
        return (normalized * self.weight + self.bias).to(x.dtype)


def cached_domain_weights(tables: TableCache, grid: Grid, like: Tensor, mask: Mask | None = None) -> Tensor | None:
    """`domain_weights` on the device of ``like``; with a mask ``w χ / Σ w χ`` of each sample, ``(batch, *grid)``."""

    def make() -> tuple[Tensor, ...]:
        weights = domain_weights(grid)
        return () if weights is None else (weights,)

    cached = tables.get("domain", grid, 0, like, make)
    weights = cached[0] if cached else None
    if mask is None:
        return weights
    measure = mask.to(torch.float64 if like.dtype == torch.float64 else torch.float32)
    measure = measure if weights is None else measure * weights
    return measure / grid.total(measure.sum(tuple(range(1, mask.ndim)), keepdim=True), range(grid.num_axes))
