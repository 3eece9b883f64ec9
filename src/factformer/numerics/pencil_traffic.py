"""Bytes that the processes of a cut periodic field send to each other, by formula; tests count the same.

An exchange between axes ``m`` and ``m + 1`` (`factformer.numerics.pencils`) happens where axis ``m`` is cut into
``P_m`` parts. What a process holds then is points along the axes up to ``m`` and modes along the others; of that it
keeps one part of ``P_m`` and sends the rest:

    numbers(m) = S_1 … S_m M_{m+1} … M_n / P · (1 - 1/P_m),        P = P_1 P_2 …

complex numbers per field, the same on the way to modes and on the way back, where all parts are even.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from factformer.numerics.mirror import shape_of, whole_ranges
from factformer.numerics.pencils import mode_ranges, part_of


def sent_by_transform(
    shape: Sequence[int], cutoff: Sequence[int], parts: Sequence[int], place: Sequence[int]
) -> tuple[int, int]:
    """Complex numbers that the process at ``place`` sends for one field: on the way to modes, and on that to points.

    ``shape`` is that of the points on which the field is taken, ``cutoff`` the largest mode of each axis.
    """
    slices = [part_of(*axis) for axis in zip(shape, parts, place, strict=True)]
    points = [kept.stop - kept.start for kept in slices]
    modes, whole = shape_of(mode_ranges(cutoff, parts, place)), shape_of(whole_ranges(cutoff))
    to_modes = to_points = 0
    for m, count in enumerate(parts):
        if count > 1:
            behind = math.prod(points[:m]) * math.prod(modes[m + 2 :])
            to_modes += behind * points[m] * (whole[m + 1] - modes[m + 1])
            to_points += behind * (shape[m] - points[m]) * modes[m + 1]
    return to_modes, to_points
