"""Convolution of channel-last fields on 1 to 4 axes, with the padding that each axis' boundary asks for."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from factformer.errors import UserError
from factformer.grid import Grid
from factformer.nn.grid_tables import TableCache
from factformer.nn.masks import Mask, inside, ratio
from factformer.problem import Boundary


def pad_axis(u: Tensor, axis: int, width: int, kind: str) -> Tensor:
    """``u`` continued by ``width`` points at both ends of dimension ``axis``.

    ``periodic`` wraps around, ``reflect`` mirrors about the end points (which are not repeated), ``zero``
    adds zeros. Any width is possible: wider than the axis, the pattern goes on.
    """
    if width == 0:
        return u
    size = u.shape[axis]
    if kind == "zero":
        zeros = u.new_zeros([*u.shape[:axis], width, *u.shape[axis + 1 :]])
        return torch.cat([zeros, u, zeros], dim=axis)
    if kind == "periodic":
        copies = math.ceil(width / size)
        if copies == 1:  # the common case: copy no more than is needed
            return torch.cat([u.narrow(axis, size - width, width), u, u.narrow(axis, 0, width)], dim=axis)
        tiled = torch.cat([u] * (2 * copies + 1), dim=axis)
        return tiled.narrow(axis, copies * size - width, size + 2 * width)
    step = min(width, size - 1)
    before = u.narrow(axis, 1, step).flip(axis)
    after = u.narrow(axis, size - 1 - step, step).flip(axis)
    return pad_axis(torch.cat([before, u, after], dim=axis), axis, width - step, kind)


def pad(
    u: Float[Tensor, "batch *grid channel"], widths: Sequence[int], kinds: Sequence[Boundary], grid: Grid | None = None
) -> Float[Tensor, "batch *padded channel"]:
    """Continue every grid axis by its width at both ends: as its boundary kind says, or by the neighbours of a part."""
    for m, (width, kind) in enumerate(zip(widths, kinds, strict=True)):
        if width and grid is not None and m in grid.cut_axes:
            u = grid.with_neighbours(u, m, width, kind)
        else:
            u = pad_axis(u, m + 1, width, kind)
    return u


def stencil_share(
    mask: Float[Tensor, "batch *grid"],
    sizes: Sequence[int],
    step: int,
    kinds: Sequence[Boundary],
    stride: int = 1,
    grid: Grid | None = None,
) -> Float[Tensor, "batch *coarse 1"]:
    """The part of a stencil of ``sizes`` points, ``step`` apart, that lies inside the domain, for each place of it.

    The field continues beyond the ends of the box as its boundary says, so that what lies there is not outside.
    """
    share = mask
    for axis, (size, kind) in enumerate(zip(sizes, kinds, strict=True), start=1):
        width = step * (size // 2)
        widths = [width if m == axis - 1 else 0 for m in range(len(sizes))]
        # Beyond a wall all counts as inside: zeros are put around what lies outside.
        outside = (1 - share).unsqueeze(-1) if kind == "zero" else share.unsqueeze(-1)
        padded = pad(outside, widths, kinds, grid).squeeze(-1)
        padded = 1 - padded if kind == "zero" else padded
        share = padded.unfold(axis, 2 * width + 1, stride)[..., ::step].mean(-1)
    return share.unsqueeze(-1)


def stretch_matrix(kernel_size: int, distance: float) -> Float[Tensor, "point offset"]:
    """What points ``distance`` apart, centred on 0, are between the points of a grid: cubic interpolation.

    Offsets are centred on 0 as well; there are as many as have a part in any of the points.
    """
    half = kernel_size // 2
    width = math.ceil(half * distance) + 1
    matrix = torch.zeros(kernel_size, 2 * width + 1, dtype=torch.float64)
    for row, place in zip(matrix, range(-half, half + 1), strict=True):
        x = round(place * distance, 9)
        nodes = range(math.floor(x) - 1, math.floor(x) + 3)
        for node in nodes:
            share = math.prod((x - other) / (node - other) for other in nodes if other != node)
            if share:  # on a point of the grid the others have none, and may lie beyond the ends
                row[node + width] = share
    needed = max(abs(int(column) - width) for column in matrix.any(0).nonzero())
    return matrix[:, width - needed : width + needed + 1]


class Convolution(nn.Module):
    """``(w ⋆ u)(x_i) = Σ_o w_o u(x_{s·i + d·o}) + b`` with offsets ``o`` centred on 0, for 1 to 4 axes.

    One class for any number of axes; ``padding`` holds the boundary kind of each, so that the output has
    ``ceil(S / stride)`` points along an axis of ``S``. The kernel size is odd.

    A convolution with a ``home`` keeps its reach in space: on a grid of another spacing it takes the field at the
    same distances as at home, interpolated between the points there.

    With a mask it does not read across a wall (partial convolution: Liu et al. 2018, arXiv:1804.07723):
    ``w ⋆ (χ u) / s + b``, where ``s`` is the part of the stencil's points that lie inside.
    """

    def __init__(
        self,
        padding: Sequence[Boundary],
        dim_in: int,
        dim_out: int,
        kernel_size: int = 3,
        *,
        dilation: int = 1,
        stride: int = 1,
        groups: int = 1,
        home: Grid | None = None,
    ) -> None:
        super().__init__()
        num_axes = len(padding)
        if not 1 <= num_axes <= 4:
            raise UserError(f"a convolution works on 1 to 4 axes, got {num_axes}")
        if kernel_size % 2 == 0:
            raise UserError(f"a centred convolution needs an odd kernel size, got {kernel_size}")
        if dim_in % groups or dim_out % groups:
            raise UserError(f"{dim_in} and {dim_out} channels do not divide into {groups} groups")
        self.padding = tuple(padding)
        self.dilation, self.stride, self.groups = dilation, stride, groups
        self.kernel_size, self.width = kernel_size, dilation * (kernel_size // 2)
        self.home, self.tables = home, TableCache()
        self.weight = nn.Parameter(torch.empty(dim_out, dim_in // groups, *[kernel_size] * num_axes))
        self.bias = nn.Parameter(torch.empty(dim_out))
        bound = 1 / math.sqrt(dim_in // groups * kernel_size**num_axes)
        nn.init.uniform_(self.weight, -bound, bound)
        nn.init.uniform_(self.bias, -bound, bound)

    def at(self, grid: Grid | None) -> tuple[Float[Tensor, "dim_out share *offset"], int]:
        """The weights on ``grid`` and how many of its points they lie apart.

        Where they fall between points, the weights of neighbouring points that interpolate there.
        """
        matrices, step = self._stretch(grid)
        return (self.weight if matrices is None else self._stretched(matrices)), step

    def sizes_at(self, grid: Grid | None) -> tuple[list[int], int]:
        """How many weights there are along each axis of ``grid``, and how many points they lie apart."""
        matrices, step = self._stretch(grid)
        return (list(self.weight.shape[2:]) if matrices is None else [m.shape[1] for m in matrices]), step

    def _stretch(self, grid: Grid | None) -> tuple[tuple[Tensor, ...] | None, int]:
        """Matrices that interpolate the weights along each axis, where needed, and their distance in points."""
        if grid is None or self.home is None:
            return None, self.dilation
        distances = [
            self.dilation * self.home.spacing(m) / grid.spacing(m)
            if self.home.is_even(m) and grid.is_even(m)
            else float(self.dilation)  # points of no even spacing stay as many neighbours apart as at home
            for m in range(grid.num_axes)
        ]
        step = max(1, round(distances[0]))
        if all(abs(distance - step) < 1e-6 for distance in distances):
            return None, step
        matrices = self.tables.get(
            "stretch", grid, 0, self.weight, lambda: tuple(stretch_matrix(self.kernel_size, d) for d in distances)
        )
        return matrices, 1

    def share(self, mask: Mask, grid: Grid | None = None) -> Float[Tensor, "batch *coarse 1"]:
        """The part of the stencil that lies inside the domain; where it is zero the result says nothing."""
        sizes, step = self.sizes_at(grid)
        exact = torch.float64 if self.weight.dtype == torch.float64 else torch.float32
        return stencil_share(mask.to(exact), sizes, step, self.padding, self.stride, grid)

    def forward(
        self, u: Float[Tensor, "batch *grid dim_in"], grid: Grid | None = None, mask: Mask | None = None
    ) -> Float[Tensor, "batch *coarse dim_out"]:
        if mask is None:
            return self._convolve(u, grid, self.bias)
        sums = self._convolve(inside(u, mask), grid, None)
        return ratio(sums, self.share(mask, grid)) + self.bias.to(sums.dtype)

    def _convolve(self, u: Tensor, grid: Grid | None, bias: Tensor | None) -> Tensor:
        weight, dilation = self.at(grid)
        widths = [dilation * (size // 2) for size in weight.shape[2:]]
        # The library pads with zeros itself, without a copy of the field.
        cut = () if grid is None else grid.cut_axes
        within = [
            w if kind == "zero" and len(widths) < 4 and m not in cut else 0
            for m, (w, kind) in enumerate(zip(widths, self.padding, strict=True))
        ]
        u = pad(u, [w - done for w, done in zip(widths, within, strict=True)], self.padding, grid)
        # Moving the channel of a contiguous channel-last tensor forward gives torch's channels_last layout.
        u = u.contiguous().movedim(-1, 1)
        convolve = self._with_outer_axis if len(self.padding) == 4 else self._inner
        return convolve(u, weight, bias, within, dilation).movedim(1, -1)

    def _stretched(self, matrices: Sequence[Tensor]) -> Tensor:
        weight: Tensor = self.weight
        with torch.autocast(weight.device.type, enabled=False):  # it would mix number formats from the second axis on
            for matrix in matrices:  # the axis in front goes, the stretched one comes at the end
                weight = torch.tensordot(weight, matrix, dims=([2], [0]))
        return weight

    def _inner(self, u: Tensor, weight: Tensor, bias: Tensor | None, within: Sequence[int], dilation: int) -> Tensor:
        operation = (functional.conv1d, functional.conv2d, functional.conv3d)[weight.ndim - 3]
        result: Tensor = operation(
            u,
            weight,
            bias,
            stride=self.stride,
            padding=list(within),
            dilation=dilation,
            groups=self.groups,
        )
        return result

    def _with_outer_axis(
        self, u: Tensor, weight: Tensor, bias: Tensor | None, within: Sequence[int], dilation: int
    ) -> Tensor:
        """Four axes: the library stops at three, so the offsets along the first one are summed here."""
        kernel_size = weight.shape[2]
        num_points = (u.shape[2] - dilation * (kernel_size - 1) - 1) // self.stride + 1
        terms = []
        for offset in range(kernel_size):
            start = offset * dilation
            rows = u[:, :, start : start + (num_points - 1) * self.stride + 1 : self.stride]
            stacked = rows.movedim(2, 1).flatten(0, 1)
            once = bias if offset == 0 else None
            terms.append(self._inner(stacked, weight[:, :, offset], once, within[1:], dilation))
        total: Tensor = torch.stack(terms).sum(0)
        total = total.unflatten(0, (u.shape[0], num_points)).movedim(1, 2)
        return total
