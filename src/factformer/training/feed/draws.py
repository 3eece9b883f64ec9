"""Random numbers of a training sample: from (seed, update, place in the batch) alone, on however many devices."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch


def generators(
    purpose: str, seed: int, update: int, slots: Sequence[int], device: torch.device | str = "cpu"
) -> list[torch.Generator]:
    """One generator for each place in the batch; those of different purposes know nothing of each other."""
    return [torch.Generator(device).manual_seed(_number(f"{purpose}/{seed}/{update}/{slot}")) for slot in slots]


def _number(key: str) -> int:
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") >> 1
