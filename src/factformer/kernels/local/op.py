# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""The local branch in two passes: depthwise convolution; LayerNorm, pointwise network and residual add.

    out = u + W₂ gelu( W₁ LayerNorm( D ⋆ u ) + b₁ ) + b₂

With a mask the convolution is that of the values inside over the share of the stencil there, ``D ⋆ (χ u) / s + b``.
Kept for the backward pass: the field and its convolution.
Reference implementation: `factformer.nn.local_branch.LocalBranch`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable

from factformer.kernels._triton.arithmetic import padded, pieces, precision, rows_of
from factformer.kernels._triton.domain import masked_domain
from factformer.kernels._triton.launching import launch
from factformer.kernels._triton.limits import within_limits
from factformer.kernels._triton.products import gram
from factformer.kernels._triton.weights import working
from factformer.kernels.local.backward import depthwise_weight_kernel, pointwise_gradient_kernel
from factformer.kernels.local.forward import Network, Sizes, Tiles, convolution_kernel, network_kernel
from factformer.kernels.local.neighbours import Axes, Stencil, num_runs, surroundings
from factformer.nn.masks import ratio

if TYPE_CHECKING:
    from factformer.grid import Grid
    from factformer.nn.convolution import Convolution
    from factformer.nn.local_branch import LocalBranch

CONVOLVED_RUNS, CONVOLVED_WARPS = 8, 4
WEIGHED_RUNS, WEIGHED_WARPS = 8, 4
NETWORK_POINTS, NETWORK_HIDDEN, NETWORK_WARPS = 64, 64, 4
GRADIENT_POINTS, GRADIENT_HIDDEN, GRADIENT_WARPS = 64, 32, 4
"""Tiles: runs or points, hidden channels at a time, warps. From 64 points on the largest matrix instructions serve."""


class Parameters(NamedTuple):
    """The weights of a branch, or their gradients; the convolution's are those at the grid."""

    convolution: Tensor
    convolution_bias: Tensor
    gain: Tensor
    shift: Tensor
    first: Tensor
    first_bias: Tensor
    second: Tensor
    second_bias: Tensor


@within_limits
class _Local(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        field: Tensor,
        axes: Axes,
        stencil: Stencil,
        eps: float,
        domain: Tensor | None,
        factor: Tensor | None,
        *tensors: Tensor,
    ) -> Tensor:
        field = rows_of(field)
        weight, bias, gain, shift, first, first_bias, second, second_bias = Parameters(*tensors)
        batch, dim, dtype = field.shape[0], field.shape[-1], field.dtype
        points, hidden = field[0, ..., 0].numel(), first.shape[0]
        offsets = weight.flatten(1).t().contiguous()
        convolved, result = torch.empty_like(field), torch.empty_like(field)
        network = Network(gain, shift, working(first, dtype), first_bias, working(second, dtype))
        _convolve(field, offsets, bias, convolved, domain, factor, axes, stencil, transposed=False)
        rows = batch * points
        launch(
            network_kernel,
            (triton.cdiv(rows, NETWORK_POINTS),),
            field,
            convolved,
            network,
            second_bias,
            result,
            Sizes(rows, dim, hidden, eps),
            TILES=_tiles(dtype, NETWORK_POINTS, dim, min(padded(hidden), NETWORK_HIDDEN)),
            num_warps=NETWORK_WARPS,
            num_stages=2,
        )
        ctx.save_for_backward(field, convolved, offsets, domain, factor, *network)
        ctx.axes, ctx.stencil, ctx.eps, ctx.shape = axes, stencil, eps, weight.shape
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        field, convolved, offsets, domain, factor, *tensors = ctx.saved_tensors
        network, axes, stencil = Network(*tensors), ctx.axes, ctx.stencil
        grad = rows_of(grad)
        batch, dim, dtype = field.shape[0], field.shape[-1], field.dtype
        points, hidden = field[0, ..., 0].numel(), len(network.first)
        rows = batch * points
        tiles = triton.cdiv(rows, GRADIENT_POINTS)
        normed, grad_convolved, grad_field = (torch.empty_like(field) for _ in range(3))
        activated, grad_hidden = (field.new_empty(1, rows, hidden) for _ in range(2))
        parts = field.new_empty(tiles, hidden + 4 * dim, dtype=torch.float32)
        launch(
            pointwise_gradient_kernel,
            (tiles,),
            grad,
            convolved,
            network,
            normed,
            activated,
            grad_hidden,
            grad_convolved,
            parts,
            factor,
            Sizes(rows, dim, hidden, ctx.eps),
            TILES=_tiles(dtype, GRADIENT_POINTS, dim, min(padded(hidden), GRADIENT_HIDDEN)),
            num_warps=GRADIENT_WARPS,
            num_stages=2,
        )
        grad_second = gram(grad.view(1, rows, dim), activated).squeeze(0)
        grad_first = gram(grad_hidden, normed.view(1, rows, dim)).squeeze(0)
        del activated, grad_hidden, normed
        # What comes back from points outside whose convolution sees the domain counts.
        _convolve(grad_convolved, offsets, grad, grad_field, None, domain, axes, stencil, transposed=True)
        outer = len(offsets) // stencil.WIDTH
        tiles = triton.cdiv(num_runs(axes, stencil), WEIGHED_RUNS) * batch
        per_program = triton.cdiv(tiles, pieces(tiles, outer, waves=6))
        number = triton.cdiv(tiles, per_program)
        weight_parts = field.new_empty(number, len(offsets), dim, dtype=torch.float32)
        launch(
            depthwise_weight_kernel,
            (outer, number),
            field,
            grad_convolved,
            weight_parts,
            domain,
            points,
            dim,
            tiles,
            per_program,
            axes,
            STENCIL=stencil,
            BLOCK_R=WEIGHED_RUNS,
            BLOCK_D=padded(dim),
            num_warps=WEIGHED_WARPS,
        )
        sums = parts.sum(0)
        grad_first_bias, grad_second_bias, grad_gain, grad_shift, grad_bias = sums.split([hidden, dim, dim, dim, dim])
        learned = Parameters(
            convolution=weight_parts.sum(0).t().reshape(ctx.shape),
            convolution_bias=grad_bias,
            gain=grad_gain,
            shift=grad_shift,
            first=grad_first,
            first_bias=grad_first_bias,
            second=grad_second,
            second_bias=grad_second_bias,
        )
        return grad_field, None, None, None, None, None, *learned


def _tiles(dtype: torch.dtype, points: int, dim: int, hidden: int) -> Tiles:
    return Tiles(PRECISION=precision(dtype), BLOCK_P=points, BLOCK_D=padded(dim), BLOCK_H=hidden)


def _convolve(
    source: Tensor,
    offsets: Tensor,
    start: Tensor,
    result: Tensor,
    domain: Tensor | None,
    factor: Tensor | None,
    axes: Axes,
    stencil: Stencil,
    *,
    transposed: bool,
) -> None:
    """``start`` and the convolution of ``source``, or its transpose, into ``result``; see `convolution_kernel`."""
    dim = source.shape[-1]
    launch(
        convolution_kernel,
        (triton.cdiv(num_runs(axes, stencil), CONVOLVED_RUNS), len(source)),
        source,
        offsets,
        start,
        result,
        domain,
        factor,
        source[0, ..., 0].numel(),
        dim,
        axes,
        STENCIL=stencil,
        TRANSPOSED=transposed,
        MASKED=factor is not None,
        BLOCK_R=CONVOLVED_RUNS,
        BLOCK_D=padded(dim),
        num_warps=CONVOLVED_WARPS,
    )


def local_block(
    branch: LocalBranch, field: Tensor, dtype: torch.dtype, grid: Grid | None, mask: Tensor | None
) -> Tensor:
    """``field + branch(field)`` of a field ``(batch, *grid, dim)``, in ``dtype``."""
    convolution, norm, mlp = branch.convolution, branch.norm, branch.mlp
    weight, step = convolution.at(grid)
    domain = factor = None
    if mask is not None:
        known = masked_domain(mask)
        key = ("stencil", weight.shape[2:], step, convolution.padding, None if grid is None else grid.key)
        domain, factor = known.bytes, known.get(key, lambda: _factor(convolution, mask, grid))
    axes, stencil = surroundings(field.shape[1:-1], convolution.padding, weight.shape[-1], step)
    first: Any = mlp[0]
    second: Any = mlp[2]
    parameters = Parameters(
        convolution=weight,
        convolution_bias=convolution.bias,
        gain=norm.weight,
        shift=norm.bias,
        first=first.weight,
        first_bias=first.bias,
        second=second.weight,
        second_bias=second.bias,
    )
    result: Tensor = _Local.apply(field.to(dtype), axes, stencil, norm.eps, domain, factor, *parameters)
    return result


def _factor(convolution: Convolution, mask: Tensor, grid: Grid | None) -> Tensor:
    """One over the share of the stencil that lies inside, ``(batch, *grid)``; zero where nothing does."""
    share = convolution.share(mask, grid).float()
    return ratio(torch.ones_like(share), share).squeeze(-1)
