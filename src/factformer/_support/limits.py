"""What this computer can hold, asked before something large is built."""

from __future__ import annotations

import os
from pathlib import Path

from factformer._support.files import size_text
from factformer.errors import UserError


def available_memory() -> int:
    """Bytes of main memory that a new object may take; a very large number where the system does not tell."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
        found = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    except (OSError, ValueError, IndexError):
        found = []
    if found:
        return found[0]
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):  # Windows
        return 2**62


def require_memory(num_bytes: float, what: str, advice: str) -> None:
    """Raise one line with the estimate where ``what`` does not fit into main memory."""
    available = available_memory()
    if num_bytes > available:
        raise UserError(
            f"{what} takes about {size_text(num_bytes)} of memory, this computer has {size_text(available)} free; "
            f"{advice}"
        )
