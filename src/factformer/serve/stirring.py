"""Smooth disturbances of a state: what the mouse does to a flow.

A vector field gets a flow without divergence, from a stream function ψ: a swirl, or a jet along the stroke. A scalar of
zero mean, such as vorticity, gets the curl of that jet, a pair of opposite eddies; other scalars a bump.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from factformer.grid import Grid
from factformer.report.planes import Array, Component, Plane, cell_edges
from factformer.surrogate import Surrogate

NEARLY_ZERO = 0.1
"""Deviations that a mean lies from zero at most for the field to count as one of zero mean."""


@dataclass(frozen=True)
class Stroke:
    """Where a plane is stirred, as shares of its sides, in which direction (or none), how widely and how strongly.

    ``radius`` is a share of the plane's shorter side, ``strength`` a multiple of the field's deviation.
    """

    at: tuple[float, ...]
    along: tuple[float, ...] = ()
    radius: float = 0.06
    strength: float = 1.0

    @property
    def direction(self) -> tuple[float, ...]:
        """Of length one; nothing where there is none."""
        length = math.hypot(*self.along)
        return tuple(part / length for part in self.along) if length > 0 else ()


def disturbance(surrogate: Surrogate, grid: Grid, component: Component, plane: Plane, stroke: Stroke) -> Tensor:
    """What a stroke on a picture of ``component`` adds to the state, ``(*grid, channel)``."""
    problem, normalizer = surrogate.problem, surrogate.normalizer
    mean, std = normalizer.state_mean.cpu(), normalizer.state_std.cpu()
    result = torch.zeros(*grid.shape, problem.num_state_channels)
    channels = problem.state_slices[component.group]
    bell = Bell(grid, plane, stroke)
    if channels.stop - channels.start == grid.num_axes and len(plane.axes) == 2:
        size = stroke.strength * float(std[channels].mean())
        for axis, values in zip(plane.axes, bell.flow(), strict=True):
            result[..., channels.start + axis] = size * values
        return result
    channel = component.channel
    has_zero_mean = abs(float(mean[channel])) < NEARLY_ZERO * float(std[channel])
    values = bell.pair() if has_zero_mean and stroke.direction and len(plane.axes) == 2 else bell.values
    if has_zero_mean:
        values = values - values.mean()
    result[..., channel] = stroke.strength * float(std[channel]) * values
    return result


class Bell:
    """``G = exp(-r²/2σ²)`` around the place of a stroke, on the points of a grid, and fields made of it."""

    def __init__(self, grid: Grid, plane: Plane, stroke: Stroke) -> None:
        self.grid, self.plane, self.stroke = grid, plane, stroke
        edges = {axis: cell_edges(axis, grid.shape, grid) for axis in plane.axes}
        self.width = stroke.radius * min(float(ends[-1] - ends[0]) for ends in edges.values())
        centers = {axis: float(grid.axis(axis)[index]) for axis, index in plane.cuts}
        for axis, share in zip(plane.axes, stroke.at, strict=False):
            centers[axis] = self._drawn_at(axis, share, edges[axis])
        self.offsets = [self._offset(axis, centers[axis]) for axis in range(grid.num_axes)]
        squared = sum((offset / self.width) ** 2 for offset in self.offsets)
        self.values = torch.exp(-0.5 * torch.as_tensor(squared)).expand(grid.shape)

    def _drawn_at(self, axis: int, share: float, edges: Array) -> float:
        """The coordinate that a picture shows at a share of its side: even points are drawn in the middle of cells."""
        points = self.grid.axis(axis)
        if self.grid.is_even(axis):
            return float(points[0] + (share * len(points) - 0.5) * (points[1] - points[0]))
        return float(edges[0] + share * (edges[-1] - edges[0]))

    def _offset(self, axis: int, center: float) -> Tensor:
        """Distance along an axis, the short way round where it is periodic; broadcasts over the grid."""
        distance = self.grid.axis(axis).float() - center
        if self.grid.periodic[axis]:
            length = self.grid.extent[axis]
            distance = (distance + 0.5 * length) % length - 0.5 * length
        return distance.reshape(self._along(axis))

    def _along(self, axis: int) -> list[int]:
        return [-1 if other == axis else 1 for other in range(self.grid.num_axes)]

    def pair(self) -> Tensor:
        """The curl of a jet along the stroke, of largest value 1."""
        (a, b), (right, up) = self.plane.axes, self.stroke.direction
        return math.sqrt(math.e) * (right * self.offsets[b] - up * self.offsets[a]) / self.width * self.values

    def flow(self) -> tuple[Tensor, Tensor]:
        """``(∂ψ/∂x_b, -∂ψ/∂x_a)`` on the plane's axes a, b: a jet along the stroke, or a swirl.

        Its largest speed is 1, and it rests at walls.
        """
        a, b = self.plane.axes
        if self.stroke.direction:
            right, up = self.stroke.direction
            stream = (right * self.offsets[b] - up * self.offsets[a]) * self.values
        else:
            stream = -math.sqrt(math.e) * self.width * self.values
        for axis in range(self.grid.num_axes):
            if not self.grid.periodic[axis]:
                stream = stream * self._towards_walls(axis)
        right_speed, up_speed = slope(stream, self.grid, b), -slope(stream, self.grid, a)
        fastest = (right_speed.square() + up_speed.square()).amax().sqrt().clamp_min(1e-30)
        return right_speed / fastest, up_speed / fastest

    def _towards_walls(self, axis: int) -> Tensor:
        edges, points = cell_edges(axis, self.grid.shape, self.grid), self.grid.axis(axis).float()
        distance = torch.minimum(points - float(edges[0]), float(edges[-1]) - points)
        return (1 - torch.exp(-((distance / self.width) ** 2))).reshape(self._along(axis))


def slope(values: Tensor, grid: Grid, axis: int) -> Tensor:
    """Central differences of ``(*grid)`` along an axis; those along two axes commute."""
    if grid.periodic[axis] and grid.is_even(axis):
        spacing = grid.extent[axis] / grid.shape[axis]
        return (values.roll(-1, axis) - values.roll(1, axis)) / (2 * spacing)
    points = grid.axis(axis).numpy()
    return torch.from_numpy(np.gradient(values.numpy(), points, axis=axis)).float()
