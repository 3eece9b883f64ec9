"""Semilinear equations on a periodic box: ``∂u/∂t = L u + N(u)``, spectral in space, exponential in time.

``L`` is a symbol, one number for every mode; ``N`` is a function of the coefficients. Products are taken on the grid's
points, on which the modes that are kept leave no aliases: ``K`` of ``S`` points with ``3K < S`` for a product of two
fields and ``4K < S`` for one of three. The linear terms carry the modes of the initial state beyond that cut. Where
those let a mode beyond it grow, nothing bounds it, not even what is round-off at first: `growing` finds such modes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property

import torch
from jaxtyping import Complex, Float
from torch import Tensor

from factformer.grid import Grid
from factformer.numerics.pencils import WHOLE, Pencils, pencils_of
from factformer.numerics.spectral import Spectrum, full_cutoff, wavenumber_unit
from factformer.numerics.timestepping import Function, etdrk2, etdrk4, num_steps

Coefficients = Complex[Tensor, "batch channel *modes"]
INTEGRATORS = {2: etdrk2, 4: etdrk4}
Extent = float | Float[Tensor, " batch"]
MOST_POINTS = 2**21
"""Of the grid on whose modes growth is looked for first."""
ROUND_OFF = 1e-12
"""Rates below this share of the largest ``|L|`` are no growth."""


class Modes:
    """The modes ``|k_m| ≤ cutoff[m]`` of a cube of length ``extent``, which may differ between the samples of a batch.

    Symbols broadcast against coefficients ``(batch, channel, *modes)`` and are kept in float64.
    """

    def __init__(
        self,
        shape: Sequence[int],
        cutoff: Sequence[int],
        extent: Extent,
        *,
        dtype: torch.dtype,
        device: torch.device | str,
        pencils: Pencils = WHOLE,
    ) -> None:
        self.shape = tuple(shape)
        self.num_axes = len(self.shape)
        self.spectrum = Spectrum([2 * math.pi] * self.num_axes, cutoff, dtype=dtype, device=device, pencils=pencils)
        if isinstance(extent, Tensor):
            extent = extent.to(device, torch.float64).reshape(-1, *[1] * (1 + self.num_axes))
        self.unit = wavenumber_unit(extent)
        self.complex_dtype = torch.complex128 if dtype == torch.float64 else torch.complex64

    @cached_property
    def wavenumbers(self) -> list[Tensor]:
        """``2π k_m / L`` of each axis."""
        return [self.unit * index.double() for index in self.spectrum.indices]

    @cached_property
    def laplacian(self) -> Tensor:
        """The symbol ``-|k|²`` of ``∇²``."""
        total = torch.zeros((), dtype=torch.float64, device=self.spectrum.device)
        for wavenumber in self.wavenumbers:
            total = total - wavenumber.square()
        return total

    def derivative(self, m: int) -> Tensor:
        """The symbol ``i k_m`` of the derivative along axis ``m``, in the precision of the coefficients."""
        return (1j * self.wavenumbers[m]).to(self.complex_dtype)

    def gradient(self, coefficients: Tensor) -> Tensor:
        """All first derivatives, ``(batch, channel, axis, *modes)``."""
        return torch.stack([self.derivative(m) * coefficients for m in range(self.num_axes)], dim=2)

    def advection(self, velocity: Tensor) -> Tensor:
        """``-(u·∇)u`` of a field with one component per axis, coefficients in and out."""
        along = (self.values(velocity).unsqueeze(1) * self.values(self.gradient(velocity))).sum(2)
        return -self.coefficients(along)

    def divergence_of_products(self, velocity: Tensor) -> Tensor:
        """``-½ ∇·(u⊗u)``, which is ``-(u·∇)u`` where the velocity has one component, coefficients in and out."""
        values = self.values(velocity)
        products = self.coefficients(values.unsqueeze(2) * values.unsqueeze(1))
        along = [self.derivative(m) * products[:, m] for m in range(self.num_axes)]
        return -0.5 * torch.stack(along).sum(0)

    def without_mean(self, coefficients: Tensor) -> Tensor:
        """The same with a mean of zero."""
        return coefficients * self._varies

    def channels(self, *symbols: Tensor) -> Tensor:
        """One symbol per channel as one that broadcasts against all channels."""
        with_channel = [s.unsqueeze(0) if s.ndim == self.num_axes else s for s in symbols]
        return torch.cat(torch.broadcast_tensors(*with_channel), dim=-1 - self.num_axes)

    def rounded(self, value: float | Tensor) -> float | Tensor:
        """A number or a symbol in the precision of the fields, once instead of in every product."""
        return value.to(self.spectrum.device, self.spectrum.dtype) if isinstance(value, Tensor) else value

    def beyond(self, cutoff: Sequence[int]) -> Tensor:
        """Whether a mode lies past ``cutoff`` along any axis."""
        outside = torch.zeros(self.spectrum.shape, dtype=torch.bool, device=self.spectrum.device)
        for index, largest in zip(self.spectrum.indices, cutoff, strict=True):
            outside = outside | (index.abs() > largest)
        return outside

    @cached_property
    def _varies(self) -> Tensor:
        return (~self.spectrum.is_mean).to(self.spectrum.dtype)

    def values(self, coefficients: Tensor) -> Tensor:
        """The field on the grid's points."""
        return self.spectrum.values(coefficients, self.shape)

    def coefficients(self, values: Tensor) -> Tensor:
        """The modes of a field on the grid's points."""
        return self.spectrum.coefficients(values, self.shape)


def cutoff_for(degree: int, shape: Sequence[int], strict: bool = False) -> tuple[int, ...]:
    """The largest cut for which products of ``degree`` fields hold no aliases among the modes that are kept.

    A ``strict`` one is that of exponax, which keeps one mode less where ``degree + 1`` does not divide the points.
    """
    if strict and degree > 1:
        return tuple(size // (degree + 1) - 1 for size in shape)
    return full_cutoff(shape) if degree < 2 else tuple((size - 1) // (degree + 1) for size in shape)


def points_for(degree: int, cutoff: int, strict: bool = False) -> int:
    """The smallest even number of points whose `cutoff_for` is ``cutoff`` or more."""
    fewest = (degree + 1) * (cutoff + 1) if strict and degree > 1 else (max(degree, 1) + 1) * cutoff + 1
    return fewest + fewest % 2


def growing(linear: Callable[[Modes], Tensor], shape: Sequence[int], extent: Extent) -> tuple[int, ...] | None:
    """The largest ``|k_m|`` of a mode that grows, ``Re L > 0``, along each axis; None where no end of them is found.

    It is a property of the equation and the box: modes are looked at up to twice those of ``shape``, and further until
    those of the outer quarter decay.
    """
    limit = min(2**14, int(MOST_POINTS ** (1 / len(shape))))
    points = tuple(min(2 * size, limit) for size in shape)
    while True:
        modes = Modes(points, full_cutoff(points), extent, dtype=torch.float64, device="cpu")
        cutoff, held, symbol = modes.spectrum.cutoff, modes.spectrum.shape, linear(modes)
        symbol = symbol.expand(torch.broadcast_shapes(symbol.shape, held))
        grows = symbol.real > ROUND_OFF * symbol.abs().amax(modes.spectrum.axes, keepdim=True)
        grows = grows.reshape(-1, *held).any(0)
        largest = tuple(_largest(grows, index) for index in modes.spectrum.indices)
        settled = all(4 * k <= 3 * cut for k, cut in zip(largest, cutoff, strict=True))
        if settled or max(points) >= max(2 * limit, *shape):
            return None if any(k == cut > 0 for k, cut in zip(largest, cutoff, strict=True)) else largest
        points = tuple(2 * size for size in points)


def _largest(chosen: Tensor, index: Tensor) -> int:
    """The largest ``|index|``, which varies along one axis, of the ``chosen`` modes; 0 where there is none."""
    others = [axis for axis, size in enumerate(index.shape) if size == 1]
    along = chosen.any(others) if others else chosen
    return int((along * index.flatten().abs()).max())


def solve(
    initial: Float[Tensor, "batch *grid channel"],
    linear: Callable[[Modes], Tensor],
    nonlinear: Callable[[Modes], Function | None],
    *,
    degree: int,
    extent: Extent,
    frame_dt: float,
    dt: float | None,
    num_frames: int,
    repeat: Callable[[Function, Tensor, int], Function],
    order: int = 4,
    open_products: bool = False,
    grid: Grid | None = None,
) -> Iterator[Float[Tensor, "batch *grid channel"]]:
    """Frames at intervals ``frame_dt``, the initial state first; steps of at most ``dt``, of ``order`` 2 or 4.

    Without a nonlinear term every frame is exact. ``repeat(step, state, count)`` makes ``count`` steps for states like
    ``state`` one function. With ``open_products``, as in exponax 0.1, only the factors of products are cut: what the
    products hold beyond that stays. ``grid`` is what the state is on, where that is a part of a grid.
    """
    yield initial
    fields = initial.movedim(-1, 1)
    shape = fields.shape[2:] if grid is None else grid.whole.shape
    pencils = WHOLE if grid is None else pencils_of(grid)

    def modes_up_to(cutoff: Sequence[int]) -> Modes:
        return Modes(shape, cutoff, extent, dtype=fields.dtype, device=fields.device, pencils=pencils)

    inner, every = modes_up_to(cutoff_for(degree, shape, open_products)), modes_up_to(full_cutoff(shape))
    state = inner.coefficients(fields)
    # Exactly the modes beyond the cut: round-off in the others would grow where the linear terms let long waves grow.
    beyond = every.beyond(inner.spectrum.cutoff)
    outer = torch.where(beyond, every.coefficients(fields), 0)
    decay = torch.where(beyond, torch.exp(frame_dt * linear(every)), 0).to(outer.dtype)
    term = nonlinear(every if open_products else inner)
    if open_products and term is not None:
        inner, state, outer, term = every, every.coefficients(fields), torch.zeros_like(outer), _of_part(term, ~beyond)
    if term is None:
        advance = _exactly(torch.exp(frame_dt * linear(inner)).to(state.dtype))
    else:
        count = num_steps(frame_dt, dt or frame_dt)
        step = INTEGRATORS[order](linear(inner), term, frame_dt / count, state.dtype)
        # Transforms drop what stands for no real field; the linear terms would let its round-off grow.
        advance = repeat(lambda current: inner.spectrum.mirrored(step(current), average=True), state, count)
    for _ in range(num_frames - 1):
        state, outer = advance(state), decay * outer
        yield (inner.values(state) + every.values(outer)).movedim(1, -1)


def _of_part(term: Function, part: Tensor) -> Function:
    """``term`` of a part of the modes alone."""
    return lambda coefficients: term(coefficients * part)


def _exactly(factor: Tensor) -> Function:
    return lambda state: factor * state
