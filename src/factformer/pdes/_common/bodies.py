"""Random bodies in a stream: circles, ellipses and rounded boxes that do not touch each other."""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool
from torch import Tensor

from factformer.grid import Grid

MOST_BODIES = 4
REGION = (0.12, 0.5)
"""Where centres may lie along the stream, of the length of the box."""
RADII = (0.045, 0.09)
"""Half the longest diameter of a body, of the height of the box."""
GAP = 0.05
"""The least distance between bodies, of the height of the box."""
ROUNDNESS = 5.0
"""The exponent of a rounded box ``|x/a|^p + |y/b|^p ≤ 1``; that of an ellipse is 2."""
ATTEMPTS = 12


def random_bodies(grid: Grid, generator: torch.Generator) -> Bool[Tensor, "*grid"]:
    """Where one to four bodies lie; a function of the generator alone, whatever the number of points."""
    length, height = grid.extent
    count = int(torch.randint(1, MOST_BODIES + 1, (), generator=generator))
    draws = torch.rand(ATTEMPTS, 6, generator=generator, dtype=torch.float64).tolist()
    placed: list[tuple[float, float, float]] = []
    inside = torch.zeros(grid.shape, dtype=torch.bool)
    for along, across, size, kind, flatness, turn in draws:
        x = length * (REGION[0] + (REGION[1] - REGION[0]) * along)
        y = height * across
        radius = height * (RADII[0] + (RADII[1] - RADII[0]) * size)
        gaps = [math.hypot(x - a, _periodic(y - b, height)) - radius - r for a, b, r in placed]
        if min(gaps, default=math.inf) < GAP * height:
            continue
        placed.append((x, y, radius))
        inside |= body(grid, (x, y), radius, int(3 * kind), flatness, math.pi * turn)
        if len(placed) == count:
            break
    return inside


def body(
    grid: Grid, centre: tuple[float, float], radius: float, kind: int = 0, flatness: float = 0.0, turn: float = 0.0
) -> Bool[Tensor, "*grid"]:
    """The points inside one body: a circle (0), an ellipse (1) or a rounded box (2) of half-length ``radius``.

    The other half-axis of an ellipse or a box is between ``radius / 2`` and ``radius`` by its ``flatness``; a box fits
    into the circle of that radius. ``turn`` is the angle of its long axis.
    """
    x, y = grid.axis(0).double()[:, None] - centre[0], grid.axis(1).double() - centre[1]
    y = torch.remainder(y + grid.extent[1] / 2, grid.extent[1]) - grid.extent[1] / 2
    along, across = x * math.cos(turn) + y * math.sin(turn), y * math.cos(turn) - x * math.sin(turn)
    power = ROUNDNESS if kind == 2 else 2.0
    ratio = 1.0 if kind == 0 else 1 - 0.5 * flatness
    longest = radius if kind < 2 else radius / math.hypot(1.0, ratio)
    return (along.abs() / longest) ** power + (across.abs() / (ratio * longest)) ** power <= 1


def _periodic(distance: float, length: float) -> float:
    return math.remainder(distance, length)
