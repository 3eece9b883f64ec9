"""Darcy flow: steady flow through a porous medium of two materials.

    -∇·(a ∇u) = source  on (0, 1)²,   u = 0 on the boundary

Five-point differences on nodes that include the boundary, with the mean of the two nodes as coefficient of a
face. All samples are solved at once by conjugate gradients, preconditioned with the exact solve for a = 1:
the condition number is then at most max a / min a, whatever the grid.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import torch
from pydantic import Field as Value
from torch import Tensor

from factformer.config import Config
from factformer.errors import UserError
from factformer.grid import Grid
from factformer.numerics.elliptic import (
    Inverse,
    Operator,
    conjugate_gradients,
    dirichlet_poisson,
    divergence_form,
)
from factformer.numerics.interpolation import spline_matrix
from factformer.numerics.random_fields import neumann_field
from factformer.numerics.trigonometric import multiply_axis
from factformer.pdes._common import presets as _presets
from factformer.pdes._common.base import PDE, Frames, State, Symmetries
from factformer.pdes._common.ranges import per_sample
from factformer.pdes._common.symmetry import Generators, draw, take
from factformer.problem import Field

SPECTRAL_DECAY, INVERSE_LENGTH = 2.0, 3.0  # α and τ of the random field g
LOW, HIGH = 3.0, 12.0  # the coefficient where g < 0 and where g ≥ 0


class Parameters(Config):
    """``points`` says where the coefficient is given and the solution wanted: at the nodes, or, as in the
    public FNO files, at cell centres, from which splines lead to the nodes and back (0.5 % apart at 421²)."""

    source: float = 1.0
    face_mean: Literal["arithmetic", "harmonic"] = "arithmetic"
    points: Literal["nodes", "cells"] = "nodes"
    tolerance: float = Value(default=1e-8, gt=0, lt=1)


class DarcyFlow(PDE):
    name = "darcy_flow"
    downsamplings = ("points",)
    parameters = Parameters
    varying = ("source",)
    vectorized = True
    state = (Field("solution"),)
    static = (Field("coefficient"),)
    boundary = "zero"
    task = _presets.DARCY_FLOW_TASK
    presets = _presets.DARCY_FLOW

    def grid(self, shape: Sequence[int]) -> Grid:
        return Grid(shape, 1.0, periodic=False, points="nodes")

    def starts(self, grid: Grid, generators: Sequence[torch.Generator], kind: str, like: Tensor) -> State:
        """Coefficients of 12 where a Gaussian field g of covariance ``(-Δ + τ²)^-α`` is positive, else 3."""
        tau, alpha = INVERSE_LENGTH, SPECTRAL_DECAY
        field = neumann_field(
            grid,
            lambda squared: tau ** (alpha - 1) * (squared + tau**2) ** (-alpha / 2),
            generators,
            dtype=like.dtype,
            device=like.device,
        )
        return torch.where(field >= 0, HIGH, LOW).to(like.dtype).unsqueeze(-1)

    def frames(self, initial: State, num_frames: int, frame_dt: float, parameters: Config) -> Iterator[State]:
        """The one frame: the solution for the coefficient ``initial``, solved in float64 in any case.

        It can be differentiated by the coefficient, once.
        """
        assert isinstance(parameters, Parameters)
        coefficient = initial.squeeze(-1).double()
        low = coefficient.flatten(1).amin(1)  # before splines, which may overshoot at a node or two
        if bool((low <= 0).any()):
            row = int(low.argmin())
            raise UserError(
                f"darcy_flow: the coefficient must be positive, that of sample {row} falls to {float(low[row]):g}"
            )
        grid = self.grid(coefficient.shape[1:])
        if parameters.points == "nodes":
            yield _solve(coefficient, grid, parameters).unsqueeze(-1).to(initial.dtype)
            return
        cells = Grid(grid.shape, grid.extent, periodic=False, points="cells")
        solution = _solve(_spline(coefficient, cells, grid), grid, parameters)
        yield _spline(solution, grid, cells).unsqueeze(-1).to(initial.dtype)

    def downsample(self, frames: Frames, shape: Sequence[int], method: str | None = None) -> Frames:
        """Every s-th node, ends included: 421 nodes hold 43, 61, 85, 141 and 211."""
        self.choose_downsampling(method)
        for m, size in enumerate(shape, start=2):
            intervals = frames.shape[m] - 1
            if intervals % (size - 1):
                raise UserError(
                    f"{size} nodes are no subset of {frames.shape[m]}: {size - 1} does not divide {intervals}"
                )
            keep = torch.arange(0, intervals + 1, intervals // (size - 1), device=frames.device)
            frames = frames.index_select(m, keep)
        return frames

    def why_not_stored(self, parameters: Config) -> str:
        assert isinstance(parameters, Parameters)
        return "" if parameters.points == "nodes" else f"points={parameters.points} is for factformer.simulate alone"

    def symmetries(self, grid: Grid, parameters: Config | None = None) -> Symmetries:
        """The square's own: reflections of each axis and, on a square grid, their exchange.

        The maps act alike on the coefficient and on the solution.
        """
        maps: dict[str, Callable[[Frames], Frames]] = {
            "reflection of x1": lambda frames: frames.flip(2),
            "reflection of x2": lambda frames: frames.flip(3),
        }
        if grid.shape[0] == grid.shape[1]:
            maps["exchange of x1 and x2"] = lambda frames: frames.transpose(2, 3)
            maps["rotation by π/2"] = lambda frames: frames.rot90(1, (2, 3))
        return maps

    def augment(self, frames: Frames, grid: Grid, generator: Generators, parameters: Config | None = None) -> Frames:
        """One of the square's eight symmetries per sample. ``frames`` hold coefficient and solution side by
        side in the channels, so that both move together."""
        batch = len(frames)
        flips = [draw(generator, 2, batch) for _ in grid.shape]
        swap = draw(generator, 2 if grid.shape[0] == grid.shape[1] else 1, batch)
        indices = []
        for size, flip in zip(grid.shape, flips, strict=True):
            points = torch.arange(size).expand(batch, -1)
            indices.append(torch.where(flip[:, None] == 1, size - 1 - points, points))
        return take(frames, indices, torch.stack([swap, 1 - swap], dim=1))


def _solve(coefficient: Tensor, grid: Grid, parameters: Parameters) -> Tensor:
    if min(grid.shape) < 3:
        raise UserError(f"darcy_flow: {grid.shape} nodes have no inner one; use at least 3 per axis")
    spacing = [length / (size - 1) for length, size in zip(grid.extent, grid.shape, strict=True)]
    inner = tuple(size - 2 for size in grid.shape)
    # single precision is enough to precondition with, and half the work
    poisson = dirichlet_poisson(inner, spacing, dtype=torch.float32, device=coefficient.device)

    def build(values: Tensor) -> Operator:
        return divergence_form(values, spacing, harmonic=parameters.face_mean == "harmonic")

    def solve(operator: Operator, right: Tensor) -> Tensor:
        solution, residual = conjugate_gradients(
            operator, right, lambda values: poisson(values.float()).double(), tolerance=parameters.tolerance
        )
        if not bool((residual <= 2 * parameters.tolerance).all()):  # so that NaN is none either
            row = int(residual.argmax())
            raise UserError(
                f"darcy_flow: sample {row} stopped at a residual of {float(residual[row]):.1e} above "
                f"tolerance={parameters.tolerance:g}; is the contrast of its coefficient extreme?"
            )
        return solution

    right = coefficient.new_full((len(coefficient), *inner), 1.0)
    solution: Tensor = Inverse.apply(coefficient, right, build, solve)
    source = per_sample(parameters.source, solution.ndim, solution.device)
    return torch.nn.functional.pad(source * solution, [1, 1] * len(inner))


def _spline(values: Tensor, source: Grid, target: Grid) -> Tensor:
    for m in range(source.num_axes):
        values = multiply_axis(spline_matrix(source.axis(m), target.axis(m)).to(values), values, m + 1)
    return values


pde = DarcyFlow()
