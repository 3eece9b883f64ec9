# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""The frame encoder, with frames read where they lie and lifted frames that never leave the chip.

    z_p = b + Σ_t W_t gelu( L x_tp + l )        or, of a single channel,        z_p = b + Σ_t w_t x_tp

A one is appended to the channels (or frames) of a point, so that the bias is a column of the matrix and its gradient
one of the matrix's gradient. Plain twin: `factformer.nn.frame_encoder.FrameEncoder`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable

from factformer.nn.fused._common import padded, pieces, precision, rows_of
from factformer.nn.fused.encoder_kernels import (
    lift_frames_gradient_kernel,
    lift_gradient_kernel,
    lift_kernel,
    stack_gradient_kernel,
    stack_kernel,
)

if TYPE_CHECKING:
    from factformer.nn.frame_encoder import FrameEncoder

BLOCK_POINTS = 64
BLOCK_LIFTED = 64
GRADIENT_POINTS, GRADIENT_WARPS = 128, 8


class _Stack(torch.autograd.Function):
    """Frames ``(batch, frame, point)`` of a single channel to ``(batch, point, dim)``."""

    @staticmethod
    def forward(ctx: Any, frames: Tensor, weight: Tensor, bias: Tensor, dtype: torch.dtype) -> Tensor:
        frames = rows_of(frames)
        batch, num_frames, points = frames.shape
        dim = len(weight)
        result = frames.new_empty(batch, points, dim, dtype=dtype)
        stack_kernel[(triton.cdiv(points, BLOCK_POINTS), batch)](
            frames,
            weight,
            bias,
            result,
            points,
            num_frames,
            dim,
            PRECISION=precision(dtype),
            BLOCK_P=BLOCK_POINTS,
            BLOCK_T=padded(num_frames + 1),
            BLOCK_D=padded(dim),
            num_warps=4,
        )
        ctx.save_for_backward(frames, weight)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        frames, weight = ctx.saved_tensors
        batch, num_frames, points = frames.shape
        dim = len(weight)
        tiles = triton.cdiv(points, BLOCK_POINTS)
        total = batch * tiles
        per_program = triton.cdiv(total, pieces(total, 1))
        parts = frames.new_empty(triton.cdiv(total, per_program), dim, num_frames + 1, dtype=torch.float32)
        of_frames = ctx.needs_input_grad[0]
        grad_frames = torch.empty_like(frames) if of_frames else None
        stack_gradient_kernel[(len(parts),)](
            rows_of(grad),
            frames,
            weight,
            grad_frames if of_frames else frames,
            parts,
            points,
            num_frames,
            dim,
            tiles,
            total,
            per_program,
            OF_FRAMES=of_frames,
            PRECISION=precision(grad.dtype),
            BLOCK_P=BLOCK_POINTS,
            BLOCK_T=padded(num_frames + 1),
            BLOCK_D=padded(dim),
            num_warps=4,
        )
        whole = parts.sum(0)
        return grad_frames, whole[:, :-1], whole[:, -1], None


class _Lift(torch.autograd.Function):
    """Frames ``(batch, frame, point, channel)`` to ``(batch, point, dim)`` through a hidden layer of each frame."""

    @staticmethod
    def forward(
        ctx: Any, frames: Tensor, lift: Tensor, lift_bias: Tensor, weight: Tensor, bias: Tensor, dtype: torch.dtype
    ) -> Tensor:
        frames = rows_of(frames)
        batch, num_frames, points, channels = frames.shape
        dim, working = len(weight), weight.to(dtype)
        result = frames.new_empty(batch, points, dim, dtype=dtype)
        lift_kernel[(triton.cdiv(points, BLOCK_POINTS), batch)](
            frames,
            lift,
            lift_bias,
            working,
            bias,
            result,
            points,
            num_frames,
            channels,
            dim,
            PRECISION=precision(dtype),
            BLOCK_P=BLOCK_POINTS,
            BLOCK_C=padded(channels + 1),
            BLOCK_L=min(padded(dim), BLOCK_LIFTED),
            BLOCK_D=padded(dim),
            STAGES=3,
            num_warps=4,
        )
        ctx.save_for_backward(frames, lift, lift_bias, working)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        frames, lift, lift_bias, working = ctx.saved_tensors
        batch, num_frames, points, channels = frames.shape
        dim, grad = len(working), rows_of(grad)
        tiles = triton.cdiv(points, GRADIENT_POINTS)
        total, programs = batch * tiles, num_frames * triton.cdiv(dim, BLOCK_LIFTED)
        per_program = triton.cdiv(total, pieces(total, programs))
        number = triton.cdiv(total, per_program)
        parts = frames.new_empty(number, dim, num_frames * dim, dtype=torch.float32)
        lift_parts = frames.new_empty(number * num_frames, dim, channels + 1, dtype=torch.float32)
        bias_parts = frames.new_empty(number, dim, dtype=torch.float32)
        blocks = {
            "PRECISION": precision(grad.dtype),
            "BLOCK_C": padded(channels + 1),
            "BLOCK_L": min(padded(dim), BLOCK_LIFTED),
            "BLOCK_D": padded(dim),
        }
        lift_gradient_kernel[(programs, number)](
            grad,
            frames,
            lift,
            lift_bias,
            working,
            parts,
            lift_parts,
            bias_parts,
            points,
            num_frames,
            channels,
            dim,
            tiles,
            total,
            per_program,
            BLOCK_P=GRADIENT_POINTS,
            STAGES=2,
            num_warps=GRADIENT_WARPS,
            **blocks,
        )
        grad_frames = None
        if ctx.needs_input_grad[0]:
            grad_frames = torch.empty_like(frames)
            lift_frames_gradient_kernel[(triton.cdiv(points, BLOCK_POINTS), num_frames, batch)](
                grad,
                frames,
                lift,
                lift_bias,
                working,
                grad_frames,
                points,
                num_frames,
                channels,
                dim,
                BLOCK_P=BLOCK_POINTS,
                num_warps=4,
                **blocks,
            )
        whole = lift_parts.sum(0)
        return grad_frames, whole[:, :-1], whole[:, -1], parts.sum(0), bias_parts.sum(0), None


def encode_frames(encoder: FrameEncoder, frames: Tensor, dtype: torch.dtype) -> Tensor:
    """What `FrameEncoder.forward` computes, in ``dtype``."""
    shape, dim = frames.shape[2:-1], encoder.compress.out_features
    flat = frames.flatten(2, -2)
    compress = encoder.compress
    if isinstance(encoder.lift, torch.nn.Identity):
        result: Tensor = _Stack.apply(flat.squeeze(-1), compress.weight, compress.bias, dtype)
    else:
        linear: Any = encoder.lift[0]
        result = _Lift.apply(flat, linear.weight, linear.bias, compress.weight, compress.bias, dtype)
    return result.view(len(frames), *shape, dim)
