# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""The kernel of one axis from the mean of the field, in two launches forward and few backward.

    φ = h( LayerNorm( γ m ) ),   A_ij = (q̃_i · k̃_j) w_j,   q̃, k̃ = rotary-encoded φ W_q, φ W_k

There are only as many rows as the axis has points, so nothing here is large; made of single operations it would
be hundreds of launches per call. Even and odd channels of queries and keys are held apart, which makes the
rotation of pairs an elementwise operation.
Reference implementation: `factformer.nn.attention.axial_kernel.AxialKernel`.
"""

from __future__ import annotations

import contextlib
import math
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable

from factformer.grid import Grid
from factformer.kernels._triton.arithmetic import padded, pieces, precision, rows_of
from factformer.kernels._triton.domain import MaskedDomain
from factformer.kernels._triton.launching import launch
from factformer.kernels._triton.limits import chosen, within_limits
from factformer.kernels.attention.axis_kernel_backward import (
    operator_gradient_kernel,
    phi_gradient_kernel,
    products_kernel,
)
from factformer.kernels.attention.axis_kernel_forward import OperatorTiles, RowTiles, operator_kernel, phi_kernel
from factformer.nn.attention.rotary import rotary_table
from factformer.nn.grid_tables import axis_weights

if TYPE_CHECKING:
    from factformer.nn.attention.axial_kernel import AxialKernel

PRODUCT_ROWS = 64
PAIRS = 32
"""Pairs of channels of queries and keys that a program of the kernel makes at a time."""


def phi_tiling(rows: int) -> tuple[int, int]:
    """Rows and warps of a program that makes φ."""
    return 16, 8


def phi_gradient_tiling(rows: int) -> tuple[int, int]:
    """The same of its gradient."""
    return 16, 8


def operator_tiling(size: int, half: int) -> tuple[int, int]:
    """Points and warps of a program that makes a tile of the kernel."""
    full = (128, 8) if size > 128 and half <= 64 else (min(padded(size), 64), 4)
    return chosen(full, (min(padded(size), 64), 8))


def operator_gradient_tiling(size: int, half: int) -> tuple[int, int]:
    """The same of its gradient."""
    return min(padded(size), 64), 4 if size > 128 and half <= 64 else 8


class Parameters(NamedTuple):
    """The weights of an axis, or their gradients, in the order in which the kernels take them."""

    gamma: Tensor
    gain: Tensor
    bias: Tensor
    expand: Tensor
    expand_bias: Tensor
    contract: Tensor
    contract_bias: Tensor
    queries: Tensor
    keys: Tensor

    @classmethod
    def of(cls, kernel: AxialKernel) -> Parameters:
        norm, mlp = kernel.norm, kernel.mlp
        return cls(
            kernel.gamma.weight,
            norm.weight,
            norm.bias,
            mlp.expand.weight,
            mlp.expand.bias,
            mlp.contract.weight,
            mlp.contract.bias,
            kernel.to_queries.weight,
            kernel.to_keys.weight,
        )


class Axis(NamedTuple):
    """What does not learn: quadrature weights, rotations (``None``: no rotary encoding), and how to compute."""

    weights: Tensor
    cosine: Tensor | None
    sine: Tensor | None
    line_factors: Tensor | None
    """What each row of the mean is multiplied by, where a part of its line lies outside of the domain."""
    heads: int
    eps: float
    dtype: torch.dtype

    def row_tiles(self, block_rows: int, dim: int) -> RowTiles:
        masked = self.line_factors is not None
        return RowTiles(MASKED=masked, PRECISION=precision(self.dtype), BLOCK_R=block_rows, BLOCK_D=padded(dim))

    def operator_tiles(self, points: int, pairs: int, block_d: int = 0, block_n: int = 0) -> OperatorTiles:
        return OperatorTiles(
            ROTARY=self.cosine is not None,
            PRECISION=precision(self.dtype),
            BLOCK_S=points,
            BLOCK_L=pairs,
            BLOCK_D=block_d,
            BLOCK_N=block_n,
        )

    @property
    def rotations(self) -> tuple[Tensor, Tensor]:
        """Cosine and sine, or any tensors where the kernels will not read them."""
        cosine, sine = self.cosine, self.sine
        return (self.weights if cosine is None else cosine), (self.weights if sine is None else sine)


@within_limits
class _AxialOperator(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, mean: Tensor, axis: Axis, *tensors: Tensor) -> Tensor:
        parameters = Parameters(*tensors)
        parameters = parameters._replace(queries=rows_of(parameters.queries), keys=rows_of(parameters.keys))
        mean = rows_of(mean)
        batch, size, dim = mean.shape
        heads, dtype = axis.heads, axis.dtype
        half = parameters.queries.shape[0] // heads // 2
        save = any(ctx.needs_input_grad)
        phi = mean.new_empty(batch, size, dim)
        lengths = mean.new_empty(batch, size)
        factors = mean.new_empty(batch * size if save else 0, 4 * dim, dtype=dtype)
        block_rows, warps = phi_tiling(batch * size)
        tiles = triton.cdiv(batch * size, block_rows)
        squares = mean.new_empty(tiles, 2)
        launch(
            phi_kernel,
            (tiles,),
            mean,
            axis.line_factors,
            parameters,
            phi,
            lengths,
            squares,
            factors,
            batch * size,
            dim,
            len(parameters.queries),
            axis.eps,
            SAVE=save,
            S=axis.row_tiles(block_rows, dim),
            num_warps=warps,
        )
        encoded = factors.new_empty(2, batch if save else 0, heads, size, 2 * half)
        result = factors.new_empty(batch, heads, size, size)
        units = mean.new_empty(batch)
        block, warps = operator_tiling(size, half)
        blocks = triton.cdiv(size, block)
        launch(
            operator_kernel,
            (blocks, blocks, batch * heads),
            phi,
            parameters.queries,
            parameters.keys,
            axis.rotations,
            axis.weights,
            lengths,
            squares,
            result,
            encoded[0],
            encoded[1],
            units,
            size,
            dim,
            heads,
            half,
            tiles,
            heads * dim * math.sqrt(2 * half),  # what is missing to one where nothing is aligned
            SAVE=save,
            S=axis.operator_tiles(block, min(padded(half), PAIRS), block_d=padded(dim), block_n=128),
            num_warps=warps,
        )
        ctx.save_for_backward(mean, factors, encoded, units, *parameters)
        ctx.axis = axis
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        mean, factors, encoded, units, *tensors = ctx.saved_tensors
        parameters, axis = Parameters(*tensors), ctx.axis
        batch, size, dim = mean.shape
        heads, half, dtype, rows = axis.heads, encoded.shape[-1] // 2, factors.dtype, batch * size
        block, warps = operator_gradient_tiling(size, half)
        encoded_width = 2 * heads * 2 * half
        grads = factors.new_empty(rows, encoded_width + 4 * dim)
        width = grads.shape[1]
        launch(
            operator_gradient_kernel,
            (triton.cdiv(size, block), 2, batch * heads),
            rows_of(grad),
            encoded,
            axis.rotations,
            axis.weights,
            units,
            grads,
            size,
            heads,
            half,
            width,
            S=axis.operator_tiles(block, padded(half)),
            num_warps=warps,
        )
        with torch.autocast(mean.device.type, enabled=False):
            backward = torch.cat([parameters.queries, parameters.keys]).to(dtype)
            torch.mm(grads[:, :encoded_width], backward, out=grads[:, encoded_width : encoded_width + dim])
        grad_mean = torch.empty_like(mean)
        block_rows, warps = phi_gradient_tiling(rows)
        tiles = triton.cdiv(rows, block_rows)
        sum_parts = mean.new_empty(tiles, 5 * dim)
        launch(
            phi_gradient_kernel,
            (tiles,),
            mean,
            axis.line_factors,
            parameters[:6],  # up to the matrix of the second layer
            grads,
            factors,
            grad_mean,
            sum_parts,
            rows,
            dim,
            width,
            axis.eps,
            S=axis.row_tiles(block_rows, dim),
            RELOAD=chosen(False, True),
            num_warps=warps,
        )
        encoded_tiles, steps = triton.cdiv(encoded_width, padded(dim)), triton.cdiv(rows, PRODUCT_ROWS)
        per_program = triton.cdiv(steps, pieces(steps, encoded_tiles + 4, waves=1)) * PRODUCT_ROWS
        number = triton.cdiv(rows, per_program)
        parts = mean.new_empty(number, width, dim)
        launch(
            products_kernel,
            (encoded_tiles + 4, number),
            grads,
            factors,
            parts,
            rows,
            dim,
            width,
            per_program,
            encoded_tiles,
            PRECISION=precision(dtype),
            BLOCK_R=PRODUCT_ROWS,
            BLOCK_D=padded(dim),
            num_warps=8,
        )
        products = parts.sum(0) if number > 1 else parts[0]
        half_width = encoded_width // 2
        queries, keys, contract, expand, gamma = products.split([half_width, half_width, dim, 2 * dim, dim])
        expand_bias, gain, bias, contract_bias = sum_parts.sum(0).split([2 * dim, dim, dim, dim])
        learned = Parameters(
            gamma=gamma,
            gain=gain,
            bias=bias,
            expand=expand,
            expand_bias=expand_bias,
            contract=contract,
            contract_bias=contract_bias,
            queries=queries,
            keys=keys,
        )
        return grad_mean, None, *learned


def axial_operators(
    kernel: AxialKernel,
    mean: Tensor,
    grid: Grid,
    dtype: torch.dtype,
    domain: MaskedDomain | None = None,
    mask: Tensor | None = None,
) -> list[Tensor]:
    """What `AxialKernel.operators` gives, from the mean of the field over all other axes.

    With a ``mask``, whose ``domain`` is given as well, the mean is of the field that is zero outside. Lines without a
    point inside need nothing here but numbers: values are zero along them, and so are results.

    The dense kernel is made here; with a softmax or in the low-rank order the plain operations serve.
    """
    options = kernel.options
    if options.softmax or not kernel.dense_is_cheaper(grid):
        # In float32 as below: there are few rows, and a rounding here moves every entry of the kernel.
        single = kernel.gamma.weight.dtype == torch.float32
        with torch.autocast(mean.device.type, enabled=False) if single else contextlib.nullcontext():
            share = None if domain is None else domain.line_shares(kernel.tables, grid, kernel.m)
            return kernel.operators(*kernel.encode_inside(mean, share, grid), grid, mask=mask)
    line_factors = None if domain is None else domain.line_factors(kernel.tables, grid, kernel.m)
    weights = axis_weights(kernel.tables, grid, kernel.m, mean)
    cosine = sine = None
    if options.rotary != "off":
        cosine, sine = kernel.tables.get(
            "rotary",
            grid,
            kernel.m,
            mean,
            lambda: rotary_table(grid, kernel.m, kernel.kernel_dim, options.rotary, options.rotary_scale),
        )
    axis = Axis(weights, cosine, sine, line_factors, kernel.heads, kernel.norm.eps, dtype)
    matrix: Tensor = _AxialOperator.apply(mean, axis, *Parameters.of(kernel))
    return [matrix]
