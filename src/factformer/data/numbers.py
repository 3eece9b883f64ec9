"""Arrays of users as tensors: real, finite, of the right shape, and with something left of them in float32."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from factformer.errors import UserError
from factformer.problem import Problem

MOST_LOST = 0.01
"""Part of a channel's variation that rounding to float32 may take at most."""
CONSTANT = 3e-10
"""What varies by less than this part of its mean is constant but for the round-off of whoever has computed it."""
SMALLEST = 1e-37
"""What varies by less than this, about the smallest number that float32 keeps all digits of, is constant too."""


def as_tensor(values: Tensor | NDArray[Any], what: str) -> Tensor:
    """An array of any byte order and direction as a tensor; the numbers must be real and all there."""
    if np.ma.is_masked(values):
        raise UserError(f"{what} are masked in places; fill these or leave the trajectories out")
    if isinstance(values, np.ndarray):
        values = np.asarray(values)
        native = values.dtype.newbyteorder("=")
        values = np.require(values.astype(native, copy=False), requirements=["C", "W"])
    tensor = torch.as_tensor(values)
    if tensor.is_complex():
        raise UserError(f"{what} hold complex numbers; give their parts as two channels")
    return tensor


def checked(values: Tensor | NDArray[Any], problem: Problem, num_channels: int, what: str) -> Tensor:
    """``values`` of shape ``(trajectory, frame, *grid, channel)`` in float32, if they are what ``problem`` needs."""
    given = as_tensor(values, what).detach().cpu()
    tensor = given.float()
    expected = (*problem.grid.shape, num_channels)
    if tensor.ndim != len(expected) + 2 or tuple(tensor.shape[2:]) != expected:
        raise UserError(
            f"{what} must have shape (trajectory, frame, {', '.join(map(str, expected))}), got {tuple(tensor.shape)}"
        )
    if tensor.shape[0] < 1 or tensor.shape[1] < 1:
        raise UserError(f"{what} are empty: shape {tuple(tensor.shape)}")
    bad = ~torch.isfinite(tensor).flatten(1).all(dim=1)
    if bad.any():
        first = int(bad.nonzero()[0])
        if given.is_floating_point() and bool(given[first].isfinite().all()):
            largest = float(given[first].abs().max())
            raise UserError(f"{what} go up to {largest:.3g}, beyond the numbers of float32; give them in another unit")
        raise UserError(f"{what} hold NaN or infinite values in trajectory {first}")
    if given.dtype in (torch.float64, torch.int64, torch.int32):
        _require_digits(given, tensor, what)
    return tensor.contiguous()


def _require_digits(given: Tensor, kept: Tensor, what: str) -> None:
    """Refuse channels whose variation float32 rounds away, unless they are constant but for round-off."""
    exact = given.double().flatten(0, -2)
    level, spread = exact.mean(0), exact.std(0, correction=0)
    lost = (exact - kept.flatten(0, -2)).square().mean(0).sqrt()
    varies = (spread > CONSTANT * level.abs()) & (spread > SMALLEST)
    for channel in ((lost > MOST_LOST * spread) & varies).nonzero().flatten().tolist():
        raise UserError(
            f"{what}: channel {channel} varies by {float(spread[channel]):.3g} around {float(level[channel]):.8g}, of "
            "which float32 keeps too little; take a constant off that channel"
        )
