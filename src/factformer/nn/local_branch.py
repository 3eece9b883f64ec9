"""The local branch of `factformer.models.factformer_plus`: what happens between neighbouring points.

u ← u + W₂ σ( W₁ LayerNorm( D ⋆ u ) + b₁ ) + b₂        with a depthwise convolution D
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn

from factformer.grid import Grid
from factformer.nn.convolution import Convolution
from factformer.nn.masks import Mask
from factformer.nn.mlp import MLP
from factformer.nn.stage import Stage
from factformer.problem import Boundary


class LocalBranch(Stage):
    """Depthwise convolution, normalisation, pointwise network (the block of ConvNeXt, Liu et al. 2022)."""

    def __init__(
        self,
        dim: int,
        kernel_size: int,
        feed_forward: int,
        padding: tuple[Boundary, ...],
        dilation: int = 1,
        home: Grid | None = None,
    ) -> None:
        super().__init__()
        self.convolution = Convolution(padding, dim, dim, kernel_size, dilation=dilation, groups=dim, home=home)
        self.norm = nn.LayerNorm(dim)
        self.mlp = MLP(dim, feed_forward * dim, dim)

    def add_to(
        self, u: Float[Tensor, "batch *grid dim"], grid: Grid | None = None, mask: Mask | None = None
    ) -> Float[Tensor, "batch *grid dim"]:
        """``u + branch(u)``."""
        result: Tensor = self.execute(u, grid, mask)
        return result

    def plain(self, u: Tensor, grid: Grid | None, mask: Mask | None = None) -> Tensor:
        result: Tensor = u + self(u, grid, mask)
        return result

    def forward(
        self, u: Float[Tensor, "batch *grid dim"], grid: Grid | None = None, mask: Mask | None = None
    ) -> Float[Tensor, "batch *grid dim"]:
        result: Tensor = self.mlp(self.norm(self.convolution(u, grid, mask)))
        return result
