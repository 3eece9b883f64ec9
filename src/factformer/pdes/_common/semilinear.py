"""Semilinear equations on a periodic cube: a new one is a linear symbol and a nonlinear term.

    ∂u/∂t = L u + N(u)

A subclass gives `linear` and `nonlinear`, its field, parameters with good defaults, and random starts. Transforms,
dealiasing and the integrator (ETDRK4) are those of `factformer.numerics.semilinear`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from factformer.config import Config
from factformer.errors import UserError
from factformer.grid import Grid
from factformer.kernels.solvers.replay import repeated
from factformer.numerics.random_fields import truncated_series
from factformer.numerics.semilinear import Modes as Modes
from factformer.numerics.semilinear import cutoff_for, growing, points_for, solve
from factformer.numerics.timestepping import Function
from factformer.pdes._common.base import State
from factformer.pdes._common.periodic import PeriodicBox
from factformer.pdes._common.ranges import per_sample
from factformer.problem import Field


class Semilinear(PeriodicBox):
    """``∂u/∂t = L u + N(u)``. Its parameters have ``extent``, the lengths of the box, and may have ``dt``.

    That is the longest time step; without it, a step is as long as the interval of the frames.
    """

    cuttable = True

    degree: ClassVar[int] = 2
    """Factors in the highest product of the nonlinear term. It decides how many modes are free of aliases."""
    order: ClassVar[int] = 4
    """Of the integrator: 4, or 2 where data of others were made so."""
    open_products: ClassVar[bool] = False
    """Whether only the factors of products are cut, as `factformer.numerics.semilinear.solve` says."""

    def __init_subclass__(cls, **options: Any) -> None:
        """A start of one's own may need all points at once: its class says itself whether it can be cut."""
        super().__init_subclass__(**options)
        if {"start", "starts", "sample_initial", "frames"} & cls.__dict__.keys() and "cuttable" not in cls.__dict__:
            cls.cuttable = False

    @classmethod
    def require_complete(cls) -> None:
        super().require_complete()
        if "extent" not in cls.parameters.model_fields:
            raise UserError(f"the parameters of the class {cls.__name__} need `extent`: the lengths of the box")

    @abstractmethod
    def linear(self, modes: Modes, parameters: Any) -> Tensor:
        """The symbol of ``L``: a number for every mode, ``(*modes)`` or ``(channel, *modes)``.

        A parameter that differs between trajectories is an array that broadcasts against ``(batch, channel, *modes)``.
        """

    def nonlinear(self, modes: Modes, parameters: Any) -> Function | None:
        """``N`` from coefficients ``(batch, channel, *modes)`` to coefficients; ``None`` where there is none.

        One that needs all points at once, or a mode by its place in memory, says ``cuttable = False`` in its class.
        """
        return None

    def start(self, grid: Grid, generator: torch.Generator) -> Tensor:
        """One random initial state ``(*grid, channel)`` in float64: by default a truncated Fourier series.

        One that works point by point from ``grid.axis(m)``, or from truncated series, serves parts of a grid, too: say
        so with ``cuttable = True``.
        """
        channels = sum(field.num_channels for field in self.fields(grid.num_axes))
        return torch.stack([truncated_series(grid, generator) for _ in range(channels)], dim=-1)

    def grid(self, shape: Sequence[int]) -> Grid:
        return self.grid_of(shape, self.parameters())

    def grid_of(self, shape: Sequence[int], parameters: Any) -> Grid:
        return Grid(shape, parameters.extent, periodic=True)

    def starts(self, grid: Grid, generators: Sequence[torch.Generator], kind: str, like: Tensor) -> State:
        return torch.stack([self.start(grid, generator) for generator in generators]).to(like)

    def why_not_solved(self, shape: Sequence[int], parameters: Any) -> str:
        """Waves that grow must lie within the cut, where the nonlinear term holds them."""
        values = self._per_sample(parameters, 2 + len(shape), "cpu")
        one = Modes([3] * len(shape), [1] * len(shape), values.extent, dtype=torch.float64, device="cpu")
        if self.nonlinear(one, values) is None:
            return ""  # what grows without it is the exact solution
        largest = growing(lambda modes: self.linear(modes, values), shape, values.extent)
        if largest is None:
            return "waves grow that are far shorter than a grid like this one holds; check the parameters"
        cutoff = cutoff_for(self.degree, shape, self.open_products)
        if all(k <= cut for k, cut in zip(largest, cutoff, strict=True)):
            return ""
        needed = [points_for(self.degree, k, self.open_products) for k in largest]
        return (
            f"waves up to mode {times(largest)} grow, but on {times(shape)} points the nonlinear term, which bounds "
            f"them, has modes up to {times(cutoff)} only: take {times(needed)} points or more"
        )

    def frames(
        self, initial: State, num_frames: int, frame_dt: float, parameters: Config, grid: Grid | None = None
    ) -> Iterator[State]:
        values: Any = parameters
        shaped = self._per_sample(values, initial.ndim, initial.device)

        return solve(
            initial,
            lambda modes: self.linear(modes, shaped),
            lambda modes: self.nonlinear(modes, shaped),
            degree=self.degree,
            extent=values.extent,
            frame_dt=frame_dt,
            dt=getattr(values, "dt", None),
            num_frames=num_frames,
            repeat=repeated if grid is None else partial(repeated, recorded=False),
            order=self.order,
            open_products=self.open_products,
            grid=grid,
        )

    def _per_sample(self, parameters: Any, num_axes: int, device: torch.device | str) -> Any:
        """Parameters of which those of a trajectory each broadcast against tensors of ``num_axes``."""
        own = {name: per_sample(getattr(parameters, name), num_axes, device) for name in self.varying}
        return parameters.model_copy(update=own)


def times(sizes: Sequence[int]) -> str:
    """``24 x 24``."""
    return " x ".join(map(str, sizes))


def vector_of_axes(name: str, num_axes: int) -> tuple[Field, ...]:
    """A vector field with one component for each axis."""
    return (Field(name, num_axes),)
