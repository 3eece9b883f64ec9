"""Factorized attention with its residual add, head by head and block by block.

    Vᵀ = W_v xᵀ  (channel *grid)   →   ×_n A⁽ⁿ⁾, …, ×_1 A⁽¹⁾   →   Z  (*grid channel)

Each contraction is one product along the last axis of all values, and puts the new axis in front: ``(c, S_1, S_2)``
becomes ``(S_2', c, S_1)`` and that ``(S_1', S_2', c)``. After all of them the channels are last, without a copy in
between. Mean and deviation of a head are taken from the pieces: the mean is subtracted there, and the deviation divides
the weights of the output network.

Reference implementation: `factformer.nn.attention.FactorizedAttention.plain`.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from factformer.grid import Grid
from factformer.kernels.blocked.products import PIECE, are_plain, blocks, linear, weights
from factformer.nn.attention import FactorizedAttention
from factformer.nn.attention.axial_kernel import AxialKernel
from factformer.nn.masks import Mask
from factformer.nn.norms import cached_domain_weights

ROWS = 128
"""Channels of values that one product makes: with fewer rows it is slow."""
COLUMNS = 2**14
"""Points of such a product."""


def fits(layer: FactorizedAttention, u: Tensor, *_: object) -> bool:
    """Contractions one after the other, with layers that are PyTorch's own."""
    exact = not layer.parallel and all(type(kernel) is AxialKernel for kernel in layer.kernels)
    return exact and are_plain(layer.norm, layer.to_values, layer.to_output)


def run(
    layer: FactorizedAttention,
    u: Float[Tensor, "batch *grid dim"],
    encoding: Float[Tensor, "*grid dim"] | None,
    grid: Grid,
    mask: Mask | None = None,
    *,
    dtype: torch.dtype,
) -> Float[Tensor, "batch *grid dim"]:
    total = u if encoding is None else u + encoding
    x = layer.normalized(total, grid, mask)
    exact = x.float()  # means of bfloat16 over several axes are slow
    axes = [kernel.operators(*kernel.factors(exact, grid, mask), grid, mask=mask) for kernel in layer.axes()]
    del exact
    shares = cached_domain_weights(layer.tables, grid, x, mask)
    # The sum with the encoding is ours: the result may take its place.
    result = torch.empty_like(total, dtype=torch.promote_types(total.dtype, dtype)) if encoding is None else total
    points = [tensor.flatten(1, -2) for tensor in (total, x, result)]
    for sample, (residual, normalized, out) in enumerate(zip(*points, strict=True)):
        operators = [[matrix[sample].to(dtype) for matrix in matrices] for matrices in axes]
        share = shares if shares is None or mask is None else shares[sample]
        heads = contracted_heads(layer, normalized.to(dtype), operators, grid)
        pieces, deviations = centred(heads, None if share is None else share.flatten())
        outside = None if mask is None else ~mask[sample].flatten().unsqueeze(-1)
        add_output(layer, pieces, deviations, residual, out, outside)
    return result


def contracted_heads(
    layer: FactorizedAttention,
    x: Float[Tensor, "point dim"],
    operators: list[list[Float[Tensor, "head out points"]]],
    grid: Grid,
) -> list[list[Float[Tensor, "*grid channel"]]]:
    """``V ×_1 A⁽¹⁾ … ×_n A⁽ⁿ⁾`` of each head of a sample, in pieces of a few channels."""
    weight, _ = weights(layer.to_values, x.dtype)
    num_channels = weight.shape[0] // layer.heads
    together = max(1, min(ROWS // num_channels, layer.heads))
    at_once = max(c for c in range(1, num_channels + 1) if num_channels % c == 0 and (c == 1 or c * len(x) <= PIECE))
    room = x.new_empty(together * num_channels if len(x) > COLUMNS else 0, len(x))
    heads = []
    for first, rows in enumerate(weight.split(together * num_channels)):
        values = transposed_values(rows, x, room)
        for index, head in enumerate(values.split(num_channels), start=first * together):
            heads.append([contracted(piece, index, operators, grid) for piece in head.split(at_once)])
    return heads


def transposed_values(
    weight: Float[Tensor, "row dim"], x: Float[Tensor, "point dim"], room: Float[Tensor, "most point"]
) -> Float[Tensor, "row point"]:
    """``W xᵀ``; where there are many points, some of them at a time into ``room``."""
    if len(x) <= COLUMNS:
        return linear(weight, x)
    values = room[: len(weight)]
    for start in range(0, len(x), COLUMNS):
        columns = slice(start, start + COLUMNS)
        values[:, columns] = linear(weight, x[columns])
    return values


def contracted(
    values: Float[Tensor, "channel point"], head: int, operators: list[list[Tensor]], grid: Grid
) -> Float[Tensor, "*grid channel"]:
    """Channels of one head, contracted along the last axis first."""
    num_channels = len(values)
    for size, matrices in zip(reversed(grid.shape), reversed(operators), strict=True):
        values = values.reshape(-1, size)
        for matrix in matrices[:-1]:  # the low-rank order: coefficients of the keys first
            values = linear(values, matrix[head])
        values = linear(matrices[-1][head], values)
    return values.view(*grid.shape, num_channels)


def centred(
    heads: list[list[Float[Tensor, "*grid channel"]]], share: Float[Tensor, " point"] | None
) -> tuple[list[Float[Tensor, "point channel"]], Float[Tensor, " head"]]:
    """All pieces without the mean of their head over the domain, and the variance of each head."""
    pieces, variances = [], []
    for head in heads:
        count = sum(piece.shape[-1] for piece in head)
        mean = torch.stack([_sum(piece, share) for piece in head]).sum() / count
        pieces += [piece.sub_(mean).flatten(0, -2) for piece in head]
        variances.append(torch.stack([_sum_of_squares(piece, share) for piece in head]).sum() / count)
    return pieces, torch.stack(variances)


def _sum(piece: Float[Tensor, "*grid channel"], share: Float[Tensor, " point"] | None) -> Float[Tensor, ""]:
    """The sum over the channels of their mean over the domain."""
    if share is None:
        return piece.sum(dtype=torch.float32) / (piece.numel() // piece.shape[-1])
    each: Tensor = piece.flatten(0, -2).sum(-1, dtype=torch.float32)
    return (each * share).sum()


def _sum_of_squares(piece: Float[Tensor, "*grid channel"], share: Float[Tensor, " point"] | None) -> Float[Tensor, ""]:
    if share is None:  # long rows first, whose sums are then added pairwise
        lengths: Tensor = torch.linalg.vector_norm(piece.flatten(1), dim=1, dtype=torch.float32)
        return lengths.square().sum() / (piece.numel() // piece.shape[-1])
    lengths = torch.linalg.vector_norm(piece.flatten(0, -2), dim=1, dtype=torch.float32)
    return (lengths.square() * share).sum()


def add_output(
    layer: FactorizedAttention,
    pieces: list[Float[Tensor, "point channel"]],
    variances: Float[Tensor, " head"],
    residual: Float[Tensor, "point dim"],
    out: Float[Tensor, "point dim"],
    outside: Tensor | None,
) -> None:
    """``out = residual + f(Z)`` of the normalised heads, which are put side by side block by block."""
    dtype = pieces[0].dtype
    first, _, second = layer.to_output
    weight, bias = weights(first, torch.float32)
    by_head = weight.unflatten(1, [layer.heads, -1]) * (variances + layer.norm_eps).rsqrt()[:, None]
    combine = by_head.flatten(1).to(dtype), None if bias is None else bias.to(dtype)
    last = weights(second, dtype)
    for rows in blocks(len(residual)):
        hidden = linear(torch.cat([piece[rows] for piece in pieces], dim=1), *combine, "gelu")
        added = linear(hidden, *last)
        if outside is not None:
            added.masked_fill_(outside[rows], 0.0)
        torch.add(residual[rows], added, out=out[rows])
