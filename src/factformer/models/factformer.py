"""FactFormer: a stack of factorized-attention layers (Li, Shu & Barati Farimani, NeurIPS 2023).

u ← u + ψ(x),   u ← u + f( IN( Att(u) ) )       per layer
"""

from __future__ import annotations

from typing import Literal

from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn

from factformer.grid import Grid
from factformer.models._backbone import Stack
from factformer.models._positions import PositionsConfig
from factformer.nn.attention import FactorizedAttention
from factformer.nn.attention.axial_kernel import KernelOptions
from factformer.nn.attention.rotary import Rotary
from factformer.nn.conditions import UNCONDITIONED, Conditions
from factformer.problem import Problem


class HeadsConfig(PositionsConfig):
    """Options of heads, whose kernels see positions through a rotary encoding."""

    heads: int = Field(8, ge=1, le=1024)
    head_dim: int = Field(64, ge=1, le=4096)
    """Channels of the values per head."""
    kernel_dim: int = Field(128, ge=2, le=4096)
    """Functions per head that span the kernel of an axis."""
    rotary: Rotary = "paper"
    rotary_scale: float = Field(64.0, gt=0, le=1e6)


class AttentionConfig(HeadsConfig):
    """Options of the factorized attention and its positional encoding."""

    scaling: bool = False
    """Products over √kernel_dim. The normalisation of the heads takes it out again: it matters with softmax alone."""
    softmax: bool = False
    contraction: Literal["sequential", "parallel"] = "sequential"
    """Integrals along the axes one after the other, as in the paper, or each of the values and added."""

    def attention(self, num_axes: int) -> FactorizedAttention:
        """The attention layer of these options."""
        options = KernelOptions(self.rotary, self.rotary_scale, self.scaling, self.softmax)
        parallel = self.contraction == "parallel"
        return FactorizedAttention(
            num_axes, self.dim, self.heads, self.head_dim, self.kernel_dim, options, parallel=parallel
        )


class Config(AttentionConfig):
    name: Literal["factformer"] = "factformer"


class Layer(nn.Module):
    """Positional encoding, factorized attention, residual add."""

    def __init__(self, config: AttentionConfig, num_axes: int) -> None:
        super().__init__()
        self.positions = config.positions(num_axes)
        self.attention = config.attention(num_axes)

    def forward(
        self, u: Float[Tensor, "batch *grid dim"], grid: Grid, conditions: Conditions = UNCONDITIONED
    ) -> Float[Tensor, "batch *grid dim"]:
        encoding = None if self.positions is None else self.positions(grid)
        return self.attention.add_to(u, encoding, grid, conditions.mask)


class Model(Stack):
    config_class = Config
    cuttable = True
    wants_boundary_block = True

    def layer(self, config: Config, problem: Problem) -> Layer:
        return Layer(config, problem.grid.num_axes)
