"""Numbers of users: real, finite, of the right shape, and with something left of them in float32."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from factformer.arrays import as_mask, as_tensor, describe_channel, shape_advice
from factformer.data.statistics import LARGEST, SMALLEST, Moments
from factformer.errors import UserError
from factformer.problem import Problem, num_channels

MOST_LOST = 0.01
"""Part of a channel's variation that rounding to float32 may take at most."""
CONSTANT = 3e-10
"""What varies by less than this part of its mean is constant but for the round-off of whoever has computed it."""
WHOLE = 2.0**50
"""Whole numbers up to this hold no round-off: that of float64 has fractions here."""
UNIT = "give them in another unit"
WIDE = (torch.float64, torch.int64, torch.int32, torch.uint64, torch.uint32)
"""Types with more digits than float32."""


AXES = {
    "state": ("trajectory", "frame"),
    "forcing": ("trajectory", "frame"),
    "static": ("trajectory",),
    "mask": ("trajectory",),
    "parameters": ("trajectory",),
}
"""The axes of each part of a dataset before those of the grid."""


def checked(
    values: Tensor | NDArray[Any], problem: Problem, part: str, what: str, outside: Tensor | None = None
) -> Tensor:
    """``values`` of one part of a dataset, in float32 (a mask in booleans), if they are what ``problem`` needs.

    Points ``outside`` the domain, ``(trajectory, *grid)`` or one for all, may hold anything and become zero.
    """
    leading = AXES[part]
    if part == "mask":
        given = as_mask(values).detach().cpu()
        for_all = given.ndim == problem.grid.num_axes
        _require_shape(given, () if for_all else leading, problem.grid.shape, what, channels=False)
        given = given.unsqueeze(0) if for_all else given
        empty = ~given.flatten(1).any(1)
        if bool(empty.any()):
            raise UserError(f"{what} of trajectory {int(empty.nonzero()[0])} has no point inside the domain")
        return given.contiguous()
    given = as_tensor(values, what).detach().cpu()
    tensor = given.float()
    _require_shape(tensor, leading, expected_shape(problem, part), what, channels=part != "parameters")
    if outside is not None and part != "parameters" and len(outside) in (1, len(tensor)):
        where = outside.unsqueeze(-1) if part == "static" else outside.unsqueeze(1).unsqueeze(-1)
        given, tensor = given.masked_fill(where, 0), tensor.masked_fill(where, 0)
    rounding = Rounding(what)
    rounding.kept((given if given.dtype in WIDE else tensor).numpy())
    bad = ~torch.isfinite(tensor).flatten(1).all(dim=1)
    if bad.any():
        channel = int((~torch.isfinite(tensor)).flatten(0, -2).any(0).nonzero()[0])
        which = "" if part == "state" else f", in {describe_channel(problem, part, channel)}"
        first = int(bad.nonzero()[0])
        advice = "" if part == "parameters" else mask_advice(tensor[first], problem, part, "mask=")
        raise UserError(f"{what} hold NaN or infinite values in trajectory {first}{which}{advice}")
    rounding.require_digits()
    return tensor.contiguous()


def mask_advice(values: Tensor, problem: Problem, part: str, option: str) -> str:
    """What a mask has to do with the ``values`` of one part and trajectory, some of which are not finite."""
    if problem.masked:
        return ", inside the mask"
    frames = values[None] if part == "static" else values
    bad = ~frames.isfinite().all(-1)
    always = bool((bad == bad[:1]).all()) and not bool(bad.all())
    return f"; if these points, the same in all frames, lie outside the domain, give {option}" if always else ""


def expected_shape(problem: Problem, part: str) -> tuple[int, ...]:
    """What follows the leading axes (`AXES`) of a part."""
    if part == "parameters":
        return (len(problem.parameters),)
    if part == "mask":
        return problem.grid.shape
    return (*problem.grid.shape, num_channels(getattr(problem, part)))


def _require_shape(
    tensor: Tensor, leading: tuple[str, ...], expected: tuple[int, ...], what: str, *, channels: bool
) -> None:
    if tensor.ndim != len(expected) + len(leading) or tuple(tensor.shape[len(leading) :]) != expected:
        wanted: tuple[int | str, ...] = (*leading, *expected)
        shape = tuple(tensor.shape)
        words, advice = ", ".join(map(str, wanted)), shape_advice(shape, wanted, channels=channels)
        raise UserError(f"{what} must have shape ({words}), got {shape}{advice}")
    if 0 in tensor.shape[: len(leading)]:
        raise UserError(f"{what} are empty: shape {tuple(tensor.shape)}")


class Rounding:
    """Rounds values that come in pieces to float32, and remembers what this takes from each channel of ``what``."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._exact: Moments | None = None
        self._lost: NDArray[np.float64] | None = None
        self._whole: NDArray[np.bool_] | None = None
        self._largest = 0.0

    def kept(self, values: NDArray[Any]) -> NDArray[np.float32]:
        """The ``values (piece, *points, channel)`` in float32; NaN and infinite ones are left to the caller."""
        largest = max(float(values.max()), -float(values.min())) if values.size else 0.0
        if LARGEST < largest < np.inf:
            raise UserError(f"{self._what} go up to {largest:.3g}, beyond the numbers of float32; {UNIT}")
        self._largest = max(self._largest, largest)
        with np.errstate(over="ignore", invalid="ignore"):
            result = values.astype(np.float32, copy=False)
        if np.can_cast(values.dtype, np.float32) or not largest < np.inf:
            return result
        for given, rounded in zip(values, result, strict=True):
            exact = given.reshape(-1, given.shape[-1]).astype(np.float64, copy=False)
            lost = np.square(exact - rounded.reshape(exact.shape)).sum(axis=0)
            self._exact = Moments.of(exact) if self._exact is None else self._exact.merge(Moments.of(exact))
            self._lost = lost if self._lost is None else self._lost + lost
            whole = ((exact == np.rint(exact)) & ((values.dtype.kind != "f") | (np.abs(exact) < WHOLE))).all(axis=0)
            self._whole = whole if self._whole is None else self._whole & whole
        return result

    def require_digits(self) -> None:
        """Refuse channels whose variation is rounded away, unless they are constant but for round-off."""
        if 0 < self._largest < SMALLEST:
            raise UserError(f"{self._what} go up to {self._largest:.3g} only, which float32 keeps as zero; {UNIT}")
        if self._exact is None or self._lost is None or self._whole is None:
            return
        level, spread = self._exact.mean, self._exact.std
        size = np.hypot(level, spread)
        for channel in np.flatnonzero((size > 0) & (size < SMALLEST)):
            raise UserError(
                f"{self._what}: channel {channel} has numbers around {size[channel]:.3g}, which float32 keeps as zero; "
                f"{UNIT}"
            )
        lost = np.sqrt(self._lost / self._exact.count)
        varies = (spread > np.where(self._whole, 0.0, CONSTANT * np.abs(level))) & (spread > SMALLEST)
        for channel in np.flatnonzero((lost > MOST_LOST * spread) & varies):
            raise UserError(
                f"{self._what}: channel {channel} varies by {spread[channel]:.3g} around {level[channel]:.8g}, of "
                "which float32 keeps too little; take a constant off that channel"
            )
