"""Linear attention over all points of the grid (OFormer: Li, Meidani & Barati Farimani, arXiv:2205.13671).

    u ← u + ψ(x),   u ← u + f( Q̃(K̃ᵀ w V) )       per layer

One kernel between all points takes the place of FactFormer's axial kernels, softmax-free, as OFormer's code has it:
keys and values are normalised over the domain, keys before they are rotated, and what comes out is not (the paper's
Table 4 leaves open whether FactFormer's normalisation of the heads stays).
"""

from __future__ import annotations

from typing import Literal

from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn

from factformer.grid import Grid
from factformer.models._backbone import Stack
from factformer.models.factformer import HeadsConfig
from factformer.nn.attention.linear import LinearAttention
from factformer.nn.conditions import UNCONDITIONED, Conditions
from factformer.problem import Problem


class Config(HeadsConfig):
    name: Literal["linear_attention"] = "linear_attention"
    kernel_dim: int = Field(128, ge=2, le=4096)
    """Functions per head that span the kernel; they are divided among the axes by the rotary encoding."""
    explicit_kernel: bool = False
    """Form the kernel between all points, at quadratic cost: the same result, for analysis."""


class Layer(nn.Module):
    """Positional encoding, linear attention, residual add."""

    def __init__(self, config: Config, num_axes: int) -> None:
        super().__init__()
        self.positions = config.positions(num_axes)
        self.attention = LinearAttention(
            num_axes,
            config.dim,
            config.heads,
            config.head_dim,
            config.kernel_dim,
            config.rotary,
            config.rotary_scale,
            config.explicit_kernel,
        )

    def forward(
        self, u: Float[Tensor, "batch *grid dim"], grid: Grid, conditions: Conditions = UNCONDITIONED
    ) -> Float[Tensor, "batch *grid dim"]:
        if self.positions is not None:
            u = u + self.positions(grid)
        result: Tensor = u + self.attention(u, grid, conditions.mask)
        return result


class Model(Stack):
    config_class = Config
    wants_boundary_block = True

    def layer(self, config: Config, problem: Problem) -> Layer:
        return Layer(config, problem.grid.num_axes)
