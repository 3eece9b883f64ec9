"""Memory that is freed and soon asked for again, kept by the process.

The C library of Linux gives large tensors back to the system as soon as they are freed, and the system clears and maps
every page of the next one anew. On a CPU that took a third of a call of a network, whose tensors come and go at the
same sizes (docs/performance.md).
"""

from __future__ import annotations

import ctypes
import os
import sys

KEPT = 2**28
"""Bytes: blocks of up to this size, and as many free ones at the end of the memory, stay with the process."""
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # names of mallopt(3)
OF_THE_USER = ("GLIBC_TUNABLES", "MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_MMAP_MAX_")


def keep_freed_memory() -> bool:
    """Keep up to `KEPT` bytes from here on; whether the C library can, and the user has not set it otherwise."""
    if sys.platform != "linux" or any(name in os.environ for name in OF_THE_USER):
        return False
    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version"):  # musl has no such settings
        return False
    return all(library.mallopt(setting, KEPT) == 1 for setting in (MMAP_THRESHOLD, TRIM_THRESHOLD))
