"""The time of a call on a GPU."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch


def wall(call: Callable[[], Any], repeats: int) -> float:
    """Milliseconds of a call that has been warmed up."""
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(repeats):
        call()
    torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - began) / repeats
