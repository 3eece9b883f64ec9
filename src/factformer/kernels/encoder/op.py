# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""The frame encoder, with frames read where they lie and lifted frames that are written once and not kept.

    z_p = b + Σ_t W_t gelu( L x_tp + l )        or, of a single channel,        z_p = b + Σ_t w_t x_tp

of normalised frames ``x = (frame - mean) / deviation``.

A one is appended to the channels (or frames) of a point, so that the bias is a column of the matrix and its gradient
one of the matrix's gradient. Reference implementation: `factformer.nn.frame_encoder.FrameEncoder`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable

from factformer.kernels._triton.arithmetic import padded, pieces, precision, rows_of
from factformer.kernels._triton.in_place import Places, places_of
from factformer.kernels._triton.launching import launch
from factformer.kernels._triton.limits import within_limits
from factformer.kernels._triton.sums import column_sums
from factformer.kernels._triton.weights import product, working
from factformer.kernels.encoder.backward import lift_gradient_kernel, stack_gradient_kernel
from factformer.kernels.encoder.forward import Tiles, lift_kernel, stack_kernel

if TYPE_CHECKING:
    from factformer.grid import Grid
    from factformer.nn.frame_encoder import FrameEncoder
    from factformer.nn.patches import Patches

BLOCK_POINTS = 64
PORTION = 2**28
"""Entries of lifted frames that may be in memory at a time, if one sample has no more."""


@within_limits
class _Stack(torch.autograd.Function):
    """Frames ``(batch, frame, point)`` of a single channel to ``(batch, point, dim)``."""

    @staticmethod
    def forward(
        ctx: Any, frames: Tensor, statistics: Tensor, weight: Tensor, bias: Tensor, dtype: torch.dtype
    ) -> Tensor:
        frames = rows_of(frames)
        batch, num_frames, points = frames.shape
        dim = len(weight)
        result = frames.new_empty(batch, points, dim, dtype=dtype)
        launch(
            stack_kernel,
            (triton.cdiv(points, BLOCK_POINTS), batch),
            frames,
            statistics,
            weight,
            bias,
            result,
            (points, num_frames, dim),
            S=_tiles(dtype, num_frames, dim),
            num_warps=4,
        )
        ctx.save_for_backward(frames, statistics, weight)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        frames, statistics, weight = ctx.saved_tensors
        batch, num_frames, points = frames.shape
        dim = len(weight)
        tiles = triton.cdiv(points, BLOCK_POINTS)
        total = batch * tiles
        per_program = triton.cdiv(total, pieces(total, 1))
        parts = frames.new_empty(triton.cdiv(total, per_program), dim, num_frames + 1, dtype=torch.float32)
        of_frames = ctx.needs_input_grad[0]
        grad_frames = torch.empty_like(frames) if of_frames else None
        launch(
            stack_gradient_kernel,
            (len(parts),),
            rows_of(grad),
            frames,
            statistics,
            weight,
            grad_frames if of_frames else frames,
            parts,
            (points, num_frames, dim),
            tiles,
            total,
            per_program,
            OF_FRAMES=of_frames,
            S=_tiles(grad.dtype, num_frames, dim),
            num_warps=4,
        )
        whole = parts.sum(0)
        return grad_frames, None, whole[:, :-1], whole[:, -1], None


@within_limits
class _Lift(torch.autograd.Function):
    """Frames ``(batch, frame, point, channel)`` to ``(batch, point, dim)`` through a hidden layer of each frame.

    What it starts from is the bias or a whole field, ``start``. With ``places`` the numbers of a frame lie in the order
    of the fine grid. Lifted frames are made a few samples at a time, for the library's product to read, and not kept.
    """

    @staticmethod
    def forward(
        ctx: Any,
        frames: Tensor,
        statistics: Tensor,
        lift: Tensor,
        lift_bias: Tensor,
        weight: Tensor,
        start: Tensor,
        dtype: torch.dtype,
        places: Places | None,
    ) -> Tensor:
        frames = rows_of(frames)
        batch, num_frames, points, _ = frames.shape
        dim, compress, start = len(weight), working(weight, dtype), working(start, dtype)
        result = frames.new_empty(batch, points, dim, dtype=dtype)
        with torch.autocast(frames.device.type, enabled=False):
            for rows in _portions(batch, points * num_frames * dim):
                lifted = _lifted(frames[rows], statistics, lift, lift_bias, dtype, places)
                added = start if start.ndim == 1 else start[rows].flatten(0, 1)
                torch.addmm(added, lifted, compress.t(), out=result[rows].view(-1, dim))
        ctx.save_for_backward(frames, statistics, lift, lift_bias, compress)
        ctx.places, ctx.is_bias = places, start.ndim == 1
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        frames, statistics, lift, lift_bias, compress = ctx.saved_tensors
        places: Places | None = ctx.places
        batch, num_frames, points, channels = frames.shape
        dim, grad = len(compress), rows_of(grad)
        tiles = triton.cdiv(points, BLOCK_POINTS)
        of_frames = ctx.needs_input_grad[0]
        grad_frames = torch.empty_like(frames) if of_frames else None
        grad_weight = grad_lift = None
        with torch.autocast(frames.device.type, enabled=False):
            for rows in _portions(batch, points * num_frames * dim):
                here, flat = frames[rows], grad[rows].flatten(0, 1)
                lifted = _lifted(here, statistics, lift, lift_bias, grad.dtype, places)
                grad_weight = _added(grad_weight, product(flat.t(), lifted))
                torch.mm(flat, compress, out=lifted)
                total = len(here) * tiles * num_frames
                per_program = triton.cdiv(total, pieces(total, 1))
                parts = frames.new_empty(triton.cdiv(total, per_program), dim, channels + 1, dtype=torch.float32)
                launch(
                    lift_gradient_kernel,
                    (len(parts),),
                    lifted,
                    here,
                    statistics,
                    lift,
                    lift_bias,
                    here if grad_frames is None else grad_frames[rows],
                    parts,
                    None if places is None else places.table,
                    (points, num_frames, channels, dim),
                    tiles,
                    total,
                    per_program,
                    AXES=0 if places is None else places.axes,
                    OF_FRAMES=of_frames,
                    S=_tiles(grad.dtype, channels, dim),
                    num_warps=4,
                )
                grad_lift = _added(grad_lift, parts.sum(0))
            assert grad_lift is not None
            grad_start = column_sums(grad.flatten(0, 1)) if ctx.is_bias else grad
        return grad_frames, None, grad_lift[:, :-1], grad_lift[:, -1], grad_weight, grad_start, None, None


def _tiles(dtype: torch.dtype, columns: int, dim: int) -> Tiles:
    block_c = padded(columns + 1)
    return Tiles(PRECISION=precision(dtype), BLOCK_P=BLOCK_POINTS, BLOCK_C=block_c, BLOCK_D=padded(dim))


def _portions(batch: int, size: int) -> list[slice]:
    """Samples whose lifted frames, ``size`` entries each, are made together."""
    count = max(1, PORTION // size)
    return [slice(first, first + count) for first in range(0, batch, count)]


def _added(total: Tensor | None, part: Tensor) -> Tensor:
    return part if total is None else total.add_(part)


def _lifted(
    frames: Tensor, statistics: Tensor, lift: Tensor, lift_bias: Tensor, dtype: torch.dtype, places: Places | None
) -> Tensor:
    """``gelu( L x + l )`` of every frame, ``(sample · point, frame · dim)``."""
    batch, num_frames, points, channels = frames.shape
    dim = len(lift)
    lifted = frames.new_empty(batch * points, num_frames * dim, dtype=dtype)
    launch(
        lift_kernel,
        (triton.cdiv(points, BLOCK_POINTS), batch),
        frames,
        statistics,
        lift,
        lift_bias,
        lifted,
        None if places is None else places.table,
        (points, num_frames, channels, dim),
        AXES=0 if places is None else places.axes,
        S=_tiles(dtype, channels, dim),
        num_warps=4,
    )
    return lifted


def encode_frames(
    encoder: FrameEncoder,
    frames: Tensor,
    statistics: Tensor,
    dtype: torch.dtype,
    patches: Patches | None = None,
    grid: Grid | None = None,
    onto: Tensor | None = None,
) -> Tensor:
    """What `FrameEncoder.forward` computes, in ``dtype``; ``statistics`` holds means and deviations of the channels."""
    compress: Any = encoder.compress
    shape = frames.shape[2:-1]
    places = None
    if patches is not None and grid is not None:
        shape = torch.Size(patches.grid(grid).shape)
        places = places_of(patches, grid, frames.shape[-1], frames)
        if places is None:
            frames = patches.split(frames, grid)
    if places is None:
        flat = frames.flatten(2, -2)
    else:  # as many numbers for each patch, in another order
        flat = frames.reshape(*frames.shape[:2], places.num_points, places.num_channels)
    lift: Any = encoder.lift
    lifted, start = not isinstance(lift, torch.nn.Identity), compress.bias
    if lifted and onto is not None:  # the product begins with what it is added to
        start, onto = (onto if start is None else onto + start).to(dtype).flatten(1, -2), None
    if start is None:
        start = compress.weight.new_zeros(compress.out_features)
    if lifted:
        weights = (lift[0].weight, lift[0].bias, compress.weight, start)
        result: Tensor = _Lift.apply(flat, statistics, *weights, dtype, places)
    else:
        result = _Stack.apply(flat.squeeze(-1), statistics, compress.weight, start, dtype)
    result = result.view(len(frames), *shape, compress.out_features)
    return result if onto is None else result + onto
