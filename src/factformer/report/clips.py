"""Roll-outs as bytes for the page's player.

Every clip is one component of one sample on one plane over all frames. The truth is stored on 255 levels
between its extremes, the difference prediction - truth on 255 levels about zero, and the page adds the two:
a small error then keeps its own resolution instead of drowning in that of the field. Level 255 stands for
values that are not finite, as those outside the domain are: the page paints them grey. Bytes are differenced in
time, deflated and written in base64.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from factformer.errors import UserError
from factformer.grid import Grid
from factformer.report.planes import (
    Array,
    Component,
    Plane,
    axis_name,
    cell_edges,
    color_limits,
    components,
    difference_limits,
    middle_planes,
    picture_aspect,
    to_scale,
)
from factformer.report.runs import ReportRun
from factformer.report.samples import Rollout

LEVELS = 254
MAX_SAMPLES = 8
NOT_FINITE = 255


@dataclass(frozen=True)
class Detail:
    """How much is embedded: samples, planes and the stride at which points are kept."""

    samples: int
    planes: int
    stride: int


def player_data(
    runs: Sequence[ReportRun], labels: Sequence[str], max_bytes: int, *, compared: bool = False
) -> dict[str, Any] | None:
    """Everything the player needs, as JSON, within ``max_bytes``; None when no run brought roll-outs.

    Models with the same truth can be shown side by side; with ``compared`` they are at first.

    Runs that were evaluated on the same windows share their truth. When all does not fit, samples go first
    (down to two), then planes, then resolution.
    """
    shown = [(run, label) for run, label in zip(runs, labels, strict=True) if run.rollouts]
    if not shown:
        return None
    first = shown[0][0].rollouts[0].truth.shape
    for run, label in shown:
        same_shape = all(rollout.truth.shape == first for rollout in run.rollouts)
        if not same_shape or list(run.fields) != list(shown[0][0].fields):
            raise UserError(
                f"{label!r} and {shown[0][1]!r} hold other grids or fields: make one report for each problem"
            )
    encoder = _Encoder([run for run, _ in shown], [label for _, label in shown])
    details = _details(encoder.num_samples, len(encoder.planes), max(first[1:-1]))
    fitting = next((detail for detail in details if encoder.size(detail) <= max_bytes), None)
    if fitting is None:
        raise UserError(f"a single roll-out needs more than {max_bytes} bytes; pass fewer frames")
    data = encoder.encode(fitting)
    comparable = len(encoder.runs) > 1 and len(set(encoder.sources)) == 1
    return {**data, "comparable": comparable, "view": int(compared and comparable)}


def _details(samples: int, planes: int, size: int) -> list[Detail]:
    few = min(2, samples)
    strides = [s for s in (2, 3, 4, 6, 8, 12, 16) if size // s >= 16]
    return [
        *(Detail(n, planes, 1) for n in range(samples, few - 1, -1)),
        *(Detail(few, n, 1) for n in range(planes - 1, 0, -1)),
        *(Detail(few, planes, s) for s in strides),
        *(Detail(1, 1, s) for s in (1, *strides)),
    ]


class _Encoder:
    """Packs clips once each, so that trying several amounts of detail costs no more than the largest."""

    def __init__(self, runs: Sequence[ReportRun], labels: Sequence[str]) -> None:
        self.runs, self.labels = runs, labels
        self.num_samples = min(MAX_SAMPLES, *(len(run.rollouts) for run in runs))
        self.parts = components(runs[0].fields)
        self.planes = middle_planes(runs[0].rollouts[0].truth.shape[1:-1])
        self.sources: list[int] = []  # the first run with the same truth
        for run in runs:
            same = (i for i, other in enumerate(runs) if _same_truth(other.rollouts, run.rollouts))
            self.sources.append(next(same))
        self.fields = [_describe(part, runs, self.num_samples) for part in self.parts]
        self._packed: dict[tuple[str, int, int, int], list[list[str]]] = {}

    def size(self, detail: Detail) -> int:
        """Bytes of all clips."""
        return sum(
            len(text)
            for kind, run in self._sources()
            for sample in range(detail.samples)
            for part in self._clips(kind, run, sample, detail)
            for text in part
        )

    def encode(self, detail: Detail) -> dict[str, Any]:
        samples, first = range(detail.samples), self.runs[0]
        shape = first.rollouts[0].truth.shape
        planes = self.planes[: detail.planes]
        return {
            "runs": list(self.labels),
            "truth_of_run": self.sources,
            "samples": detail.samples,
            "sample_labels": first.sample_labels[: detail.samples],
            "frames": int(shape[0]),
            "stride": detail.stride,
            "fields": self.fields,
            "planes": [describe_plane(plane, shape[1:-1], first.grid, detail.stride) for plane in planes],
            "truth": {run: [self._clips("truth", run, s, detail) for s in samples] for run in set(self.sources)},
            "difference": [
                [self._clips("difference", run, s, detail) for s in samples] for run in range(len(self.runs))
            ],
            "input": self._input(detail),
            "errors": [
                [{f.name: self._errors(run, s, f.name) for f in first.fields} for s in samples]
                for run in range(len(self.runs))
            ],
        }

    def _input(self, detail: Detail) -> dict[str, Any] | None:
        """What a steady problem is solved for: its first static component, of the first run."""
        run = self.runs[0]
        contexts = [rollout.context for rollout in run.rollouts[: detail.samples]]
        if run.problem is None or run.problem.num_context_frames or any(context is None for context in contexts):
            return None
        frames = np.stack([context[..., 0] for context in contexts if context is not None])
        limits = color_limits(frames, percentile=100)
        low, high = float(np.nanmin(frames)), float(np.nanmax(frames))
        bounds = (low, high if high > low else low + 1)
        clips = [
            [
                pack(quantize(_thin(plane.take(values), detail.stride), *bounds))
                for plane in self.planes[: detail.planes]
            ]
            for values in frames
        ]
        return {
            "label": components(run.problem.static)[0].label,
            "signed": limits.signed,
            "limits": [limits.low, limits.high],
            "range": bounds,
            "clips": clips,
        }

    def _sources(self) -> list[tuple[str, int]]:
        return [
            *(("truth", r) for r in sorted(set(self.sources))),
            *(("difference", r) for r in range(len(self.runs))),
        ]

    def _clips(self, kind: str, run: int, sample: int, detail: Detail) -> list[list[str]]:
        """Base64 of the planes of each component."""
        key = (kind, run, sample, detail.stride)
        if key not in self._packed:
            rollout = self.runs[run].rollouts[sample]
            frames = rollout.truth if kind == "truth" else _difference(rollout)
            self._packed[key] = [
                [
                    pack(
                        quantize(
                            _thin(plane.take(frames[..., part.channel]), detail.stride),
                            *field[f"{kind}_range"],
                        )
                    )
                    for plane in self.planes
                ]
                for part, field in zip(self.parts, self.fields, strict=True)
            ]
        return [clips[: detail.planes] for clips in self._packed[key]]

    def _errors(self, run: int, sample: int, group: str) -> list[float | None]:
        return frame_errors(self.runs[run].rollouts[sample], [p.channel for p in self.parts if p.group == group])


def _describe(part: Component, runs: Sequence[ReportRun], num_samples: int) -> dict[str, Any]:
    rollouts = [rollout for run in runs for rollout in run.rollouts[:num_samples]]
    truth = np.stack([rollout.truth[..., part.channel] for rollout in rollouts])
    difference = np.stack([_difference(rollout)[..., part.channel] for rollout in rollouts])
    limits, shades = color_limits(truth), difference_limits(difference)
    finite = truth[np.isfinite(truth)]
    low, high = float(finite.min()), float(finite.max())
    spread = high - low or 1.0
    # Beyond 1.5 times the spread of the truth a prediction saturates the colours whatever the truth is there.
    largest = np.abs(difference[np.isfinite(difference)]).max(initial=0.0)
    bound = float(min(max(largest, 1e-6 * spread), 1.5 * spread))
    return {
        "label": part.label,
        "group": part.group,
        "signed": limits.signed,
        "limits": [limits.low, limits.high],
        "difference_limits": [max(shades.low, -bound), min(shades.high, bound)],
        "truth_range": [low, low + spread],
        "difference_range": [-bound, bound],
    }


def describe_plane(plane: Plane, shape: Sequence[int], grid: Grid | None, stride: int) -> dict[str, Any]:
    """Size, box, height over width of its picture, whether to scale, and the points kept along each axis, if even."""
    coordinates = [np.arange(float(size)) if grid is None else grid.axis(m).numpy() for m, size in enumerate(shape)]
    edges = [cell_edges(axis, shape, grid) for axis in plane.axes]
    kept = [coordinates[axis][::stride] for axis in plane.axes]
    return {
        "label": plane.label(None if grid is None else coordinates),
        "axes": [axis_name(axis) for axis in plane.axes],
        "width": len(kept[0]),
        "height": len(kept[1]) if len(kept) == 2 else 1,
        "aspect": picture_aspect(*edges) if len(edges) == 2 else None,
        "to_scale": len(edges) == 1 or to_scale(*edges),
        "extent": [[float(ends[0]), float(ends[-1])] for ends in edges],
        "points": [[float(f"{x:.6g}") for x in points] for points in kept],
        "even": [grid is None or grid.is_even(axis) for axis in plane.axes],
        "periodic": [bool(grid is not None and grid.periodic[axis]) for axis in plane.axes],
    }


def quantize(values: Array, low: float, high: float) -> NDArray[np.uint8]:
    """Nearest of 255 levels between ``low`` and ``high``; 255 where a value is not finite."""
    scaled = (values.astype(np.float64) - low) * (LEVELS / (high - low))
    levels = np.rint(np.nan_to_num(scaled).clip(0, LEVELS))
    return np.where(np.isfinite(values), levels, NOT_FINITE).astype(np.uint8)


def pack(levels: NDArray[np.uint8]) -> str:
    """``(frame, up, right)`` levels, differenced in time, deflated, in base64."""
    delta = np.diff(levels, axis=0, prepend=np.zeros_like(levels[:1]))  # wraps modulo 256, as the page undoes it
    return base64.b64encode(zlib.compress(delta.tobytes(), 6)).decode()


def unpack(text: str, shape: Sequence[int]) -> NDArray[np.uint8]:
    """The inverse of `pack`, as the page's script does it."""
    delta = np.frombuffer(zlib.decompress(base64.b64decode(text)), dtype=np.uint8).reshape(*shape)
    return np.cumsum(delta, axis=0, dtype=np.uint8)


def _thin(values: Array, stride: int) -> Array:
    return values[:, :: stride if values.shape[1] > 1 else 1, ::stride]


def _difference(rollout: Rollout) -> Array:
    return rollout.prediction.astype(np.float64) - rollout.truth.astype(np.float64)


def frame_errors(rollout: Rollout, channels: Sequence[int]) -> list[float | None]:
    """Relative L2 error of each frame of one field group; None where the prediction is not finite.

    Points outside the domain, where there is no truth, do not count.
    """
    axes = tuple(range(1, rollout.truth.ndim))
    truth = rollout.truth.astype(np.float64)[..., channels]
    difference = np.where(np.isnan(truth), 0.0, _difference(rollout)[..., channels])
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        error = np.sqrt((difference**2).sum(axes))
        size = np.sqrt((np.nan_to_num(truth) ** 2).sum(axes))
        ratio = error / size
    return [float(v) if np.isfinite(v) else None for v in ratio]


def _same_truth(one: Sequence[Rollout], other: Sequence[Rollout]) -> bool:
    return len(one) == len(other) and all(
        np.array_equal(a.truth, b.truth, equal_nan=True) for a, b in zip(one, other, strict=True)
    )
