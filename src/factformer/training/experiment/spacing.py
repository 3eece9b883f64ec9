"""Patch and stride chosen from the data: how fine the network sees them in space, and how far a call goes in time.

Two numbers of some trajectories decide, each that of the worst field:

    detail = Var(u - mean of u over its patch) / Var(u)        increment = rms(u(t + s dt) - u(t)) / std(u)

Both are only raised for `factformer_plus` on the grids and within the limits that were measured
(docs/how-to/faster-than-the-solver.md); in doubt they stay 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from factformer.config import assignment
from factformer.data.store import Dataset
from factformer.models._backbone import ModelConfig
from factformer.training.experiment.definition import assigned

MEASURED_MODEL = "factformer_plus"
LOOKED_AT = 8
"""Trajectories that are looked at, spread over the split."""
FRAMES = 33
"""Neighbouring frames of each, from its start, its middle or its end in turn."""
PATCH, STRIDE = 2, 2
FEWEST_POINTS = 64
"""Points along each axis from which on a patch pays."""
FEWEST_FRAMES = 32
"""Frames of a trajectory from which on every second one is enough to train on."""
MOST_DETAIL = 0.1
MOST_INCREMENT = 0.2


@dataclass(frozen=True)
class Spacing:
    """What was chosen, with the numbers that decided."""

    patch: int
    stride: int
    detail: float
    increment: float
    frame_dt: float
    """Time between two frames of the data."""

    @property
    def assignments(self) -> list[str]:
        chosen = {"model.patch": self.patch, "protocol.stride": self.stride}
        return [assignment(key, value) for key, value in chosen.items() if value > 1]

    @property
    def line(self) -> str:
        """One line for the user; empty where nothing was raised."""
        reasons = {
            "model.patch": (self.patch, f"{100 * self.detail:.2g} % of the variance lies within patches"),
            "protocol.stride": (
                self.stride,
                f"{self.stride} frames change it by {self.increment:.2g} deviations; "
                f"the surrogate's frame_dt is {self.stride * self.frame_dt:g}",
            ),
        }
        raised = {key: reason for key, reason in reasons.items() if reason[0] > 1}
        if not raised:
            return ""
        said = ", ".join(f"{key}={value} ({why})" for key, (value, why) in raised.items())
        return f"from the data: {said}; set {' and '.join(f'{key}=1' for key in raised)} for none"


def choose_spacing(dataset: Dataset, model: ModelConfig, assignments: Sequence[str]) -> Spacing:
    """Patch and stride for the data; values the user set explicitly win, and a fine-tuned bundle keeps its own."""
    problem = dataset.problem
    shape, frame_dt = problem.grid.shape, problem.frame_dt
    ours = model.name == MEASURED_MODEL and assigned("model.name", assignments) in (None, MEASURED_MODEL)
    if not ours or not problem.num_context_frames or assigned("training.init", assignments) is not None:
        return Spacing(1, 1, math.nan, math.nan, frame_dt)
    free_patch = "patch" not in model.model_fields_set and assigned("model.patch", assignments) is None
    free_stride = assigned("protocol.stride", assignments) is None
    room = dataset.num_frames // STRIDE - problem.num_context_frames
    coarse = assigned("protocol.coarse", assignments) or 1
    may_patch = (
        free_patch
        and len(shape) == 2
        and not problem.masked
        and coarse == 1
        and all(size >= FEWEST_POINTS and size % PATCH == 0 for size in shape)
    )
    may_stride = (
        free_stride
        and len(shape) == 2
        and min(shape) >= FEWEST_POINTS
        and dataset.num_frames >= FEWEST_FRAMES
        and problem.horizon % STRIDE == 0
        and room >= problem.horizon // STRIDE
    )
    if not may_patch and not may_stride:
        return Spacing(1, 1, math.nan, math.nan, frame_dt)
    detail, increment = measure(dataset)
    return Spacing(
        PATCH if may_patch and detail <= MOST_DETAIL else 1,
        STRIDE if may_stride and increment <= MOST_INCREMENT else 1,
        detail,
        increment,
        frame_dt,
    )


def measure(dataset: Dataset) -> tuple[float, float]:
    """Detail and increment of the worst field that varies, over some trajectories."""
    count = min(dataset.num_trajectories, LOOKED_AT)
    last = max(0, dataset.num_frames - FRAMES)
    within: Any = 0.0
    moved: Any = 0.0
    total: Any = 0.0
    for number in range(count):
        first = (0, last // 2, last)[number % 3]
        frames = dataset.read_exact([number * dataset.num_trajectories // count], slice(first, first + FRAMES))[0]
        values = frames.astype(np.float64)
        total = total + _mean(np.square(values - _mean(values)))
        within = within + _mean(np.square(values - _patch_means(values)))
        moved = moved + _mean(np.square(values[STRIDE:] - values[:-STRIDE])) if len(values) > STRIDE else np.inf
    varies = total > 0
    if not np.all(np.isfinite(total)) or not varies.any():
        return math.inf, math.inf
    return float((within[varies] / total[varies]).max()), float(np.sqrt((moved[varies] / total[varies]).max()))


def _mean(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Over all axes but the channels."""
    result: NDArray[np.float64] = values.mean(axis=tuple(range(values.ndim - 1)))
    return result


def _patch_means(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Each value replaced by the mean over its patch; sizes that patches do not divide keep their last points."""
    for axis in range(1, values.ndim - 1):
        whole = values.shape[axis] // PATCH * PATCH
        inside, rest = np.split(values, [whole], axis=axis)
        shape = list(inside.shape)
        shape[axis : axis + 1] = [whole // PATCH, PATCH]
        means = np.repeat(inside.reshape(shape).mean(axis=axis + 1), PATCH, axis=axis)
        values = np.concatenate([means, rest], axis=axis)
    return values
