"""Models that are told where a point lies: random Fourier features of its coordinates (`nn.fourier_features`)."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from factformer._support.axes import per_axis
from factformer.grid import Grid
from factformer.models._backbone import Backbone, Latent, ModelConfig
from factformer.nn.fourier_features import FourierFeatures, FourierMode
from factformer.problem import Problem

Std = Annotated[float, Field(gt=0, le=1e6)]
AxisStd = Annotated[float, Field(ge=0, le=1e6)]


class PositionsConfig(ModelConfig):
    """Options of the positional encoding ψ."""

    fourier: FourierMode = "paper"
    fourier_std: Std | tuple[AxisStd, ...] = 8.0
    """Standard deviation of the random frequencies of ψ, in waves per unit length, along each axis or along every one.
    An axis with 0 has no part in ψ: where nothing depends on the place along it, the model need not learn so."""

    def positions(self, num_axes: int) -> FourierFeatures | None:
        """A positional encoding of these options, or none."""
        if self.fourier == "off":
            return None
        return FourierFeatures(
            num_axes, self.dim, per_axis("model.fourier_std", self.fourier_std, num_axes), self.fourier
        )


class PositionedBackbone(Backbone):
    """Adds ψ to the latent field once, before the first layer."""

    def __init__(self, config: PositionsConfig, problem: Problem) -> None:
        super().__init__(config, problem)
        self.positions = config.positions(problem.grid.num_axes)

    def placed(self, z: Latent, grid: Grid) -> Latent:
        return z if self.positions is None else z + self.positions(grid)
