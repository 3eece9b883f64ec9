"""Mean and standard deviation of fields, parameters and frame-to-frame increments, in one pass.

Moments are taken per trajectory and channel in float64 and merged in the order of the trajectories
(Chan, Golub & LeVeque 1983), so the result does not depend on batch size, interruptions or processes. Of a masked
problem the points inside the domain count.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from factformer.data.normalization import DECADE, Normalizer
from factformer.errors import UserError
from factformer.problem import Field, Problem, channel_slices, num_channels

Array = NDArray[np.float64]
KINDS = ("state", "increment", "static", "forcing", "parameters")
ROUNDING = 1e-7
"""A field that varies by less than this part of its mean is constant: float32 has no more digits."""
LARGEST = 1e36
"""Numbers beyond this leave float32 no room to compute with them."""
SMALLEST = 1e-37
"""What varies by less than this, about the smallest number that float32 keeps all digits of, is constant too."""


@dataclass(frozen=True)
class Moments:
    """Count, mean and sum of squared deviations of each channel."""

    count: int
    mean: Array
    squares: Array

    @classmethod
    def empty(cls, num_channels: int) -> Self:
        return cls(0, np.zeros(num_channels), np.zeros(num_channels))

    @classmethod
    def of(cls, values: NDArray[Any]) -> Self:
        """Moments of ``(*points, channel)`` values."""
        # channels first: summing along memory is ten times quicker than across it
        flat = np.ascontiguousarray(values.reshape(-1, values.shape[-1]).T, dtype=np.float64)
        mean = flat.mean(axis=1)
        flat = flat - mean[:, None]
        return cls(flat.shape[1], mean, np.square(flat, out=flat).sum(axis=1))

    def merge(self, other: Moments) -> Moments:
        count = self.count + other.count
        if count == 0:
            return self
        delta = other.mean - self.mean
        share = other.count / count
        return Moments(
            count,
            self.mean + delta * share,
            self.squares + other.squares + np.square(delta) * (self.count * share),
        )

    @property
    def std(self) -> Array:
        return np.sqrt(self.squares / max(self.count, 1))

    def to_dict(self) -> dict[str, Any]:
        return {"count": self.count, "mean": self.mean.tolist(), "squares": self.squares.tolist()}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        return cls(values["count"], np.array(values["mean"]), np.array(values["squares"]))


def moment_sizes(problem: Problem) -> dict[str, int]:
    """The kinds of statistics that ``problem`` has, with their numbers of channels or parameters."""
    state = problem.num_state_channels
    sizes = (state, state, problem.num_static_channels, problem.num_forcing_channels, len(problem.parameters))
    return {kind: size for kind, size in zip(KINDS, sizes, strict=True) if size}


class TrajectoryMoments:
    """Moments of one trajectory, fed frame by frame."""

    def __init__(self, problem: Problem, mask: NDArray[np.bool_] | None = None) -> None:
        self.inside = mask
        """The points that count, all where it is None."""
        self._moments = {kind: Moments.empty(size) for kind, size in moment_sizes(problem).items()}
        self._previous: NDArray[Any] | None = None

    def add(self, frame: NDArray[Any]) -> None:
        """The next frame ``(*grid, channel)`` of the state."""
        self.add_part("state", frame)
        if self._previous is not None:
            self.add_part("increment", frame.astype(np.float64) - self._previous)
        self._previous = frame

    def add_part(self, kind: str, values: NDArray[Any]) -> None:
        """Static fields or a frame of forcing ``(*grid, channel)``, or the parameters ``(parameter,)``."""
        if self.inside is not None and kind != "parameters":
            values = values[self.inside]
        self._moments[kind] = self._moments[kind].merge(Moments.of(values))

    def merge(self, others: Mapping[str, Moments]) -> None:
        """Count what another process has seen of the same trajectory."""
        for kind, found in others.items():
            self._moments[kind] = self._moments[kind].merge(found)

    def moments(self) -> dict[str, Moments]:
        return dict(self._moments)


def merge_moments(trajectories: list[dict[str, Moments]], problem: Problem) -> dict[str, Moments]:
    """Moments of all trajectories together, merged in the order given."""
    total = TrajectoryMoments(problem).moments()
    for trajectory in trajectories:
        total = {kind: moments.merge(trajectory[kind]) for kind, moments in total.items()}
    return total


def check_statistics(mean: Mapping[str, Array], std: Mapping[str, Array], sizes: Mapping[str, int], where: str) -> None:
    """Raise where stored statistics are not one finite number for each channel, or a deviation is negative."""
    for what, table in (("mean", mean), ("std", std)):
        for kind, size in sizes.items():
            values = np.asarray(table[kind])
            if values.shape != (size,):
                raise UserError(f"{where} are damaged: {kind} {what} has shape {values.shape}, not ({size},)")
            if not (np.abs(values) < LARGEST).all() or (what == "std" and (values < 0).any()):
                raise UserError(f"{where} are damaged: {kind} {what} {values.tolist()[:4]} cannot be")


def normalizer_from(
    problem: Problem, mean: Mapping[str, Array], std: Mapping[str, Array], parameters: NDArray[Any] | None = None
) -> Normalizer:
    """A normaliser from per-channel statistics by kind (`KINDS`) and the parameters of all training trajectories.

    The components of a field share one deviation, the root mean square of theirs, so that a vector keeps
    its direction. A constant field has deviation 0 where it is predicted, so that it is predicted as what it is, and 1
    where it is seen, by which one can divide. Where there is no increment (one frame), the deviation of the field
    itself stands in.
    """
    groups = {
        "context": ("state", problem.state if problem.num_context_frames else ()),
        "static": ("static", problem.static),
        "forcing": ("forcing", problem.forcing),
    }
    known: dict[str, list[float]] = {}
    for kind, (measured, fields) in groups.items():
        if fields:
            known[f"{kind}_mean"] = mean[measured].tolist()
            ones = [1.0] * num_channels(fields)
            known[f"{kind}_std"] = shared_deviation(std[measured], mean[measured], fields, ones)
    if problem.parameters:
        assert parameters is not None, "the values of parameters say on which scale they are taken"
        known |= parameter_statistics(parameters)
    state_std = shared_deviation(std["state"], mean["state"], problem.state, [0.0] * problem.num_state_channels)
    return Normalizer(
        **known,
        state_mean=mean["state"].tolist(),
        state_std=state_std,
        increment_std=shared_deviation(std["increment"], 0 * std["increment"], problem.state, state_std),
    )


def parameter_statistics(values: NDArray[Any]) -> dict[str, list[float]]:
    """Statistics of parameters ``(trajectory, parameter)``, of their logarithms where they span more than a decade."""
    exact = np.asarray(values, dtype=np.float64)
    low, high = exact.min(axis=0), exact.max(axis=0)
    log = (low > 0) & (high > DECADE * low)
    scaled = np.where(log, np.log(np.where(log, exact, 1.0)), exact)
    mean, std = scaled.mean(axis=0), scaled.std(axis=0)
    varies = std > np.maximum(ROUNDING * np.abs(mean), SMALLEST)
    columns = {"mean": mean, "std": np.where(varies, std, 1.0), "log": log, "min": low, "max": high}
    return {f"parameters_{name}": column.astype(float).tolist() for name, column in columns.items()}


def shared_deviation(std: Array, mean: Array, fields: tuple[Field, ...], constant: list[float]) -> list[float]:
    """One deviation for all components of a field; that of ``constant`` where it does not vary."""
    result: list[float] = []
    for channels in channel_slices(fields).values():
        pooled, level = (float(np.sqrt(np.mean(np.square(values[channels])))) for values in (std, mean))
        varies = np.isfinite(pooled) and pooled > max(ROUNDING * level, SMALLEST)
        result += [pooled] * (channels.stop - channels.start) if varies else constant[channels]
    return result
