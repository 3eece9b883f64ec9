"""Normalisation of groups of channels over the whole domain, with the grid's quadrature weights."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from factformer.errors import UserError
from factformer.grid import Grid
from factformer.nn.grid_tables import TableCache


def domain_weights(grid: Grid) -> Float[Tensor, "*grid"] | None:
    """Product of the axes' quadrature weights; ``None`` where the quadrature is a plain mean."""
    if all(grid.equal_weights(m) for m in range(grid.num_axes)):
        return None
    weights = torch.ones((), dtype=torch.float64)
    for m in range(grid.num_axes):
        weights = weights[..., None] * grid.weights(m)
    return weights


def domain_normalize(
    values: Float[Tensor, "batch group *grid channel"], weights: Float[Tensor, "*grid"] | None, eps: float
) -> Float[Tensor, "batch group *grid channel"]:
    """Zero mean and unit variance of each group over the domain and its channels; statistics in float32."""
    if weights is None and values.device.type == "cpu":  # a GPU would give each group to one of its multiprocessors
        # Points count alike, so they are taken in the order in which they lie: a turned tensor is not copied first.
        order = [0, 1, *sorted(range(2, values.ndim), key=values.stride, reverse=True)]
        laid = values.permute(order)
        with torch.autocast(values.device.type, enabled=False):
            normalized = functional.layer_norm(laid, laid.shape[2:], eps=eps)
        return normalized.permute([order.index(axis) for axis in range(values.ndim)])
    working = values if values.dtype == torch.float64 else values.float()
    inner = tuple(range(2, values.ndim))

    def average(x: Tensor) -> Tensor:
        if weights is None:
            return x.mean(inner, keepdim=True)
        return (x * (weights / x.shape[-1]).unsqueeze(-1)).sum(inner, keepdim=True)

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

    def forward(self, x: Float[Tensor, "batch *grid dim"], grid: Grid) -> Float[Tensor, "batch *grid dim"]:
        weights = cached_domain_weights(self.tables, grid, x)
        grouped = x.unflatten(-1, (self.num_groups, -1)).movedim(-2, 1)
        normalized = domain_normalize(grouped, weights, self.eps).movedim(1, -2).flatten(-2)
        return (normalized * self.weight + self.bias).to(x.dtype)


def cached_domain_weights(tables: TableCache, grid: Grid, like: Tensor) -> Tensor | None:
    """`domain_weights` on the device of ``like``."""

    def make() -> tuple[Tensor, ...]:
        weights = domain_weights(grid)
        return () if weights is None else (weights,)

    cached = tables.get("domain", grid, 0, like, make)
    return cached[0] if cached else None
