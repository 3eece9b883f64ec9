"""The Gray-Scott reaction: spots, stripes and waves of two substances.

    ∂a/∂t = D_a ∇²a - a b² + F (1 - a)
    ∂b/∂t = D_b ∇²b + a b² - (F + k) b        on a periodic box

``feed`` F and ``kill`` k decide the pattern (Pearson 1993): 0.04 and 0.06 give labyrinths, 0.03 and 0.062 spots.
"""

from __future__ import annotations

import math

import torch
from pydantic import Field as Value
from torch import Tensor

from factformer.config import Config
from factformer.grid import Grid
from factformer.numerics.semilinear import Modes
from factformer.numerics.timestepping import Function
from factformer.pdes._common import presets as _presets
from factformer.pdes._common.semilinear import Semilinear
from factformer.problem import Field

NUM_BLOBS = 5
BLOB_WIDTH = 0.05  # of the box


class Parameters(Config):
    """Patterns are some ``0.1`` wide, and errors in space move their fronts: they grow with time.

    After 1100 units of time they are 44 % on 51 points per unit length, 5 % on 102, 1 % on 128 and 0.1 % on 154.
    """

    diffusivity_a: float = Value(default=2e-5, gt=0)
    diffusivity_b: float = Value(default=1e-5, gt=0)
    feed: float = Value(default=0.04, ge=0)
    kill: float = Value(default=0.06, ge=0)
    extent: float = Value(default=2.5, gt=0)
    dt: float = Value(default=1.0, gt=0)


class GrayScott(Semilinear):
    name = "gray_scott"
    parameters = Parameters
    varying = ("diffusivity_a", "diffusivity_b", "feed", "kill", "extent")
    state = (Field("concentrations", 2),)
    dimensions = (2, 1, 3)
    degree = 3
    cuttable = True
    task = _presets.GRAY_SCOTT_TASK
    presets = _presets.GRAY_SCOTT

    def start(self, grid: Grid, generator: torch.Generator) -> Tensor:
        """Blobs of b where a is used up, in a sea of a."""
        blobs = torch.zeros(grid.shape, dtype=torch.float64)
        for centre in torch.rand(NUM_BLOBS, grid.num_axes, generator=generator, dtype=torch.float64):
            distance = torch.zeros((), dtype=torch.float64)
            for m, place in enumerate(centre):
                view = [-1 if axis == m else 1 for axis in range(grid.num_axes)]
                # smooth and periodic: the chord instead of the distance
                chord = torch.sin(math.pi * (grid.axis(m).double() / grid.extent[m] - place)) / math.pi
                distance = distance + chord.square().reshape(view)
            blobs = torch.maximum(blobs, torch.exp(-distance / (2 * BLOB_WIDTH**2)))
        return torch.stack([1 - 0.5 * blobs, 0.25 * blobs], dim=-1)

    def linear(self, modes: Modes, parameters: Parameters) -> Tensor:
        return modes.channels(parameters.diffusivity_a * modes.laplacian, parameters.diffusivity_b * modes.laplacian)

    def nonlinear(self, modes: Modes, parameters: Parameters) -> Function:
        feed, kill = (modes.rounded(value) for value in (parameters.feed, parameters.kill))

        def reaction(concentrations: Tensor) -> Tensor:
            a, b = modes.values(concentrations).split(1, dim=1)
            made = a * b * b
            return modes.coefficients(torch.cat([feed * (1 - a) - made, made - (feed + kill) * b], dim=1))

        return reaction


pde = GrayScott()
