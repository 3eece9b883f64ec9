"""What a surrogate learns: named fields on a grid, the frame interval, and how much is seen and predicted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import Any, Literal, Self

import numpy as np

from factformer.errors import UserError
from factformer.grid import Grid
from factformer.limits import cut

Boundary = Literal["periodic", "zero", "reflect"]
BOUNDARIES: tuple[Boundary, ...] = ("periodic", "zero", "reflect")


LONGEST_NAME = 100
MOST_CHANNELS = 4096
MOST_FRAMES = 2**20
SMALLEST_INTERVAL = 1e-37
"""A shorter frame interval, or a longer one than its inverse, is not a number of float32, which files keep times in."""


@dataclass(frozen=True)
class Field:
    """A named field group with its number of channels: 1 for a scalar, the number of axes for a vector."""

    name: str
    num_channels: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.strip(". ") or "/" in self.name:
            raise UserError(f"a field needs a name without a slash, got {cut(self.name)}")  # files have groups so named
        if len(self.name) > LONGEST_NAME or not self.name.isprintable():
            raise UserError(
                f"a field's name is printable and at most {LONGEST_NAME} characters long, got {cut(self.name)}"
            )
        if not isinstance(self.num_channels, Integral) or not 1 <= self.num_channels <= MOST_CHANNELS:
            raise UserError(
                f"field {self.name!r} needs one channel or more, as a number, and at most {MOST_CHANNELS}; "
                f"got {cut(self.num_channels)}"
            )


@dataclass(frozen=True)
class Problem:
    """Named field groups on a grid.

    ``outputs`` are the fields to predict, in channel order; ``inputs`` those a frame of context holds, the
    same ones except for a steady problem, which maps one input frame to one output frame.
    ``boundary`` says how a field continues beyond non-periodic ends: ``"zero"`` or ``"reflect"``; it is
    ``"periodic"`` when every axis is periodic.
    """

    name: str
    grid: Grid
    outputs: tuple[Field, ...]
    inputs: tuple[Field, ...] = ()
    frame_dt: float = 1.0
    num_context_frames: int = 1
    horizon: int = 1
    boundary: Boundary = "periodic"
    steady: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "outputs", tuple(self.outputs))
        object.__setattr__(self, "inputs", tuple(self.inputs) or self.outputs)
        if not self.outputs:
            raise UserError(f"problem {self.name!r} has no fields to predict")
        for group in (self.inputs, self.outputs):
            names = [f.name for f in group]
            if len(set(names)) != len(names):
                raise UserError(f"problem {self.name!r} names a field twice: {names}")
        if self.boundary not in BOUNDARIES:
            raise UserError(f"boundary must be one of {BOUNDARIES}, got {self.boundary!r}")
        if self.boundary == "periodic" and not all(self.grid.periodic):
            raise UserError("boundary 'periodic' needs a grid whose axes are all periodic; use 'zero' or 'reflect'")
        if isinstance(self.frame_dt, bool) or not isinstance(self.frame_dt, (Real, np.number)):
            raise UserError(f"frame_dt cannot be {cut(self.frame_dt)}: it is one number, the time between frames")
        object.__setattr__(self, "frame_dt", float(self.frame_dt))
        if not SMALLEST_INTERVAL < self.frame_dt < 1 / SMALLEST_INTERVAL:
            raise UserError(f"frame_dt must be positive and a number of float32, got {self.frame_dt:g}")
        for key in ("num_context_frames", "horizon"):
            count = getattr(self, key)
            if isinstance(count, bool) or not isinstance(count, Integral) or not 1 <= count <= MOST_FRAMES:
                raise UserError(
                    f"num_context_frames and horizon at least 1 and whole numbers of frames: got {key}={cut(count)}"
                )
        if self.steady and (self.num_context_frames, self.horizon) != (1, 1):
            raise UserError("a steady problem maps one frame to one frame")
        if not self.steady and self.inputs != self.outputs:
            raise UserError("a time-dependent problem predicts the fields it sees; set steady=True otherwise")

    @property
    def num_input_channels(self) -> int:
        return sum(f.num_channels for f in self.inputs)

    @property
    def num_output_channels(self) -> int:
        return sum(f.num_channels for f in self.outputs)

    @property
    def output_slices(self) -> dict[str, slice]:
        """The channels of each output field group."""
        return channel_slices(self.outputs)

    @property
    def padding(self) -> tuple[Boundary, ...]:
        """How each axis continues beyond its ends."""
        return tuple("periodic" if wraps else self.boundary for wraps in self.grid.periodic)

    def with_grid(self, grid: Grid) -> Self:
        """The same problem on another grid."""
        return replace(self, grid=grid)

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready description; `Problem.from_dict` reads it back."""
        return {
            "name": self.name,
            "grid": self.grid.to_dict(),
            "outputs": [[f.name, f.num_channels] for f in self.outputs],
            "inputs": [[f.name, f.num_channels] for f in self.inputs],
            "frame_dt": self.frame_dt,
            "num_context_frames": self.num_context_frames,
            "horizon": self.horizon,
            "boundary": self.boundary,
            "steady": self.steady,
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        known = dict(values)
        known["grid"] = Grid.from_dict(known["grid"])
        for key in ("inputs", "outputs"):
            known[key] = tuple(Field(name, channels) for name, channels in known[key])
        return cls(**known)


def channel_slices(fields: Sequence[Field]) -> dict[str, slice]:
    """Where each field group sits in the channel axis."""
    slices, start = {}, 0
    for item in fields:
        slices[item.name] = slice(start, start + item.num_channels)
        start += item.num_channels
    return slices
