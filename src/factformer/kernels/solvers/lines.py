"""What the kernels must know of a line: its factors and the roots of unity."""

from __future__ import annotations

import math

import torch

from factformer.kernels.solvers import FACTORS


class Lines:
    """Lines of ``size`` numbers: a table of cosines and sines, and the lists and lanes that hold them."""

    def __init__(self, size: int, device: torch.device) -> None:
        self.size = size
        angle = torch.arange(size, dtype=torch.float64) * (2 * math.pi / size)
        self.table = torch.cat([angle.cos(), angle.sin()]).to(device, torch.float32)
        length, lanes, wide_length, wide_lanes = FACTORS[size]
        self.inner = {"LIST": length, "LANES": lanes, "WIDE_LIST": wide_length}
        self.both = {**self.inner, "WIDE_LANES": wide_lanes}
