"""What a page draws: a description of a flow once, and pictures of it as bytes, frame by frame.

A picture message is four bytes with the length of a JSON text, the text, and float32 numbers: the planes that the text
names, one after the other, each ``(up, right)``. Points outside the domain are NaN. All is little-endian.
"""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from factformer._support.documents import finite
from factformer.report.clips import describe_plane
from factformer.report.planes import Plane, color_limits, components
from factformer.serve.flow import Flow


def description(flow: Flow) -> dict[str, Any]:
    """Fields with their colour limits, planes, and what can be done."""
    problem, surrogate = flow.surrogate.problem, flow.surrogate
    grid = flow.grid
    seen = flow.frame.numpy() if flow.batch.context is None else flow.batch.context[0].numpy()
    fields = [
        {"label": part.label, "group": part.group, **_limits(seen[..., part.channel])} for part in flow.components
    ]
    return {
        "fields": fields,
        "planes": [describe_plane(plane, grid.shape, grid, 1) for plane in flow.planes],
        "parameters": parameter_ranges(flow),
        "steady": problem.steady,
        "input": _input(flow),
        "frame_dt": problem.frame_dt,
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
    """Name, value and range of each parameter: as far as √3 deviations from the mean, as even values reach."""
    normalizer, values = flow.surrogate.normalizer, flow.parameters
    if normalizer.parameters_mean is None or normalizer.parameters_std is None:
        return []
    means, deviations = normalizer.parameters_mean.tolist(), normalizer.parameters_std.tolist()
    return [
        {"name": name, "value": value, "low": mean - 3**0.5 * std, "high": mean + 3**0.5 * std, "log": False}
        for (name, value), mean, std in zip(values.items(), means, deviations, strict=True)
    ]


def message(flow: Flow, component: int, plane: int, seconds: float) -> bytes:
    """The flow as it is now, on one plane of one component."""
    part, cut = flow.components[component], flow.planes[plane]
    pictures = {"prediction": flow.frame[0, ..., part.channel]}
    if flow.truth is not None:
        pictures["truth"] = flow.truth[0, ..., part.channel]
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
        "spectra": flow.spectra(part.group),
        "milliseconds": 1000 * seconds,
        "pictures": list(pictures),
    }
    text = json.dumps(finite(header), separators=(",", ":"), allow_nan=False).encode()
    text += b" " * (-len(text) % 4)  # numbers begin at a multiple of four bytes
    return struct.pack("<I", len(text)) + text + b"".join(planes)


def _plane(values: Tensor, plane: Plane) -> bytes:
    return bytes(np.ascontiguousarray(plane.take(values.numpy()[None])[0], dtype="<f4").tobytes())
