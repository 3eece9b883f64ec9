"""Errors between predicted and true frames; the training loss is the metric that is reported.

Frames are ``(batch, frame, *grid, channel)``. A field group is a slice of the channels, so every function
takes the mapping ``slices`` of `Problem.state_slices` where it reports per group. With a ``mask (batch, *grid)`` the
points inside the domain alone count, and what frames hold outside is not read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from factformer.grid import Grid

Frames = Float[Tensor, "batch frame *grid channel"]
Deviation = Float[Tensor, " channel"] | None
"""Standard deviations of the fields, where they are known: `LEAST` of them is the least that errors are relative to."""
Mask = Bool[Tensor, "batch *grid"] | None
LEAST = 0.01
"""Only truths that are zero or nearly so are smaller than this; what is reported of the others is their own."""


def relative_l2(
    prediction: Frames, target: Frames, deviation: Deviation = None, mask: Mask = None, grid: Grid | None = None
) -> Float[Tensor, "batch"]:
    """``‖p - t‖₂ / ‖t‖₂`` of each sample on the joint window of frames, points and channels (eq. of §4.2).

    Of frames on a part of a ``grid`` the norms are those over all of it.
    """
    error, target, deviation = _in_units(within(prediction - target, mask), within(target, mask), deviation)
    if grid is None or not grid.cut_axes:
        return _norm(_flat(error, 1)) / _scale(_flat(target, 1), deviation, _share(mask))
    axes = range(grid.num_axes)
    squares = torch.stack([_flat(values, 1).square().sum(-1) for values in (error, target)])
    # The square root has no slope at zero.
    numerator, norm = grid.total(squares, axes).clamp_min(_tiny(target)).sqrt().unbind()
    if deviation is None:
        return numerator / norm
    parts = grid.whole.num_points / grid.num_points
    share = None if mask is None else grid.total(_flat(mask, 1).sum(1), axes) / grid.whole.num_points
    least = _least(deviation, round(parts * target[0].numel()), share).to(norm.dtype)
    return numerator / norm.maximum(least)


def relative_l2_per_frame(
    prediction: Frames, target: Frames, deviation: Deviation = None, mask: Mask = None
) -> Float[Tensor, "batch frame"]:
    """The same of each frame on its own."""
    error, target, deviation = _in_units(within(prediction - target, mask), within(target, mask), deviation)
    return _norm(_flat(error, 2)) / _scale(_flat(target, 2), deviation, _share(mask))


def relative_h1(
    prediction: Frames, target: Frames, deviation: Deviation = None, mask: Mask = None
) -> Float[Tensor, "batch"]:
    """`relative_l2` of the differences between neighbouring points along every axis: small scales count more.

    The least truth is that of a wave as long as the axes. With a mask both points of a pair lie inside.
    """
    axes = range(2, target.ndim - 1)
    error, target, deviation = _in_units(within(prediction - target, mask), within(target, mask), deviation)

    def squares(frames: Tensor) -> Tensor:
        steps = [within(frames.diff(dim=m), None if mask is None else _pairs(mask, m - 1)) for m in axes]
        return torch.stack([_flat(step, 1).square().sum(-1) for step in steps]).sum(0)

    numerator, denominator = squares(error), squares(target)
    denominator = denominator.clamp_min(_tiny(target))
    if deviation is not None:
        steps = sum((2 * math.pi / target.shape[m]) ** 2 for m in axes)
        least = steps * _least(deviation, target[0].numel(), _share(mask)).square()
        denominator = denominator.maximum(least.to(denominator.dtype))
    # The square root has no slope at zero.
    return (numerator.clamp_min(_tiny(target)) / denominator).sqrt()


def grouped_relative_l2(
    prediction: Frames,
    target: Frames,
    slices: Mapping[str, slice],
    deviation: Deviation = None,
    offset: Float[Tensor, " channel"] | None = None,
    mask: Mask = None,
    grid: Grid | None = None,
) -> dict[str, Tensor]:
    """`relative_l2` of each field group, averaged over the batch; ``deviation`` is that of all channels.

    An ``offset`` of the channels is not part of the truth that errors are relative to.
    """
    if offset is not None:
        prediction, target = prediction - offset, target - offset
    return {
        name: relative_l2(
            prediction[..., s], target[..., s], None if deviation is None else deviation[s], mask, grid
        ).mean()
        for name, s in slices.items()
    }


def loss(prediction: Frames, target: Frames, slices: Mapping[str, slice], mask: Mask = None) -> Float[Tensor, ""]:
    """Sum over field groups of the relative L2 error on the joint window."""
    return torch.stack(list(grouped_relative_l2(prediction, target, slices, mask=mask).values())).sum()


def vrmse(
    prediction: Frames, target: Frames, deviation: Deviation = None, mask: Mask = None
) -> Float[Tensor, "batch frame"]:
    """Root mean square error over the standard deviation of the truth in space, per frame (The Well's VRMSE).

    1 means no better than predicting the spatial mean. A frame that is the same everywhere has no deviation in space:
    with the field's ``deviation``, that of a truth is at least `LEAST` of it.
    """
    error = _mean((prediction - target).square(), mask)
    variance = _mean((target - _mean(target, mask, keepdim=True)).square(), mask)
    size = _mean(target.square(), mask)  # The Well adds 1e-7 for fields of size one; here any unit gives the same
    least = (variance + 1e-7 * size).clamp_min(_tiny(target))
    if deviation is not None:
        least = least.maximum((LEAST * deviation).square().to(least.dtype))
    return (error / least).sqrt().mean(-1)


def correlation(prediction: Frames, target: Frames, mask: Mask = None) -> Float[Tensor, "batch frame"]:
    """Pearson correlation in space of each frame, averaged over the channels that vary in the truth.

    A truth that does not vary at all is not lost: 1.
    """
    axes = tuple(range(2, target.ndim - 1))
    target = within(target, mask)
    p = within(prediction - _mean(prediction, mask, keepdim=True), mask)
    t = within(target - _mean(target, mask, keepdim=True), mask)
    scale = (p.square().sum(axes).sqrt() * t.square().sum(axes).sqrt()).clamp_min(_tiny(target))
    each = (p * t).sum(axes) / scale
    varies = t.square().sum(axes) > 1e-12 * target.square().sum(axes)  # beyond what rounding leaves of a constant
    each = torch.where(varies | ~each.isfinite(), each, 1.0)
    count = varies.sum(-1)
    alone: Tensor = (each * varies).sum(-1) / count.clamp_min(1)
    return torch.where(count > 0, alone, each.mean(-1))


def correlation_time(
    prediction: Frames, target: Frames, frame_dt: float, threshold: float = 0.8, mask: Mask = None
) -> Float[Tensor, "batch"]:
    """Time until the correlation first falls below ``threshold``; the whole window if it never does."""
    below = ~(correlation(prediction, target, mask) >= threshold)  # a frame that is not finite correlates with nothing
    first = torch.where(below.any(1), below.int().argmax(1), below.shape[1])
    return first * frame_dt


def energy_spectrum(fields: Float[Tensor, "batch *grid channel"]) -> Float[Tensor, "batch shell"]:
    """Energy ``½ Σ |û|²`` in shells of integer wavenumber ``k - ½ ≤ |k| < k + ½``, summed over channels.

    Shells run to the largest one that the shortest axis resolves, and add up to ``½⟨|u|²⟩`` but for the
    corners of the spectrum beyond it. That of a masked field is of one that is zero outside the domain (`within`).
    """
    grid = fields.shape[1:-1]
    axes = tuple(range(1, fields.ndim - 1))
    working = fields if fields.dtype == torch.float64 else fields.float()
    coefficients: Tensor = torch.fft.fftn(working, dim=axes, norm="forward")
    density = 0.5 * coefficients.abs().square().sum(-1).flatten(1)
    frequencies = [torch.fft.fftfreq(size, 1 / size, device=fields.device) for size in grid]
    radius = torch.stack(torch.meshgrid(*frequencies, indexing="ij")).square().sum(0).sqrt()
    shell = (radius + 0.5).floor().long().flatten()
    num_shells = min(grid) // 2 + 1
    spectrum = density.new_zeros(density.shape[0], int(shell.max()) + 1)
    spectrum.index_add_(1, shell, density)
    return spectrum[:, :num_shells]


def spectrum_error(prediction: Frames, target: Frames, mask: Mask = None) -> Float[Tensor, "batch frame"]:
    """Mean ``|log₁₀(E_p / E_t)|`` over the resolved shells above zero that hold energy in the truth."""
    prediction, target = within(prediction, mask), within(target, mask)
    batch, frames = target.shape[:2]
    predicted = energy_spectrum(prediction.flatten(0, 1))[:, 1:]
    true = energy_spectrum(target.flatten(0, 1))[:, 1:]
    floor = (1e-12 * true.sum(1, keepdim=True)).clamp_min(_tiny(target))
    ratio = (predicted.clamp_min(floor) / true.clamp_min(floor)).log10().abs()
    resolved = (true > floor).to(ratio.dtype)
    mean: Tensor = (ratio * resolved).sum(1) / resolved.sum(1).clamp_min(1)
    return mean.reshape(batch, frames)


def standard_error(values: Float[Tensor, "sample"]) -> float:
    """Standard error of the mean of independent samples; NaN for a single one."""
    return float(values.double().std()) / math.sqrt(len(values)) if len(values) > 1 else float("nan")


def unit(deviation: Float[Tensor, " channel"]) -> Float[Tensor, ""]:
    """A power of two near one over the largest deviation: times it, squares of fields stay within float32.

    Nothing is rounded by it, so that an error has the same bits in any unit.
    """
    largest = deviation.amax()
    return torch.frexp(largest).mantissa / largest


def within(frames: Frames, mask: Mask) -> Frames:
    """Frames with zeros outside the domain."""
    return frames if mask is None else frames.masked_fill(~mask.unsqueeze(1).unsqueeze(-1), 0.0)


def _pairs(mask: Bool[Tensor, "batch *grid"], axis: int) -> Tensor:
    """Where a point along dimension ``axis`` and the next one both lie inside."""
    size = mask.shape[axis] - 1
    return mask.narrow(axis, 0, size) & mask.narrow(axis, 1, size)


def _share(mask: Mask) -> Tensor | None:
    """The part of the points that lies inside, for each sample."""
    return None if mask is None else mask.flatten(1).float().mean(1)


def _mean(frames: Frames, mask: Mask, *, keepdim: bool = False) -> Tensor:
    """Mean over the points of each frame and channel."""
    axes = tuple(range(2, frames.ndim - 1))
    mean = within(frames, mask).mean(axes, keepdim=keepdim)
    share = _share(mask)
    if share is None:
        return mean
    return mean / share.to(mean.dtype).reshape(-1, *[1] * (mean.ndim - 1))


def _in_units(error: Tensor, target: Tensor, deviation: Deviation) -> tuple[Tensor, Tensor, Deviation]:
    if deviation is None:
        return error, target, None
    factor = unit(deviation)
    return error * factor, target * factor, deviation * factor


def _flat(frames: Tensor, start: int) -> Tensor:
    return frames.flatten(start) if frames.dtype == torch.float64 else frames.flatten(start).float()


def _norm(values: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(values, dim=-1)
    return norm


def _scale(truth: Tensor, deviation: Tensor | None, share: Tensor | None) -> Tensor:
    """The norm that an error is divided by."""
    norm = _norm(truth).clamp_min(_tiny(truth))
    if deviation is None:
        return norm
    least = _least(deviation, truth.shape[-1], share).to(norm.dtype)
    return norm.maximum(least if share is None else least.reshape(-1, *[1] * (norm.ndim - 1)))


def _least(deviation: Tensor, count: int, share: Tensor | None) -> Tensor:
    """The smallest norm of ``count`` values, a ``share`` of which counts, as a truth to be relative to."""
    least = LEAST * math.sqrt(count) * deviation.square().mean().sqrt()
    return least if share is None else least * share.sqrt()


def _tiny(values: Tensor) -> float:
    return float(torch.finfo(torch.float32 if values.dtype != torch.float64 else torch.float64).tiny)
