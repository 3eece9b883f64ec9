"""Factorized attention: one small kernel per axis, integrated axis by axis (paper eqs. 7-10).

With a mask χ the layer is the integral over the domain Ω alone,

    z(x) = ∫_Ω A⁽¹⁾(x₁, y₁) A⁽²⁾(x₂, y₂) … V(y) dy = ( χV ) ×₁ A⁽¹⁾ ×₂ A⁽²⁾ …

The sum over y factorizes once V is zero outside; what lies between two contractions lives on mixed coordinates
(x₁, y₂, …), to which no mask belongs. The axes' kernels are made from means over Ω (`axial_kernel`), mean and variance
of a head are taken over Ω, and the result is zero outside.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from factformer.errors import UserError
from factformer.grid import Grid
from factformer.nn.attention.axial_kernel import AxialKernel, KernelOptions
from factformer.nn.grid_tables import TableCache
from factformer.nn.masks import Mask, inside
from factformer.nn.mlp import MLP
from factformer.nn.norms import cached_domain_weights, domain_normalize
from factformer.nn.stage import Stage


class FactorizedAttention(Stage):
    """``f( IN( V ×₁ A⁽¹⁾ ×₂ A⁽²⁾ … ) )`` of the layer-normalised input; the residual add is the caller's.

    ``V`` has ``heads · head_dim`` channels and each ``A⁽ᵐ⁾`` is built from the field's projection onto axis
    ``m`` with ``kernel_dim`` functions per head. Each head of the result is normalised over the whole domain
    and its channels before the output network ``f``; ``norm_eps`` is far below the variance that freshly
    initialised kernels give, since a usual 1e-5 is of its size, or far above where they are not brought near one.
    With ``parallel`` the integrals along the axes are taken of ``V`` each and added, ``Σ_m V ×_m A⁽ᵐ⁾``: a point
    then sees those that share all but one of its coordinates.
    """

    def __init__(
        self,
        num_axes: int,
        dim: int,
        heads: int,
        head_dim: int = 64,
        kernel_dim: int = 128,
        options: KernelOptions | None = None,
        norm_eps: float = 1e-24,
        parallel: bool = False,
    ) -> None:
        super().__init__()
        if not 1 <= num_axes <= 4 or min(dim, heads, head_dim, kernel_dim) < 1:
            raise UserError(
                f"factorized attention needs 1 to 4 axes and positive sizes, got num_axes={num_axes}, dim={dim}, "
                f"heads={heads}, head_dim={head_dim}, kernel_dim={kernel_dim}"
            )
        self.num_axes = num_axes
        self.dim = dim
        self.heads = heads
        self.norm_eps = norm_eps
        self.parallel = parallel
        self.norm = nn.LayerNorm(dim)
        self.to_values = nn.Linear(dim, heads * head_dim, bias=False)
        self.kernels = nn.ModuleList(
            AxialKernel(m, dim, heads, kernel_dim, options or KernelOptions()) for m in range(num_axes)
        )
        self.to_output = MLP(heads * head_dim, dim, dim, bias=False)
        self.tables = TableCache()

    def forward(
        self, u: Float[Tensor, "batch *grid dim"], grid: Grid, mask: Mask | None = None
    ) -> Float[Tensor, "batch *grid dim"]:
        """The attention of a channel-last field ``u`` on ``grid``: a field of the same shape, without the residual.

        With a boolean ``mask (batch, *grid)`` it is the attention over the points where that is true: what ``u`` holds
        elsewhere has no influence, and the result is zero there.
        """
        x = self.normalized(u, grid, mask)
        values = self.to_values(x).unflatten(-1, (self.heads, -1)).movedim(-2, 1)
        if self.parallel:
            parts = [kernel.apply_to(values, x, grid, rescaled=False, mask=mask) for kernel in self.axes()]
            values = torch.stack(parts).sum(0)
        else:
            for kernel in self.axes():
                values = kernel.apply_to(values, x, grid, mask=mask)
        weights = cached_domain_weights(self.tables, grid, values, mask)
        values = domain_normalize(values, weights, self.norm_eps, grid)
        return inside(self.to_output(values.movedim(1, -2).flatten(-2)), mask)

    def add_to(
        self,
        u: Float[Tensor, "batch *grid dim"],
        encoding: Float[Tensor, "*grid dim"] | None,
        grid: Grid,
        mask: Mask | None = None,
    ) -> Float[Tensor, "batch *grid dim"]:
        """``s + attention(s)`` with ``s = u + encoding``."""
        result: Tensor = self.execute(u, encoding, grid, mask)
        return result

    def plain(self, u: Tensor, encoding: Tensor | None, grid: Grid, mask: Mask | None = None) -> Tensor:
        if encoding is not None:
            u = u + encoding
        result: Tensor = u + self(u, grid, mask)
        return result

    def axial_kernels(
        self, u: Float[Tensor, "batch *grid dim"], grid: Grid, mask: Mask | None = None
    ) -> list[Float[Tensor, "batch head points points"]]:
        """``A⁽ᵐ⁾ = w_m Q̃K̃ᵀ`` of every axis, quadrature weights included.

        With a mask the columns of lines without a point inside are zero.
        """
        x = self.normalized(u, grid, mask)
        return [kernel.matrix(*kernel.factors(x, grid, mask), grid, mask) for kernel in self.axes()]

    def axes(self) -> list[AxialKernel]:
        return [kernel for kernel in self.kernels if isinstance(kernel, AxialKernel)]

    def normalized(
        self, u: Float[Tensor, "batch *grid dim"], grid: Grid, mask: Mask | None = None
    ) -> Float[Tensor, "batch *grid dim"]:
        """The layer-normalised input, zero outside, after checking that it lives on ``grid``."""
        self.check(u, grid, mask)
        return inside(self.norm(u), mask)

    def check(self, u: Tensor, grid: Grid, mask: Tensor | None = None) -> None:
        if mask is not None and (mask.dtype != torch.bool or mask.shape != u.shape[:-1]):
            raise UserError(
                f"expected a boolean mask of shape {tuple(u.shape[:-1])}, got {mask.dtype} of {tuple(mask.shape)}"
            )
        if grid.num_axes != self.num_axes or u.shape[1:] != (*grid.shape, self.dim):
            raise UserError(
                f"expected a field of {self.num_axes} axes and {self.dim} channels on its grid, got a tensor of shape "
                f"{tuple(u.shape)} with a grid of shape {grid.shape}"
            )
