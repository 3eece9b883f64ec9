# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Positional encoding, LayerNorm and the means over axes in one pass over the field.

    s = u + ψ,   x = χ LayerNorm(s),   rows = Σ_last w x,   columns = Σ_all-but-last w x

χ is one, or with a mask zero outside the domain.

The field is seen as ``(batch, rest, last, dim)``. The mean onto the last axis is ``columns``; those onto all
other axes follow from ``rows``, which is smaller than the field by the length of the last axis.
Reference implementation: `factformer.nn.attention.axial_kernel.axial_mean` of ``nn.LayerNorm``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from factformer.kernels._triton.arithmetic import padded, pieces, rows_of, zeros
from factformer.kernels._triton.launching import launch
from factformer.kernels._triton.limits import within_limits
from factformer.kernels._triton.tiles import row_of


class GradientTiling(NamedTuple):
    """Points at a time, tiles that a program walks over, warps, pipeline stages."""

    points: int
    tiles: int
    warps: int
    stages: int


def field_tiling(points: int, last: int) -> tuple[int, int, int]:
    """Points of the last axis and rows of a program, and its warps, for this many points in the batch."""
    return padded(min(last, 16)), 8 if points >= 2**18 else 4, 1


def gradient_tiling(points: int, batch: int) -> GradientTiling:
    if batch >= 8:  # samples are walked over, with the next ones on their way
        return GradientTiling(8, 8 if points >= 2**16 else 2, 4, 4)
    return GradientTiling(4, 8 if points >= 2**16 else 1, 2, 3)


class Shape(NamedTuple):
    """Points of the last axis and of the rest, and channels."""

    rest: int
    last: int
    dim: int


@dataclass(frozen=True, kw_only=True)
class Tiles:
    """What the forward kernel is made for: rows of a program, tiles of points (S) and channels (D)."""

    HAS_ENCODING: bool
    MASKED: bool
    SAVE: bool
    ROWS: int
    BLOCK_S: int
    BLOCK_D: int


@dataclass(frozen=True, kw_only=True)
class GradientTiles:
    """The same of the gradient's: tiles of a program, and of points (P) and channels (D)."""

    HAS_ENCODING: bool
    MASKED: bool
    TILES: int
    BLOCK_P: int
    BLOCK_D: int
    STAGES: int


@triton.jit
def _prenorm_kernel(
    field,
    encoding,
    affine,
    weights,
    total,
    normed,
    row_parts,
    column_parts,
    statistics,
    domain,
    shape,
    eps,
    S: tl.constexpr,
):
    gain, bias = affine
    weights_rest, weights_last = weights
    rest, last, dim = shape
    tile, block, sample = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    s = tile * S.BLOCK_S + tl.arange(0, S.BLOCK_S)
    d = tl.arange(0, S.BLOCK_D)
    inside_d = d < dim
    g = tl.load(gain + d, mask=inside_d, other=0.0)
    c = tl.load(bias + d, mask=inside_d, other=0.0)
    w_last = tl.load(weights_last + s, mask=s < last, other=0.0)
    columns = zeros(S.BLOCK_S, S.BLOCK_D)
    for k in range(S.ROWS):
        r = block * S.ROWS + k
        mask = (s < last)[:, None] & inside_d[None, :] & (r < rest)
        point = (r.to(tl.int64) * last + s)[:, None] * dim + d[None, :]
        offset = sample * rest * last * dim + point
        u = tl.load(field + offset, mask=mask, other=0.0)
        if S.HAS_ENCODING:
            u = (u.to(tl.float32) + tl.load(encoding + point, mask=mask, other=0.0).to(tl.float32)).to(u.dtype)
            tl.store(total + offset, u, mask=mask)
        u = u.to(tl.float32)
        mean = tl.sum(u, axis=1) / dim
        centred = tl.where(inside_d[None, :], u - mean[:, None], 0.0)
        scale = tl.rsqrt(tl.sum(centred * centred, axis=1) / dim + eps)
        if S.SAVE:
            where = statistics + (sample * rest * last + r * last + s) * 2
            tl.store(where, mean, mask=(s < last) & (r < rest))
            tl.store(where + 1, scale, mask=(s < last) & (r < rest))
        x = centred * scale[:, None] * g[None, :] + c[None, :]
        if S.MASKED:
            within = tl.load(domain + (sample * rest + r) * last + s, mask=(s < last) & (r < rest), other=0) != 0
            x = tl.where(within[:, None], x, 0.0)
        tl.store(normed + offset, x.to(normed.dtype.element_ty), mask=mask)
        x = tl.where(mask, x, 0.0)
        columns += x * tl.load(weights_rest + r, mask=r < rest, other=0.0)
        row = tl.sum(x * w_last[:, None], axis=0)
        where = (sample * rest + r) * tl.num_programs(0) + tile
        tl.store(row_parts + where * dim + d, row, mask=inside_d & (r < rest))
    offset = ((sample * tl.num_programs(1) + block) * last + s)[:, None] * dim + d[None, :]
    tl.store(column_parts + offset, columns, mask=(s < last)[:, None] & inside_d[None, :])


@triton.jit
def _prenorm_gradient_kernel(
    total,
    statistics,
    grad_total,
    grad_normed,
    grad_rows,
    grad_columns,
    gain,
    weights,
    grad_field,
    grad_encoding,
    affine_parts,
    domain,
    batch,
    shape,
    samples_per_program,
    S: tl.constexpr,
):
    weights_rest, weights_last = weights
    rest, last, dim = shape
    part = tl.program_id(1)
    points = rest * last
    d = tl.arange(0, S.BLOCK_D)
    inside_d = d < dim
    g = tl.load(gain + d, mask=inside_d, other=0.0)[None, :]
    # Sums of every place in the tile: adding up over the tile each time would make all threads wait for each other.
    grad_gain = zeros(S.BLOCK_P, S.BLOCK_D)
    grad_bias = zeros(S.BLOCK_P, S.BLOCK_D)
    for k in range(S.TILES):
        p = (tl.program_id(0) * S.TILES + k) * S.BLOCK_P + tl.arange(0, S.BLOCK_P)
        wide = p.to(tl.int64)
        r, s = p // last, p % last
        inside = p < points
        mask = inside[:, None] & inside_d[None, :]
        w_rest = tl.load(weights_rest + r, mask=inside, other=0.0)[:, None]
        w_last = tl.load(weights_last + s, mask=inside, other=0.0)[:, None]
        summed = zeros(S.BLOCK_P, S.BLOCK_D)
        for sample in tl.range(
            part * samples_per_program, min(batch, (part + 1) * samples_per_program), num_stages=S.STAGES
        ):
            point = row_of(sample, points) + wide
            offset = point[:, None] * dim + d[None, :]
            u = tl.load(total + offset, mask=mask, other=0.0).to(tl.float32)
            grad = tl.load(grad_normed + offset, mask=mask, other=0.0).to(tl.float32)
            past = tl.load(grad_total + offset, mask=mask, other=0.0).to(tl.float32)
            row = tl.load(grad_rows + (sample * rest + r)[:, None] * dim + d[None, :], mask=mask, other=0.0)
            column = tl.load(grad_columns + (sample * last + s)[:, None] * dim + d[None, :], mask=mask, other=0.0)
            mean = tl.load(statistics + point * 2, mask=inside, other=0.0)[:, None]
            scale = tl.load(statistics + point * 2 + 1, mask=inside, other=0.0)[:, None]
            grad += w_last * row + w_rest * column
            unit = tl.where(inside_d[None, :], (u - mean) * scale, 0.0)
            if S.MASKED:
                within = tl.load(domain + point, mask=inside, other=0)[:, None] != 0
                grad, unit = tl.where(within, grad, 0.0), tl.where(within, unit, 0.0)
            grad_gain += grad * unit
            grad_bias += grad
            grad *= g
            along = tl.sum(grad * unit, axis=1)[:, None] / dim
            level = tl.sum(grad, axis=1)[:, None] / dim
            result = scale * (grad - level - unit * along) + past
            tl.store(grad_field + offset, result.to(grad_field.dtype.element_ty), mask=mask)
            summed += result
        if S.HAS_ENCODING:
            offset = (part.to(tl.int64) * points + wide)[:, None] * dim + d[None, :]
            tl.store(grad_encoding + offset, summed.to(grad_encoding.dtype.element_ty), mask=mask)
    program = tl.program_id(0) * tl.num_programs(1) + part
    tl.store(affine_parts + program * 2 * dim + d, tl.sum(grad_gain, axis=0), mask=inside_d)
    tl.store(affine_parts + program * 2 * dim + dim + d, tl.sum(grad_bias, axis=0), mask=inside_d)


@within_limits
class _PreNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        field: Tensor,
        encoding: Tensor | None,
        gain: Tensor,
        bias: Tensor,
        weights_rest: Tensor,
        weights_last: Tensor,
        eps: float,
        domain: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        field = rows_of(field)
        batch, dim = field.shape[0], field.shape[-1]
        rest, last = len(weights_rest), len(weights_last)
        total = field.view_as(field) if encoding is None else torch.empty_like(field)
        normed = torch.empty_like(field)
        block_s, row_count, warps = field_tiling(batch * rest * last, last)
        blocks = triton.cdiv(rest, row_count)
        tiles = triton.cdiv(last, block_s)
        row_parts = field.new_empty(batch, rest, tiles, dim, dtype=torch.float32)
        column_parts = field.new_empty(batch, blocks, last, dim, dtype=torch.float32)
        save = any(ctx.needs_input_grad)
        statistics = field.new_empty(batch if save else 0, rest * last, 2, dtype=torch.float32)
        launch(
            _prenorm_kernel,
            (tiles, blocks, batch),
            field,
            encoding if encoding is not None else field,
            (gain, bias),
            (weights_rest, weights_last),
            total,
            normed,
            row_parts,
            column_parts,
            statistics,
            domain,
            Shape(rest, last, dim),
            eps,
            S=Tiles(
                HAS_ENCODING=encoding is not None,
                MASKED=domain is not None,
                SAVE=save,
                ROWS=row_count,
                BLOCK_S=block_s,
                BLOCK_D=padded(dim),
            ),
            num_warps=warps,
        )
        ctx.save_for_backward(total, statistics, gain, weights_rest, weights_last, domain)
        ctx.encoding_dtype = None if encoding is None else encoding.dtype
        rows = row_parts.sum(2) if tiles > 1 else row_parts.squeeze(2)
        return total, normed, rows, column_parts

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_total: Tensor, grad_normed: Tensor, grad_rows: Tensor, grad_parts: Tensor) -> Any:
        total, statistics, gain, weights_rest, weights_last, domain = ctx.saved_tensors
        batch, dim = total.shape[0], total.shape[-1]
        rest, last = len(weights_rest), len(weights_last)
        cut = gradient_tiling(rest * last, batch)
        programs = triton.cdiv(rest * last, cut.points * cut.tiles)
        per_program = triton.cdiv(batch, pieces(batch, programs, waves=6))
        parts = triton.cdiv(batch, per_program)
        grad_field = torch.empty_like(total)
        has_encoding = ctx.encoding_dtype is not None
        # What has to be added up is kept in float32 until then.
        kind = torch.float32 if parts > 1 or not has_encoding else ctx.encoding_dtype
        grad_encoding = total.new_empty(parts if has_encoding else 0, *total.shape[1:], dtype=kind)
        affine_parts = total.new_empty(programs * parts, 2, dim, dtype=torch.float32)
        launch(
            _prenorm_gradient_kernel,
            (programs, parts),
            total,
            statistics,
            rows_of(grad_total),
            rows_of(grad_normed),
            rows_of(grad_rows),
            rows_of(grad_parts[:, 0]),  # the same for all parts of a sum
            gain,
            (weights_rest, weights_last),
            grad_field,
            grad_encoding,
            affine_parts,
            domain,
            batch,
            Shape(rest, last, dim),
            per_program,
            S=GradientTiles(
                HAS_ENCODING=has_encoding,
                MASKED=domain is not None,
                TILES=cut.tiles,
                BLOCK_P=cut.points,
                BLOCK_D=padded(dim),
                STAGES=cut.stages,
            ),
            num_warps=cut.warps,
        )
        grad_gain, grad_bias = affine_parts.sum(0).unbind(0)
        result = None
        if has_encoding:
            result = (grad_encoding.sum(0) if parts > 1 else grad_encoding[0]).to(ctx.encoding_dtype)
        return grad_field, result, grad_gain, grad_bias, None, None, None, None


def prenorm(
    field: Tensor,
    encoding: Tensor | None,
    gain: Tensor,
    bias: Tensor,
    weights_rest: Tensor,
    weights_last: Tensor,
    eps: float,
    domain: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """``(s, x, rows, columns)`` of a field ``(batch, *grid, dim)``; the two sums are in float32.

    The columns come in parts ``(batch, part, last, dim)`` that are still to be added up, all with the same gradient.
    ``weights_last`` are the quadrature weights of the last axis, ``weights_rest`` the product of the others',
    flat. ``domain`` holds a byte for each point of each sample, zero outside.
    """
    if encoding is not None:
        encoding = encoding.to(field.dtype)
    result: tuple[Tensor, Tensor, Tensor, Tensor] = _PreNorm.apply(
        field, encoding, gain, bias, weights_rest, weights_last, eps, domain
    )
    return result
