# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""The pointwise network of a marching step as its kernels take it, made in one launch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from factformer.kernels._triton.arithmetic import padded, precision
from factformer.kernels._triton.launching import launch
from factformer.kernels._triton.tiles import Tile

BLOCK_ROWS = 16


@triton.jit(do_not_specialize=["num_steps"])
def _network_kernel(
    weights,
    embeddings,
    embedding_sums,
    folded,
    folded_sum,
    folded_shift,
    folded_bias,
    rounded,
    constant,
    num_steps,
    LATENT: tl.constexpr,
    HIDDEN: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    r = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    c = tl.arange(0, BLOCK_K)
    inside_r, inside_c = r < HIDDEN, c < LATENT
    mask = inside_r[:, None] & inside_c[None, :]
    w = tl.load(weights.first + r[:, None] * LATENT + c[None, :], mask=mask, other=0.0)
    f = (w * tl.load(weights.gain + c, mask=inside_c, other=0.0)[None, :]).to(folded.dtype.element_ty)
    tl.store(folded + r[:, None] * LATENT + c[None, :], f, mask=mask)
    b = tl.sum(w * tl.load(weights.bias + c, mask=inside_c, other=0.0)[None, :], axis=1)
    tl.store(folded_bias + r, b + tl.load(weights.first_bias + r, mask=inside_r, other=0.0), mask=inside_r)
    # With the rounded matrix, so that a constant state still gives exactly nothing.
    exact = f.to(tl.float32)
    tl.store(folded_sum + r, tl.sum(exact, axis=1), mask=inside_r)
    other = c[:, None] * HIDDEN + r[None, :]
    turned = inside_c[:, None] & inside_r[None, :]
    v = tl.load(weights.second + other, mask=turned, other=0.0)
    tl.store(rounded + other, v.to(rounded.dtype.element_ty), mask=turned)
    own = inside_c & (tl.program_id(0) == 0)
    for step in range(num_steps + 1):
        e = tl.load(weights.steps + step * LATENT + c, mask=inside_c & (step < num_steps), other=0.0)
        tl.store(folded_shift + step * HIDDEN + r, tl.sum(exact * e[None, :], axis=1), mask=inside_r)
        tl.store(embeddings + step * LATENT + c, e, mask=own)
        tl.store(constant + step * LATENT + c, e + tl.load(weights.second_bias + c, mask=inside_c, other=0.0), mask=own)
        tl.store(embedding_sums + step * 2, tl.sum(e, axis=0), mask=tl.program_id(0) == 0)
        tl.store(embedding_sums + step * 2 + 1, tl.sum(e * e, axis=0), mask=tl.program_id(0) == 0)


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """What the kernels of a step are made for: channels, and tiles of points (P), of latent (K) and hidden ones (H)."""

    LATENT: int
    HIDDEN: int
    DESCRIBED: bool
    PRECISION: str
    BLOCK_P: int
    BLOCK_K: int
    BLOCK_H: int
    STAGES: int

    @classmethod
    def of(cls, states: Tensor, hidden: int, block: int, tile: Tile, described: bool) -> Sizes:
        """Of states ``(…, latent)``, ``block`` of their channels at a time."""
        return cls(
            LATENT=states.shape[-1],
            HIDDEN=hidden,
            DESCRIBED=described,
            PRECISION=precision(states.dtype),
            BLOCK_P=tile.points,
            BLOCK_K=block,
            BLOCK_H=padded(hidden),
            STAGES=tile.stages,
        )


@dataclass(frozen=True, kw_only=True)
class Case:
    """Whether points have weights, each sample its own, and whether a forcing drives the marching."""

    HAS_WEIGHTS: bool
    OF_SAMPLES: bool
    FORCED: bool

    @classmethod
    def of(cls, states: Tensor, weights: Tensor | None, forcing: Forcing | None) -> Case:
        """Of states ``(…, point, latent)``."""
        of_samples = weights is not None and weights.numel() > states.shape[-2]
        return cls(HAS_WEIGHTS=weights is not None, OF_SAMPLES=of_samples, FORCED=forcing is not None)


class Forcing(NamedTuple):
    """What drives the marching: fields ``(step, batch, point, channel)`` and the matrix ``(latent, channel)`` on them.

    ``states`` ``(step, batch, point, latent)`` are those that the steps start from, ``z + F f``. The decoder reads the
    states before.
    """

    fields: Tensor
    matrix: Tensor
    states: Tensor

    @classmethod
    def on(cls, fields: Tensor, matrix: Tensor, dtype: torch.dtype) -> Forcing:
        """Of fields ``(batch, step, point, channel)``."""
        turned, matrix = fields.transpose(0, 1).to(dtype).contiguous(), matrix.to(dtype)
        return cls(turned, matrix, turned.new_empty(*turned.shape[:-1], len(matrix)))

    def add_to(self, states: Tensor, step: int) -> None:
        """Fill the states that ``step`` starts from; ``states`` has one slot more."""
        flat = (x[step].flatten(0, 1) for x in (states, self.fields, self.states))
        before, fields, entering = flat
        torch.addmm(before, fields, self.matrix.t(), out=entering)


class Weights(NamedTuple):
    """Embeddings of the steps, gain and bias of the LayerNorm, W₁, b₁, W₂, b₂; or their gradients."""

    steps: Tensor
    gain: Tensor
    bias: Tensor
    first: Tensor
    first_bias: Tensor
    second: Tensor
    second_bias: Tensor


class Network(NamedTuple):
    """One marching step with the LayerNorm's affine map inside its first matrix.

    ``W₁ (γ x̂ + β) + b₁`` with ``x̂ = (z + e - μ) ρ`` is ``ρ (Wz + We - μ W1) + b``, so the product runs on the state as
    it lies in memory. Behind the embeddings of the steps lies one of zeros.
    """

    embeddings: Tensor
    embedding_sums: Tensor
    first: Tensor
    first_sum: Tensor
    first_shift: Tensor
    first_bias: Tensor
    second: Tensor
    constant: Tensor
    eps: float

    @classmethod
    def fold(cls, weights: Weights, num_steps: int, eps: float, dtype: torch.dtype) -> Network:
        """For the first ``num_steps`` steps; ``eps`` is the LayerNorm's."""
        steps = weights.steps
        hidden, latent = weights.first.shape
        embeddings, constant = steps.new_empty(2, num_steps + 1, latent).unbind(0)
        embedding_sums = steps.new_empty(num_steps + 1, 2)
        folded, rounded = (torch.empty_like(w, dtype=dtype) for w in (weights.first, weights.second))
        vectors = steps.new_empty(num_steps + 3, hidden)
        launch(
            _network_kernel,
            (triton.cdiv(hidden, BLOCK_ROWS),),
            weights,
            embeddings,
            embedding_sums,
            folded,
            vectors[0],
            vectors[2:],
            vectors[1],
            rounded,
            constant,
            num_steps,
            LATENT=latent,
            HIDDEN=hidden,
            BLOCK_R=BLOCK_ROWS,
            BLOCK_K=padded(latent),
        )
        return cls(embeddings, embedding_sums, folded, vectors[0], vectors[2:], vectors[1], rounded, constant, eps)
