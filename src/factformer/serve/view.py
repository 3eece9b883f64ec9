"""What a page draws: a description of a flow once, and pictures of it as bytes, frame by frame.

A picture message is four bytes with the length of a JSON text, the text, and float32 numbers: the planes that the text
names, one after the other, each ``(up, right)``. Points outside the domain are NaN. All is little-endian.
"""

from __future__ import annotations

import json
import math
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from factformer._support.documents import finite
from factformer.data.normalization import UNBOUNDED
from factformer.problem import STEP
from factformer.report.clips import describe_plane
from factformer.report.planes import Component, Plane, color_limits, components
from factformer.serve.flow import Flow
from factformer.serve.reference import whole_parameters
from factformer.serve.stirring import slope


@dataclass(frozen=True)
class Shown:
    """What a picture shows of a frame: a component, or a quantity that all components of a vector make together."""

    component: Component
    label: str
    kind: str = "component"

    def values(self, frame: Tensor, flow: Flow) -> Tensor:
        """The quantity ``(*grid)`` of a frame ``(*grid, channel)``."""
        if self.kind == "component":
            return frame[..., self.component.channel]
        vector = frame[..., flow.surrogate.problem.state_slices[self.component.group]]
        if self.kind == "speed":
            return vector.square().sum(-1).sqrt()
        return slope(vector[..., 1], flow.grid, 0) - slope(vector[..., 0], flow.grid, 1)


def choices(flow: Flow) -> list[Shown]:
    """All components; of a vector on a plane also its vorticity, in a volume its speed."""
    shown = [Shown(part, part.label) for part in flow.components]
    kind = {2: "vorticity", 3: "speed"}.get(flow.grid.num_axes)
    names = {part.label for part in flow.components}
    for part in flow.components:
        vector = flow.surrogate.problem.state_slices[part.group]
        is_first = part.channel == vector.start and vector.stop - vector.start == flow.grid.num_axes
        if kind is not None and is_first:
            shown.append(Shown(part, kind if kind not in names else f"{kind} of {part.group}", kind))
    return shown


def description(flow: Flow) -> dict[str, Any]:
    """Fields with their colour limits, planes, and what can be done."""
    problem, surrogate = flow.surrogate.problem, flow.surrogate
    grid = flow.grid
    seen = flow.frame if flow.batch.context is None else flow.batch.context[0]
    fields = [
        {
            "label": shown.label,
            "group": shown.component.group,
            **_limits(torch.stack([shown.values(frame, flow) for frame in seen]).numpy()),
        }
        for shown in choices(flow)
    ]
    return {
        "fields": fields,
        "planes": [describe_plane(plane, grid.shape, grid, 1) for plane in flow.planes],
        "parameters": parameter_ranges(flow),
        "steady": flow.problem_is_steady,
        "input": _input(flow),
        "frame_dt": flow.batch.frame_dt(problem),
        "can_compare": flow.reference is not None,
        "num_parameters": surrogate.num_parameters,
    }


def _limits(values: NDArray[Any]) -> dict[str, Any]:
    limits = color_limits(values)
    return {"limits": [limits.low, limits.high], "signed": limits.signed}


def _input(flow: Flow) -> dict[str, Any] | None:
    """The static field that a steady problem is solved from."""
    if not flow.problem_is_steady or flow.batch.static is None:
        return None
    label = components(flow.surrogate.problem.static)[0].label
    return {"label": label, **_limits(flow.batch.static[0, ..., 0].numpy())}


def parameter_ranges(flow: Flow) -> list[dict[str, Any]]:
    """Name, value and trained range of each parameter; without a range as far as √3 deviations, as even values reach.

    The time between frames stays what it is: the frames that are seen have it.
    """
    found, whole = [], whole_parameters(flow.surrogate)
    for index, (name, value) in enumerate(flow.parameters.items()):
        if name == STEP:
            continue
        mean, std, log, low, high = (
            float(getattr(flow.surrogate.normalizer, f"parameters_{kind}")[index])
            for kind in ("mean", "std", "log", "min", "max")
        )
        if max(abs(low), abs(high)) >= UNBOUNDED:
            low, high = mean - 3**0.5 * std, mean + 3**0.5 * std
            low, high = (math.exp(low), math.exp(high)) if log else (low, high)
        scale = {"log": bool(log) and name not in whole, "whole": name in whole}
        found.append({"name": name, "value": value, "low": low, "high": high, **scale})
    return found


def message(flow: Flow, component: int, plane: int, seconds: float) -> bytes:
    """The flow as it is now, on one plane of one component."""
    shown, cut = choices(flow)[component], flow.planes[plane]
    pictures = {"prediction": shown.values(flow.frame[0], flow)}
    if flow.truth is not None:
        pictures["truth"] = shown.values(flow.truth[0], flow)
    if flow.problem_is_steady and flow.batch.static is not None:
        pictures["input"] = flow.batch.static[0, ..., 0]
    mask = None if flow.batch.mask is None else flow.batch.mask[0]
    planes = [_plane(values if mask is None else values.where(mask, float("nan")), cut) for values in pictures.values()]
    header = {
        "number": flow.number,
        "since": flow.number - flow.began if flow.truth is not None else None,
        "ended": flow.has_ended,
        "parameters": flow.parameters,
        "errors": flow.errors(),
        "spectra": flow.spectra(shown.component.group),
        "milliseconds": 1000 * seconds,
        "pictures": list(pictures),
    }
    text = json.dumps(finite(header), separators=(",", ":"), allow_nan=False).encode()
    text += b" " * (-len(text) % 4)  # numbers begin at a multiple of four bytes
    return struct.pack("<I", len(text)) + text + b"".join(planes)


def _plane(values: Tensor, plane: Plane) -> bytes:
    return bytes(np.ascontiguousarray(plane.take(values.numpy()[None])[0], dtype="<f4").tobytes())
