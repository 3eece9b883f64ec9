"""Peak memory of a stretch of code: the allocator's on a GPU, the resident set's on a CPU."""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from factformer.errors import UserError

MEGABYTE = 2**20


@dataclass
class Peak:
    """The result of `peak_memory`, filled when its block ends."""

    megabytes: float = float("nan")


@contextlib.contextmanager
def peak_memory(device: torch.device | str) -> Iterator[Peak]:
    """Peak memory in MB while the block runs.

    On a GPU the allocator's peak. On a CPU the growth of the resident set above its value at the start: Linux
    keeps the high-water mark and lets a process reset its own. NaN where the system offers neither.
    """
    device = torch.device(device)
    peak = Peak()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        yield peak
        torch.cuda.synchronize(device)
        peak.megabytes = torch.cuda.max_memory_allocated(device) / MEGABYTE
        return
    _return_free_pages()
    start = _resident("VmRSS") if _reset_high_water_mark() else None
    yield peak
    end = _resident("VmHWM")
    if start is not None and end is not None:
        peak.megabytes = max(end - start, 0.0)


@contextlib.contextmanager
def memory_explained(advice: str) -> Iterator[None]:
    """Turn running out of memory into one line that ends with ``advice``."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:  # a CPU allocation of torch that fails is a plain RuntimeError
        known = isinstance(error, (MemoryError, torch.OutOfMemoryError))
        if not known and "can't allocate memory" not in str(error):
            raise
        raise UserError(f"there is not enough memory: {advice}") from error


def _return_free_pages() -> None:
    """Give pages that were freed before back to the system, so that they count when they are used again."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):  # another C library than glibc
            ctypes.CDLL("libc.so.6").malloc_trim(0)


def _reset_high_water_mark() -> bool:
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
    except OSError:
        return False
    return True


def _resident(key: str) -> float | None:
    try:
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) * 1024 / MEGABYTE
    return None
