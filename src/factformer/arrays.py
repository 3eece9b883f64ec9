"""Arrays that a user gives: numbers of any library as tensors, and fields and parameters by name side by side."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy.typing import NDArray
from torch import Tensor

from factformer._support.text import cut
from factformer.errors import NonFinite, UserError
from factformer.problem import Field, Problem, channel_slices

Array = Tensor | NDArray[Any]
Fields = Array | Mapping[str, Array]
"""Values of several fields: side by side in the channels of one array, or one array for each name."""
Numbers = Array | Mapping[str, Array | float | int]
"""Values of several parameters: side by side in an array, or one number or array for each name."""


def as_tensor(values: Array, what: str) -> Tensor:
    """An array of any byte order and direction as a tensor; the numbers must be real and all there."""
    if hasattr(values, "dims") and hasattr(values, "values"):  # without importing xarray
        raise UserError(
            f"{what} are an xarray {type(values).__name__}: give its numbers, .transpose(...).values in the order of "
            "the axes, and its coordinates as Grid.from_axes([...])"
        )
    if np.ma.is_masked(values):
        raise UserError(f"{what} are masked in places; fill these or leave the trajectories out")
    if isinstance(values, (str, os.PathLike)):
        advice = "load a file with numpy.load"
        if os.path.isdir(values):
            advice = "open a dataset with factformer.data.open_dataset"
        raise UserError(f"{what} must be an array of numbers, got {cut(str(values))}; {advice}")
    if not isinstance(values, (Tensor, np.ndarray)):
        values = _assembled(values)
    if isinstance(values, np.ndarray):
        values = np.asarray(values)
        native = values.dtype.newbyteorder("=")
        values = np.require(values.astype(native, copy=False), requirements=["C", "W"])
    try:
        tensor = torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UserError(f"{what} must be an array of numbers, got {type(values).__name__}: {cut(str(error))}") from None
    if tensor.is_complex():
        raise UserError(f"{what} hold complex numbers; give their parts as two channels")
    return tensor


def _assembled(values: Any) -> Any:
    """A sequence of arrays or of tensors as one, an array of another library as NumPy's; anything else as it is."""
    try:
        if hasattr(values, "__array__"):
            return np.asarray(values)
        if isinstance(values, (list, tuple)) and values and all(hasattr(each, "__array__") for each in values):
            return torch.stack(list(values)) if isinstance(values[0], Tensor) else np.asarray(values)
    except (TypeError, ValueError, RuntimeError):
        pass  # PyTorch says below what is wrong with them
    return values


def fits(shape: Sequence[int], wanted: Sequence[int | str]) -> bool:
    """Whether an array has the ``wanted`` shape, in which names stand for any size but 0."""
    return len(shape) == len(wanted) and all(
        size > 0 and (isinstance(want, str) or want == size) for size, want in zip(shape, wanted, strict=True)
    )


def shape_advice(shape: Sequence[int], wanted: Sequence[int | str], *, channels: bool = True) -> str:
    """How an array of ``shape`` gets the ``wanted`` one, where names stand for any size: for the end of a message.

    ``channels``: whether the last of its axes is that of channels. Empty where no single change does it.
    """
    if channels and fits((*shape, 1), wanted):
        return "; add an axis of channels with array[..., None]"
    if fits((1, *shape), wanted):
        return f"; add an axis for the only {'trajectory' if wanted[0] == 1 else wanted[0]} with array[None]"
    for axis in reversed(range(len(shape) - 1 if channels else 0)):
        if fits((*shape[:axis], *shape[axis + 1 :], shape[axis]), wanted):
            return f"; move the channels to the end with numpy.moveaxis(array, {axis}, -1)"
    for second in range(len(shape)):
        for first in range(second):
            swapped = list(shape)
            swapped[first], swapped[second] = shape[second], shape[first]
            if fits(swapped, wanted):
                return f"; exchange two axes with array.swapaxes({first}, {second})"
    return ""


def as_number(value: Any, what: str) -> float:
    """One finite number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise UserError(f"{what} takes one finite number, got {cut(value)}")
    return float(value)


def as_mask(values: Array) -> Bool[Tensor, "*shape"]:
    """An array of true and false, or of ones and zeros."""
    tensor = as_tensor(values, "the mask")
    if tensor.dtype == torch.bool:
        return tensor
    if not bool(((tensor == 0) | (tensor == 1)).all()):
        raise UserError("a mask holds 1 inside the domain and 0 outside of it, and no other number")
    return tensor != 0


def joined(values: Fields, fields: Sequence[Field], num_leading: int, what: str) -> Tensor:
    """The channels of ``fields`` side by side.

    An array under a field's name has ``num_leading`` axes, and one more for its channels, which a scalar may leave out.
    """
    if not isinstance(values, Mapping):
        return as_tensor(values, what)
    names = [item.name for item in fields]
    require_names(values, names, what)
    columns = []
    for item in fields:
        column = as_tensor(values[item.name], f"{what} {item.name!r}")
        column = column.unsqueeze(-1) if column.ndim == num_leading else column
        if column.ndim != num_leading + 1 or column.shape[-1] != item.num_channels:
            raise UserError(
                f"{what} {item.name!r} must have {num_leading} axes and {item.num_channels} channels at the end, "
                f"got shape {tuple(column.shape)}"
            )
        columns.append(column)
    if len({column.shape[:-1] for column in columns}) > 1:
        shapes = {name: tuple(column.shape[:-1]) for name, column in zip(names, columns, strict=True)}
        raise UserError(f"{what} fields are of different shapes: {shapes}")
    return torch.cat(columns, dim=-1)


def joined_parameters(values: Numbers, names: Sequence[str], size: int) -> Float[Tensor, "batch parameter"]:
    """The parameters of ``size`` samples side by side, in float64; a single number holds for all of them."""
    if not isinstance(values, Mapping):
        tensor = as_tensor(values, "parameters")
        return tensor if tensor.is_floating_point() else tensor.float()
    require_names(values, names, "parameters")
    columns = []
    for name in names:
        given = values[name]
        column = as_tensor(np.asarray(given) if isinstance(given, float | int) else given, f"parameter {name!r}")
        if column.ndim > 1 or column.numel() not in (1, size):
            raise UserError(
                f"parameter {name!r} must hold one number per sample, {size}; got shape {tuple(column.shape)}"
            )
        columns.append(column.reshape(-1).double().expand(size))
    return torch.stack(columns, dim=-1)


def describe_part(problem: Problem, name: str) -> str:
    """Such as ``static fields coefficient (1)``, for messages."""
    if name == "parameters":
        return f"parameters {', '.join(problem.parameters)}"
    if name == "mask":
        return "a mask of the points inside its domain"
    fields = problem.state if name == "context" else getattr(problem, name)
    word = {"context": "context frames of", "static": "static fields", "forcing": "forcing"}[name]
    return f"{word} {field_names(fields)}"


def describe_channel(problem: Problem, name: str, channel: int) -> str:
    """What one channel of a part holds, such as ``static 'depth'`` or ``parameter 'reynolds'``, for messages."""
    if name == "parameters":
        return f"parameter {problem.parameters[channel]!r}"
    fields = problem.state if name in ("context", "state") else getattr(problem, name)
    return next(f"{name} {key!r}" for key, place in channel_slices(fields).items() if channel < place.stop)


def field_names(fields: Sequence[Field]) -> str:
    """Such as ``velocity (2), pressure (1)``."""
    return ", ".join(f"{item.name} ({item.num_channels})" for item in fields)


def require_names(values: Mapping[str, Any], names: Sequence[str], what: str) -> None:
    """Raise where values are not given for exactly these names."""
    if not names and values:
        word = "static fields" if what == "static" else what
        raise UserError(f"this problem has no {word}: leave out {', '.join(values)}")
    if set(values) != set(names):
        raise UserError(f"{what} must be given for {', '.join(names)}; got {', '.join(values) or 'none'}")


def require_finite(values: Tensor, problem: Problem, part: str) -> None:
    """Raise where a part of a batch holds NaN or infinite values, with its field and the samples."""
    if not values.is_floating_point():
        return
    bad = ~torch.isfinite(values)
    if bool(bad.any()):
        channel = int(bad.flatten(0, -2).any(0).nonzero()[0])
        what = "the input" if part == "context" else describe_channel(problem, part, channel)
        raise NonFinite(0, bad.flatten(1).any(1).nonzero().flatten().tolist(), what)
