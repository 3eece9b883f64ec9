"""What the processes of a cut grid exchange: bytes, by formula. `collectives.sent_bytes` counts the same.

Given is what a process hands to a collective; moved is what leaves it on the way. Of ``B`` bytes given over ``P``
processes, an all-reduce moves ``2 (P - 1) / P · B`` (as a ring does it) and a gather ``(P - 1) B``; halos and the
pieces of a ring move what is given. ``rest`` counts the points that a process holds along all axes but the cut one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence


def moved(kind: str, given: float, parts: int) -> float:
    """Bytes that leave a process for ``given`` bytes in a collective of this kind over ``parts`` processes."""
    factors = {"reduce": 2 * (parts - 1) / parts, "gather": float(parts - 1), "halo": 1.0, "ring": 1.0}
    return factors[kind] * given


def all_moved(given: Mapping[str, float], parts: int) -> float:
    """The same for several kinds together."""
    return sum(moved(kind, amount, parts) for kind, amount in given.items())


def low_rank(size: int, parts: int, rest: int, heads: int, head_dim: int, kernel_dim: int) -> dict[str, float]:
    """Values given for one contraction of a cut axis of ``size`` points as ``q̃ (k̃ᵀV)``: the coefficients, summed."""
    return {"reduce": float(heads * kernel_dim * head_dim * rest)}


def dense(size: int, parts: int, rest: int, heads: int, head_dim: int, kernel_dim: int) -> dict[str, float]:
    """The same as ``(q̃k̃ᵀ) V``: queries and keys of all parts, and the pieces of ``V`` passed around once."""
    here = size / parts
    return {"gather": 2 * heads * kernel_dim * here, "ring": (parts - 1) * heads * head_dim * here * rest}


def dense_moves_less(size: int, parts: int, rest: int, heads: int, head_dim: int, kernel_dim: int) -> bool:
    """Whether the dense order moves fewer bytes: about where the axis has fewer points than twice the kernel functions.

    The backward pass exchanges as much again in either order, so that the answer holds for training, too.
    """
    sizes = (size, parts, rest, heads, head_dim, kernel_dim)
    return all_moved(dense(*sizes), parts) < all_moved(low_rank(*sizes), parts)


def projections(shape: Sequence[int], cut_axis: int, dim: int) -> dict[str, float]:
    """Values given for the means over the cut axis, onto every other one; ``shape`` is that of a part."""
    return {"reduce": float(dim * sum(size for m, size in enumerate(shape) if m != cut_axis))}


def statistics(heads: int) -> dict[str, float]:
    """Values given for mean and variance of each head, and for the largest query and key of a cut axis."""
    return {"reduce": float(4 * heads)}


def halo(channels: int, reach: int, rest: int) -> dict[str, float]:
    """Values given to both neighbours for a convolution that reaches so many points."""
    return {"halo": float(2 * reach * channels * rest)}


def attention(
    shape: Sequence[int], cut_axis: int, parts: int, dim: int, heads: int, head_dim: int, kernel_dim: int
) -> dict[str, float]:
    """Values given by a layer of factorized attention for one sample of a grid ``shape`` with one cut axis."""
    size = shape[cut_axis]
    rest = math.prod(points for m, points in enumerate(shape) if m != cut_axis)
    sizes = (size, parts, rest, heads, head_dim, kernel_dim)
    order = dense if dense_moves_less(*sizes) else low_rank
    return added(projections(shape, cut_axis, dim), statistics(heads), order(*sizes))


def added(*terms: Mapping[str, float]) -> dict[str, float]:
    """The sum of several exchanges, kind by kind."""
    return {kind: sum(term.get(kind, 0.0) for term in terms) for kind in {kind for term in terms for kind in term}}
