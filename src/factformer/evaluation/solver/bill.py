"""What the rows of a benchmark say: the speed-up at equal error, and when a surrogate has paid for itself."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

Bound = Literal["", "at least", "at most"]
Point = tuple[float, float]
"""Error and seconds."""


@dataclass(frozen=True)
class SecondsAtError:
    """What the solver needs for an error; a bound where it was not measured that accurate or that inaccurate."""

    seconds: float
    bound: Bound = ""


def frontier(points: Sequence[Point]) -> list[Point]:
    """The points that no other beats in both, from the most accurate to the fastest."""
    best: list[Point] = []
    for error, seconds in sorted(points):
        if not best or seconds < best[-1][1]:
            best.append((error, seconds))
    return best


def seconds_at_error(points: Sequence[Point], error: float) -> SecondsAtError | None:
    """Seconds at an error, interpolated between the logarithms of both along the frontier; None without points.

    Beyond the ends it is that of the end: the solver needs at least as long for less error, at most as long for more.
    """
    usable = [(e, s) for e, s in points if e > 0 and s > 0 and math.isfinite(e) and math.isfinite(s)]
    ends = frontier(usable)
    if not ends or not (error > 0 and math.isfinite(error)):
        return None
    if error < ends[0][0]:
        return SecondsAtError(ends[0][1], "at least")
    if error > ends[-1][0]:
        return SecondsAtError(ends[-1][1], "at most")
    for (e0, s0), (e1, s1) in pairwise(ends):
        if e0 <= error <= e1:
            share = math.log(error / e0) / math.log(e1 / e0)
            return SecondsAtError(s0 * (s1 / s0) ** share)
    return SecondsAtError(ends[0][1])


def break_even(invested: float | None, solver: float, surrogate: float) -> float | None:
    """Solutions until ``invested`` seconds are saved again; None where nothing is saved or the effort is not known."""
    if invested is None or surrogate >= solver:
        return None
    return invested / (solver - surrogate)


def speedups(rows: Sequence[dict[str, Any]], starts: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Of every surrogate row at equal error, by its precision and the start of the solver."""
    result: dict[str, dict[str, Any]] = {}
    for row in rows:
        if row["start"] is not None or row["error"] is None:
            continue
        found = {}
        for start in starts:
            points = [(r["error"], r["seconds"]) for r in rows if r["start"] == start and r["error"] is not None]
            at = seconds_at_error(points, row["error"])
            if at is not None:
                found[start] = {"factor": at.seconds / row["seconds"], "bound": at.bound, "solver_seconds": at.seconds}
        result[row["precision"]] = found
    return result
