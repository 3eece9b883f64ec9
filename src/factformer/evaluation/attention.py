"""What the attention of a surrogate looks like: its kernels, their spectra, stationarity and symmetry.

Kernels depend on the input, so they are taken while the surrogate runs on real samples. Factorized attention
has one kernel per layer, head and axis, small enough to decompose in full; linear attention has one ``N × N``
kernel per layer and head, of which only products with thin matrices are ever formed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from factformer.batch import Batch
from factformer.errors import UserError
from factformer.evaluation.spectra import (
    cumulative_energy,
    fraction_for_energy,
    product_singular_values,
    stationarity,
    symmetry,
)
from factformer.grid import Grid
from factformer.nn.attention import FactorizedAttention
from factformer.nn.attention.galerkin import GalerkinAttention
from factformer.nn.attention.linear import LinearAttention
from factformer.nn.masks import Mask, inside
from factformer.surrogate import Surrogate

FULL_COMPONENTS = 1024
"""Singular values of a full kernel that are computed, as in the paper."""
ENERGY_SHARE = 0.9
ATTENTION = (FactorizedAttention, LinearAttention, GalerkinAttention)


@dataclass
class Analysis:
    """JSON-ready numbers per layer and axis, and the kernels of one sample to draw."""

    summary: dict[str, Any]
    kernels: dict[tuple[int, int], Float[Tensor, "head points points"]] = field(default_factory=dict)
    """``A⁽ᵐ⁾`` of the first sample under (layer, axis), both counted from 0; empty for full attention."""


def analyse_attention(surrogate: Surrogate, contexts: Iterable[Batch | Tensor]) -> Analysis:
    """Spectra, stationarity and symmetry, averaged over heads and over the samples in ``contexts``.

    ``contexts`` holds batches of what the surrogate sees, on its device; a bare tensor is the context alone.
    """
    means: dict[tuple[int, int | None], _Mean] = {}
    kernels: dict[tuple[int, int], Tensor] = {}
    num_samples = 0
    generator = torch.Generator().manual_seed(0)
    for context in contexts:
        batch = Batch.of(surrogate.problem, context)
        for layer, calls in enumerate(record_attention(surrogate, batch)):
            for call in calls:
                _analyse_call(call, layer, means, kernels, generator)
        num_samples += batch.size
    if num_samples == 0:
        raise UserError("there are no samples to look at: choose a split that holds some")
    return Analysis(
        {
            "model": surrogate.config.name,
            "problem": surrogate.problem.name,
            "energy_share": ENERGY_SHARE,
            "num_samples": num_samples,
            "kernels": [mean.summary(*place) for place, mean in sorted(means.items(), key=_order)],
        },
        kernels,
    )


class Call(NamedTuple):
    """One call of an attention layer."""

    module: nn.Module
    u: Float[Tensor, "batch *grid dim"]
    grid: Grid
    mask: Mask | None = None


def record_attention(surrogate: Surrogate, batch: Batch) -> list[list[Call]]:
    """The inputs of every attention layer during one call, layer by layer."""
    modules = [module for module in surrogate.modules() if isinstance(module, ATTENTION)]
    if not modules:
        raise UserError(
            f"model {surrogate.config.name!r} has no attention kernels to look at: inspect one with "
            "factorized or linear attention"
        )
    calls: dict[nn.Module, list[Call]] = {module: [] for module in modules}

    def record(module: nn.Module, arguments: tuple[Any, ...]) -> None:
        calls[module].append(Call(module, *arguments))

    with _hooks(modules, record), torch.no_grad():
        # Not `forward`: on a GPU it may replay a recorded call, in which no hook is heard.
        surrogate.eval().predict(batch, 1, surrogate.check(batch, 1, None))
    if not all(calls.values()):
        raise RuntimeError("an attention layer was not called: its forward is bypassed, so its kernels are unknown")
    return list(calls.values())


@contextlib.contextmanager
def _hooks(modules: Iterable[nn.Module], record: Any) -> Iterator[None]:
    handles = [module.register_forward_pre_hook(record) for module in modules]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _analyse_call(
    call: Call,
    layer: int,
    means: dict[tuple[int, int | None], _Mean],
    kernels: dict[tuple[int, int], Tensor],
    generator: torch.Generator,
) -> None:
    module, u, grid, mask = call
    with torch.no_grad():
        if isinstance(module, FactorizedAttention):
            for axis, kernel in enumerate(module.axial_kernels(u, grid, mask)):
                mean = means.setdefault((layer, axis), _Mean(rank_bound=_rank_bound(module, grid.shape[axis])))
                mean.add(
                    cumulative_energy(torch.linalg.svdvals(kernel.double())),
                    stationarity(kernel, grid, axis),
                    symmetry(kernel / grid.weights(axis, device=kernel.device)),
                )
                kernels.setdefault((layer, axis), kernel[0].cpu())
            return
        queries, keys = full_factors(module, u, grid, mask)
        mean = means.setdefault((layer, None), _Mean(rank_bound=min(grid.num_points, queries.shape[-1])))
        for q, k in zip(queries.flatten(0, 1), keys.flatten(0, 1), strict=True):
            values = product_singular_values(q.double(), k.double(), FULL_COMPONENTS, generator)
            mean.add(cumulative_energy(values)[None, None])


def full_factors(
    module: nn.Module, u: Float[Tensor, "batch *grid dim"], grid: Grid, mask: Mask | None = None
) -> tuple[Float[Tensor, "batch head points kernel"], Float[Tensor, "batch head points kernel"]]:
    """Queries and keys whose product is the kernel between all points, quadrature weights in the keys."""
    if isinstance(module, LinearAttention):
        queries, keys = module.factors(inside(module.norm(u), mask), grid, mask)
    else:
        assert isinstance(module, GalerkinAttention)
        queries, keys, _ = module.factors(inside(u, mask), grid)
    weights = torch.ones(1, dtype=keys.dtype, device=keys.device)
    for m in range(grid.num_axes):
        weights = torch.outer(weights, grid.weights(m, dtype=keys.dtype, device=keys.device)).flatten()
    keys = keys * weights[:, None]
    return queries, keys if mask is None else keys * mask.flatten(1)[:, None, :, None]


def _rank_bound(module: FactorizedAttention, size: int) -> int:
    """Products of ``kernel_dim`` functions have no higher rank; a softmax of them may."""
    kernel = module.axes()[0]
    return size if kernel.options.softmax else min(size, kernel.kernel_dim)


def _order(item: tuple[tuple[int, int | None], Any]) -> tuple[int, int]:
    layer, axis = item[0]
    return layer, -1 if axis is None else axis


class _Mean:
    """Running means over samples and heads."""

    def __init__(self, rank_bound: int) -> None:
        self.rank_bound = rank_bound
        self.count = 0
        self.curve = torch.zeros(())
        self.numbers: dict[str, float] = {}

    def add(self, curves: Tensor, stationary: Tensor | None = None, symmetric: Tensor | None = None) -> None:
        """Curves ``(batch, head, k)`` and the numbers ``(batch, head)`` of each kernel."""
        self.curve = self.curve + curves.flatten(0, -2).sum(0).cpu()
        self.count += curves[..., 0].numel()
        for name, values in (("stationarity", stationary), ("symmetry", symmetric)):
            if values is not None:
                self.numbers[name] = self.numbers.get(name, 0.0) + float(values.sum())

    def summary(self, layer: int, axis: int | None) -> dict[str, Any]:
        curve = self.curve / self.count
        return {
            "layer": layer,
            "axis": axis,
            "num_singular_values": len(curve),
            "rank_bound": self.rank_bound,
            "fraction_for_energy": fraction_for_energy(curve, ENERGY_SHARE),
            "cumulative_energy": curve.tolist(),
            **{name: total / self.count for name, total in self.numbers.items()},
        }
