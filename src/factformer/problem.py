"""What a surrogate learns: named fields and numbers on a grid, the frame interval, how much is seen and predicted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import Any, Literal, Self

import numpy as np

from factformer._support.text import cut
from factformer.errors import UserError
from factformer.grid import Grid

Boundary = Literal["periodic", "zero", "reflect"]
FIELD_GROUPS = ("state", "static", "forcing")
BOUNDARIES: tuple[Boundary, ...] = ("periodic", "zero", "reflect")


LONGEST_NAME = 100
MOST_CHANNELS = 4096
MOST_FRAMES = 2**20
STEP = "frame_dt"
"""The parameter that is the time between frames, in a problem whose trajectories have several."""
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
    """What is predicted from what: named fields and numbers on a grid.

    ``state`` are the fields to predict, in channel order. ``static`` fields are known once per trajectory, such as a
    coefficient; ``forcing`` fields are known for every frame, past and future; ``parameters`` are names of numbers
    that each trajectory has. Where a problem is ``masked``, each trajectory says which points lie inside the domain.

    A problem without context frames is steady: its static fields decide the one frame of its state. ``boundary`` says
    how a field continues beyond non-periodic ends: ``"zero"`` or ``"reflect"``; it is ``"periodic"`` when every axis is
    periodic.
    """

    name: str
    grid: Grid
    state: tuple[Field, ...]
    static: tuple[Field, ...] = ()
    forcing: tuple[Field, ...] = ()
    parameters: tuple[str, ...] = ()
    frame_dt: float = 1.0
    num_context_frames: int = 1
    horizon: int = 1
    boundary: Boundary = "periodic"
    masked: bool = False

    def __post_init__(self) -> None:
        for group in FIELD_GROUPS:
            fields = tuple(getattr(self, group))
            if not all(isinstance(item, Field) for item in fields):
                raise UserError(
                    f"problem {self.name!r}: {group} takes fields, such as Field('velocity', 2); got {fields}"
                )
            object.__setattr__(self, group, fields)
        if isinstance(self.parameters, str):
            raise UserError(f"problem {self.name!r}: parameters are a list of names, got {self.parameters!r}")
        object.__setattr__(self, "parameters", tuple(self.parameters))
        if not self.state:
            raise UserError(f"problem {self.name!r} has no fields to predict")
        for name in self.parameters:
            if not isinstance(name, str) or not name.isidentifier():
                raise UserError(f"problem {self.name!r}: the parameter {name!r} needs a name such as 'reynolds'")
        if not isinstance(self.masked, bool):
            raise UserError(f"problem {self.name!r}: masked is true or false, got {cut(self.masked)}")
        names = [item.name for group in FIELD_GROUPS for item in getattr(self, group)]
        names += [*self.parameters, *(["mask"] if self.masked else [])]
        if len(set(names)) != len(names):
            twice = sorted({name for name in names if names.count(name) > 1})
            raise UserError(f"problem {self.name!r} uses the name {twice[0]!r} twice; give each part a name of its own")
        if self.boundary not in BOUNDARIES:
            raise UserError(f"boundary must be one of {BOUNDARIES}, got {self.boundary!r}")
        if self.boundary == "periodic" and not all(self.grid.periodic):
            raise UserError("boundary 'periodic' needs a grid whose axes are all periodic; use 'zero' or 'reflect'")
        if isinstance(self.frame_dt, bool) or not isinstance(self.frame_dt, (Real, np.number)):
            raise UserError(f"frame_dt cannot be {cut(self.frame_dt)}: it is one number, the time between frames")
        object.__setattr__(self, "frame_dt", float(self.frame_dt))
        if not SMALLEST_INTERVAL < self.frame_dt < 1 / SMALLEST_INTERVAL:
            raise UserError(f"frame_dt must be positive and a number of float32, got {self.frame_dt:g}")
        for key, least in (("num_context_frames", 0), ("horizon", 1)):
            count = getattr(self, key)
            if isinstance(count, bool) or not isinstance(count, Integral) or not least <= count <= MOST_FRAMES:
                raise UserError(
                    "num_context_frames at least 0 and horizon at least 1, both whole numbers of frames: "
                    f"got {key}={cut(count)}"
                )
        if self.steady:
            self._require_steady()

    def _require_steady(self) -> None:
        what = f"problem {self.name!r} has no context frames, so it is steady"
        if not self.static:
            raise UserError(f"{what}: it needs static fields to predict from")
        if self.horizon != 1:
            raise UserError(f"{what} and predicts one frame; got horizon={self.horizon}")
        if self.forcing:
            raise UserError(f"{what}: give {self.forcing[0].name!r} as a static field, not as forcing")

    @property
    def steady(self) -> bool:
        """Whether the state is one frame that the static fields decide."""
        return self.num_context_frames == 0

    @property
    def start(self) -> Literal["static", "state"]:
        """The part that a solution starts from: the static fields where nothing else is known, else the state."""
        return "state" if self.num_context_frames else "static"

    @property
    def start_fields(self) -> tuple[Field, ...]:
        """The fields of that part."""
        return self.static if self.start == "static" else self.state

    @property
    def time_span(self) -> float:
        """The time of the frames that are predicted; that of a steady problem counts as one."""
        return 1.0 if self.steady else self.horizon * self.frame_dt

    def require_frames(self, num_frames: int, what: str) -> None:
        """Raise where ``what`` asks for other than the one frame of a steady problem."""
        if self.steady and num_frames != 1:
            raise UserError(f"{self.name!r} is steady and has one frame: {what} {num_frames}")

    @property
    def num_state_channels(self) -> int:
        return num_channels(self.state)

    @property
    def num_static_channels(self) -> int:
        return num_channels(self.static)

    @property
    def num_forcing_channels(self) -> int:
        return num_channels(self.forcing)

    @property
    def state_slices(self) -> dict[str, slice]:
        """The channels of each field of the state."""
        return channel_slices(self.state)

    @property
    def parts(self) -> tuple[str, ...]:
        """What is known of a trajectory beside its state, of ``static``, ``forcing``, ``parameters`` and ``mask``."""
        there = (("static", self.static), ("forcing", self.forcing), ("parameters", self.parameters))
        return (*(name for name, members in there if members), *(["mask"] if self.masked else []))

    @property
    def padding(self) -> tuple[Boundary, ...]:
        """How each axis continues beyond its ends."""
        return tuple("periodic" if wraps else self.boundary for wraps in self.grid.periodic)

    def with_stride(self, stride: int) -> Self:
        """The same problem seen at every ``stride``-th frame; the horizon is as long in time, or one frame."""
        return replace(self, frame_dt=stride * self.frame_dt, horizon=max(1, self.horizon // stride))

    def with_grid(self, grid: Grid) -> Self:
        """The same problem on another grid."""
        return replace(self, grid=grid)

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready description; `Problem.from_dict` reads it back."""
        return {
            "name": self.name,
            "grid": self.grid.to_dict(),
            **{group: [[f.name, f.num_channels] for f in getattr(self, group)] for group in FIELD_GROUPS},
            "parameters": list(self.parameters),
            "frame_dt": self.frame_dt,
            "num_context_frames": self.num_context_frames,
            "horizon": self.horizon,
            "boundary": self.boundary,
            "masked": self.masked,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Read what `to_dict` gave, in this edition or the first."""
        known = migrated(values)
        known["grid"] = Grid.from_dict(known["grid"])
        for group in FIELD_GROUPS:
            known[group] = tuple(Field(name, channels) for name, channels in known.get(group, ()))
        return cls(**known)

    def identity(self) -> dict[str, Any]:
        """What fingerprints are made from.

        A problem that the first edition could describe keeps that description, so files and runs keep their
        fingerprints.
        """
        values = self.to_dict()
        steady = self.start == "static"
        if self.forcing or self.parameters or self.masked or (self.static and not steady):
            return values
        kept = {key: values[key] for key in ("name", "grid", "frame_dt", "horizon", "boundary")}
        inputs = values[self.start]
        context = max(1, self.num_context_frames)
        return {
            **kept,
            "outputs": values["state"],
            "inputs": inputs,
            "num_context_frames": context,
            "steady": steady,
        }


def migrated(values: Mapping[str, Any]) -> dict[str, Any]:
    """A problem's description with this edition's keys.

    The first edition had ``outputs`` for the state, ``inputs`` for the static fields of a steady problem (and the
    state again for others), and a flag ``steady`` for no context frames.
    """
    known = dict(values)
    if "outputs" not in known:
        return known
    known["state"] = known.pop("outputs")
    inputs = known.pop("inputs", None)
    if known.pop("steady", False):
        known |= {"static": inputs or (), "num_context_frames": 0}
    return known


def num_channels(fields: Sequence[Field]) -> int:
    """Channels of all fields together."""
    return sum(item.num_channels for item in fields)


def channel_slices(fields: Sequence[Field]) -> dict[str, slice]:
    """Where each field group sits in the channel axis."""
    slices, start = {}, 0
    for item in fields:
        slices[item.name] = slice(start, start + item.num_channels)
        start += item.num_channels
    return slices
