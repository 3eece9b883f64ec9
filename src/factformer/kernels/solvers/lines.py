"""What the kernels must know of a line: its factors and the roots of unity."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from factformer.kernels.solvers import FACTORS


@dataclass(frozen=True, kw_only=True)
class Line:
    """What a kernel is made for: lines of ``S`` numbers, ``R`` of them at a time, and how they are held (`fourier`)."""

    S: int
    R: int
    LIST: int
    LANES: int
    WIDE_LIST: int
    WIDE_LANES: int


class Lines:
    """Lines of ``size`` numbers: a table of cosines and sines, and the lists and lanes that hold them."""

    def __init__(self, size: int, device: torch.device) -> None:
        self.size = size
        angle = torch.arange(size, dtype=torch.float64) * (2 * math.pi / size)
        self.table = torch.cat([angle.cos(), angle.sin()]).to(device, torch.float32)

    def taken(self, number: int) -> Line:
        """For programs that take this many at a time."""
        length, lanes, wide_length, wide_lanes = FACTORS[self.size]
        return Line(S=self.size, R=number, LIST=length, LANES=lanes, WIDE_LIST=wide_length, WIDE_LANES=wide_lanes)
