"""The roll-outs that an evaluation keeps for figures and reports (`rollouts.npz`), checked on arrival."""

from __future__ import annotations

import json
import math
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile, ZipInfo

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from factformer._support.files import regular_file
from factformer._support.limits import require_memory
from factformer._support.text import cut
from factformer.errors import UserError
from factformer.grid import MAX_AXES, Grid
from factformer.problem import Field
from factformer.report.planes import Array

READ = ("truth", "prediction", "context", "fields", "grid", "mask")
LONGEST_TEXT = 2**20


@dataclass(frozen=True)
class Rollout:
    """One sample: true and predicted frames ``(frame, *grid, channel)`` in physical units, NaN outside the domain.

    ``context`` holds the frames that the surrogate saw; a report shows it for steady problems.
    """

    truth: Array
    prediction: Array
    context: Array | None = None

    def __post_init__(self) -> None:
        if self.truth.shape != self.prediction.shape or self.truth.ndim < 3:
            raise UserError(
                "a roll-out needs truth and prediction of one shape (frame, *grid, channel), got "
                f"{self.truth.shape} and {self.prediction.shape}"
            )


@dataclass(frozen=True)
class Samples:
    """What a file of roll-outs holds; nothing where there is no file."""

    rollouts: tuple[Rollout, ...] = ()
    fields: tuple[Field, ...] = ()
    grid: Grid | None = None
    context: Array | None = None


def read_rollouts(path: Path) -> Samples:
    """Roll-outs, fields, grid and context of the file that evaluation writes."""
    if not path.exists():
        return Samples()
    try:
        return _samples(_read_arrays(path))
    except UserError as error:
        raise UserError(f"{path} is not readable ({error}); run `factformer evaluate` again") from None


def _samples(arrays: dict[str, NDArray[Any]]) -> Samples:
    truth, prediction = (_frames(arrays, name) for name in ("truth", "prediction"))
    if truth.shape != prediction.shape:
        raise UserError(f"truth {truth.shape} and prediction {prediction.shape} differ in shape")
    context = _frames(arrays, "context") if "context" in arrays else None
    if context is not None and (len(context), context.shape[2:-1]) != (len(truth), truth.shape[2:-1]):
        raise UserError(f"context {context.shape} and truth {truth.shape} differ in samples or grid")
    for name, values in (("truth", truth), ("context", context)):
        if values is not None and not np.isfinite(values).all():
            raise UserError(f"its {name} holds NaN or infinite values")
    grid = _grid(_json(arrays, "grid"), truth.shape[2:-1]) if "grid" in arrays else None
    fields = _fields(_json(arrays, "fields"), truth.shape[-1]) if "fields" in arrays else ()
    if "mask" in arrays:
        outside = ~_mask(arrays["mask"], (len(truth), *truth.shape[2:-1]))[:, None, ..., None]
        truth, prediction = (np.where(outside, np.float32(np.nan), values) for values in (truth, prediction))
        shown = None if context is None else np.where(outside, np.float32(np.nan), context)
    else:
        shown = context
    seen = [None] * len(truth) if shown is None else list(shown)
    rollouts = tuple(Rollout(t, p, c) for t, p, c in zip(truth, prediction, seen, strict=True))
    return Samples(rollouts, fields, grid, context)


def _frames(arrays: dict[str, NDArray[Any]], name: str) -> Array:
    """``(sample, frame, *grid, channel)`` in float32."""
    if name not in arrays:
        raise UserError(f"it has no {name!r}")
    values = arrays[name]
    if values.dtype.kind != "f" or not 4 <= values.ndim <= MAX_AXES + 3 or values.size == 0:
        raise UserError(f"its {name!r} is {values.dtype} of shape {values.shape}, not (sample, frame, *grid, channel)")
    with np.errstate(over="ignore"):
        return values.astype(np.float32)


def _mask(values: NDArray[Any], shape: tuple[int, ...]) -> NDArray[np.bool_]:
    """True inside the domain, ``(sample, *grid)``."""
    if values.dtype.kind != "b" or values.shape != shape:
        raise UserError(f"its mask is {values.dtype} of shape {values.shape}, not true and false of shape {shape}")
    if not values.reshape(len(values), -1).any(1).all():
        raise UserError("its mask has no point inside the domain")
    return values


def _grid(values: Any, shape: tuple[int, ...]) -> Grid:
    try:
        grid = Grid.from_dict(values)
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
        raise UserError(f"its grid is {cut(values)}: {cut(str(error))}") from None
    if grid.shape != shape:
        raise UserError(f"its grid has shape {grid.shape}, its frames {shape}")
    return grid


def _fields(values: Any, num_channels: int) -> tuple[Field, ...]:
    """``[["velocity", 3]]``, ``{"velocity": 3}`` or plain names of one channel each."""
    items = list(values.items()) if isinstance(values, dict) else values
    if not isinstance(items, list):
        raise UserError(f"its fields read {cut(values)}")
    pairs = [(item, 1) if isinstance(item, str) else item for item in items]
    if any(not isinstance(pair, (list, tuple)) or len(pair) != 2 or type(pair[1]) is not int for pair in pairs):
        raise UserError(f"its fields read {cut(values)}")
    fields = tuple(Field(*pair) for pair in pairs)
    if sum(item.num_channels for item in fields) != num_channels:
        raise UserError(f"the roll-outs hold {num_channels} channels but their fields read {cut(values)}")
    return fields


def _json(arrays: dict[str, NDArray[Any]], name: str) -> Any:
    """The JSON value of an array that holds one text."""
    if arrays[name].dtype.kind != "U" or arrays[name].ndim != 0:
        raise UserError(f"its {name!r} is not a text")
    try:
        return json.loads(str(arrays[name]))
    except (ValueError, RecursionError):
        raise UserError(f"its {name!r} is not valid JSON") from None


def _read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays of an npz file by name; their sizes are checked before memory is taken for them."""
    try:
        with ZipFile(regular_file(path)) as archive:
            members = {item.filename.removesuffix(".npy"): item for item in archive.infolist()}
            wanted = {name: members[name] for name in READ if name in members}
            require_memory(
                4 * sum(item.file_size for item in wanted.values()), str(path), "evaluate with fewer --samples"
            )
            return {name: _read_array(archive, name, item) for name, item in wanted.items()}
    except (BadZipFile, zlib.error, OSError, EOFError, NotImplementedError, RuntimeError) as error:
        raise UserError(cut(str(error) or type(error).__name__)) from None


def _read_array(archive: ZipFile, name: str, item: ZipInfo) -> NDArray[Any]:
    try:
        with archive.open(item) as file:
            version = npy.read_magic(file)
            read_header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
            shape, _, dtype = read_header(file)
            num_bytes = math.prod(shape) * dtype.itemsize
            if dtype.kind not in "fUb" or num_bytes > item.file_size:
                raise UserError(f"its {name!r} is {cut(str(dtype))} of shape {cut(shape)}, more than the file holds")
            if dtype.kind == "U" and num_bytes > LONGEST_TEXT:
                raise UserError(f"its {name!r} is too long a text")
        with archive.open(item) as file:
            values: NDArray[Any] = npy.read_array(file, allow_pickle=False)
            return values
    except UserError:
        raise
    except (ValueError, TypeError, OverflowError, SyntaxError) as error:
        raise UserError(f"its {name!r} is damaged: {cut(str(error))}") from None
