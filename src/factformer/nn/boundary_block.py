"""Convolutions that see the walls: the block appended after the attention layers on bounded domains."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from factformer.grid import Grid
from factformer.nn.convolution import Convolution
from factformer.nn.masks import Mask
from factformer.problem import Boundary


def upsample_nearest(u: Float[Tensor, "batch *coarse dim"], shape: tuple[int, ...]) -> Float[Tensor, "batch *grid dim"]:
    """Nearest coarse value on a finer grid of any size."""
    for axis, size in enumerate(shape, start=1):
        index = torch.arange(size, device=u.device) * u.shape[axis] // size
        u = u.index_select(axis, index)
    return u


class BoundaryBlock(nn.Module):
    """Four convolutions in a U, zero padding, the result concatenated with the input (paper appendix A).

    The first has stride 2; between the second and the third, nearest upsampling restores the size, odd ones
    included. Zero padding is what tells the network where the walls are; axes of ``home`` that wrap around have none.
    On other grids than ``home`` the convolutions keep their reach in space.
    """

    def __init__(self, num_axes: int, dim: int, home: Grid | None = None) -> None:
        super().__init__()
        half = dim // 2
        wraps = (False,) * num_axes if home is None else home.periodic
        walls: list[Boundary] = ["periodic" if around else "zero" for around in wraps]
        self.down = Convolution(walls, dim, dim, stride=2, home=home)
        self.coarse = Convolution(walls, dim, half, home=home)
        self.fine = Convolution(walls, half, half, home=home)
        self.last = Convolution(walls, half, half, home=home)
        self.dim_out = dim + half

    def forward(
        self, z: Float[Tensor, "batch *grid dim"], grid: Grid | None = None, mask: Mask | None = None
    ) -> Float[Tensor, "batch *grid dim_out"]:
        # A point of the coarse grid is inside where its stencil sees any point that is.
        below = None if mask is None else self.down.share(mask, grid).squeeze(-1) > 0
        # On the coarse grid, too, spacings here and at home are in the proportion that they have on the fine one.
        coarse = functional.gelu(self.coarse(functional.gelu(self.down(z, grid, mask)), grid, below))
        fine = functional.gelu(self.fine(upsample_nearest(coarse, tuple(z.shape[1:-1])), grid, mask))
        return torch.cat([z, self.last(fine, grid, mask)], dim=-1)
