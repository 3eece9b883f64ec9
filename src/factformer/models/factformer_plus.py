"""FactFormer with a local branch, exactly periodic encodings and increments as output.

    u ← u + ψ(x),   u ← u + f( IN( Att(u) ) ),   u ← u + W₂ σ( W₁ LayerNorm( D ⋆ u ) )       per layer

Factorized attention carries information across the whole domain through a few functions per axis; what
happens between neighbouring points is left to the depthwise convolution ``D``, which continues the field
beyond the ends as the problem's boundary says and keeps its reach in space on other grids. Every addition to
FactFormer is a switch: ``local_branch`` (with ``feed_forward`` its width), ``rotary`` and ``fourier`` (whole
wavenumbers on periodic axes), ``residual``.
"""

from __future__ import annotations

from typing import Literal

from jaxtyping import Float
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from factformer.grid import Grid
from factformer.kernels import local_fits, working_dtype
from factformer.models._backbone import Backbone
from factformer.models.factformer import AttentionConfig
from factformer.models.factformer import Layer as AttentionLayer
from factformer.nn.convolution import Convolution
from factformer.nn.fourier_features import FourierMode
from factformer.nn.mlp import MLP
from factformer.nn.rotary import Rotary
from factformer.problem import Boundary, Problem


class Config(AttentionConfig):
    name: Literal["factformer_plus"] = "factformer_plus"
    rotary: Rotary = "periodic"
    fourier: FourierMode = "periodic"
    local_branch: bool = True
    """A depthwise convolution and a pointwise network after each attention."""
    local_kernel: int | None = Field(None, ge=1)
    """Points along an axis that the convolution sees; by default 5 in one and two dimensions and 3 above."""
    local_dilations: tuple[PositiveInt, ...] = Field((1,), min_length=1)
    """Distance between the points that the convolution sees, layer by layer and then from the start again."""
    feed_forward: int = Field(2, ge=1)
    """Width of the pointwise network of the local branch over ``dim``."""


class LocalBranch(nn.Module):
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

    def add_to(self, u: Float[Tensor, "batch *grid dim"], grid: Grid | None = None) -> Float[Tensor, "batch *grid dim"]:
        """``u + branch(u)``; on a GPU in bfloat16 with fused kernels."""
        weight, step = self.convolution.at(grid)
        fits = local_fits(u.shape[1:-1], self.convolution.padding, weight.shape[2:], step, u.shape[-1])
        dtype = working_dtype(u, fits, u.shape[-1])
        if dtype is not None:
            from factformer.kernels.local.op import local_block

            return local_block(self, u, dtype, weight, step)
        result: Tensor = u + self(u, grid)
        return result

    def forward(
        self, u: Float[Tensor, "batch *grid dim"], grid: Grid | None = None
    ) -> Float[Tensor, "batch *grid dim"]:
        result: Tensor = self.mlp(self.norm(self.convolution(u, grid)))
        return result


class Layer(nn.Module):
    """The layer of FactFormer and the local branch, each with its residual."""

    def __init__(self, config: Config, problem: Problem, index: int) -> None:
        super().__init__()
        num_axes = problem.grid.num_axes
        self.attention = AttentionLayer(config, num_axes)
        self.local: LocalBranch | None = None
        if config.local_branch:
            kernel_size = config.local_kernel or (5 if num_axes <= 2 else 3)
            dilation = config.local_dilations[index % len(config.local_dilations)]
            self.local = LocalBranch(
                config.dim, kernel_size, config.feed_forward, problem.padding, dilation, problem.grid
            )

    def forward(self, u: Float[Tensor, "batch *grid dim"], grid: Grid) -> Float[Tensor, "batch *grid dim"]:
        result: Tensor = self.attention(u, grid)
        return result if self.local is None else self.local.add_to(result, grid)


class Model(Backbone):
    config_class = Config
    wants_boundary_block = True
    wants_residual = True

    def __init__(self, config: Config, problem: Problem) -> None:
        super().__init__(config, problem)
        self.layers = nn.ModuleList(Layer(config, problem, index) for index in range(config.depth))

    def forward(self, z: Float[Tensor, "batch *grid dim"], grid: Grid) -> Float[Tensor, "batch *grid dim"]:
        for layer in self.layers:
            z = self.run(layer, z, grid)
        return z
