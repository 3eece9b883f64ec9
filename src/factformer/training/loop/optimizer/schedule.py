"""Learning rate as a function of progress: how much of training is over, from 0 to 1.

Progress is measured in updates or in seconds, so the same shape fits a number of updates and a time budget.
"""

from __future__ import annotations

import math
from typing import Literal

ScheduleName = Literal["one_cycle", "cosine", "constant"]


def learning_rate_factor(
    schedule: ScheduleName, progress: float, *, warmup: float, initial: float, final: float
) -> float:
    """The learning rate over its highest value.

    ``one_cycle`` rises and falls along half cosines (Smith & Topin 2018); ``cosine`` rises linearly and falls
    along a half cosine; ``constant`` rises linearly and stays.
    """
    progress = min(max(progress, 0.0), 1.0)
    if progress < warmup:
        rise = progress / warmup
        return _half_cosine(initial, 1.0, rise) if schedule == "one_cycle" else initial + (1 - initial) * rise
    if schedule == "constant":
        return 1.0
    return _half_cosine(1.0, final, (progress - warmup) / (1.0 - warmup))


def _half_cosine(start: float, end: float, part: float) -> float:
    return end + (start - end) * (1.0 + math.cos(math.pi * part)) / 2.0
