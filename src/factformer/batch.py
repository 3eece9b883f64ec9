"""What travels: a `Batch` of samples that a surrogate predicts from, and a `Window` of true frames to train on.

Both are named tuples, so that PyTorch takes them apart and puts them together again wherever it moves tensors:
pytrees, ``torch.export``, ``torch.compile``, DDP.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Self

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from factformer.arrays import (
    Array,
    Fields,
    Numbers,
    as_mask,
    as_tensor,
    describe_part,
    field_names,
    joined,
    joined_parameters,
    shape_advice,
)
from factformer.errors import UserError
from factformer.problem import STEP, Field, Problem, num_channels


class Batch(NamedTuple):
    """What is known of some samples; `Batch.of` makes one from arrays, `require` says whether it fits a problem.

    ``forcing`` covers the context frames and every frame that is to be predicted. ``mask`` is true inside the domain.
    Parts that a problem does not have are None.
    """

    context: Float[Tensor, "batch context *grid channel"] | None = None
    static: Float[Tensor, "batch *grid static_channel"] | None = None
    forcing: Float[Tensor, "batch frame *grid forcing_channel"] | None = None
    parameters: Float[Tensor, "batch parameter"] | None = None
    mask: Bool[Tensor, "batch *grid"] | None = None

    @classmethod
    def of(
        cls,
        problem: Problem,
        given: Batch | Array | None = None,
        *,
        static: Fields | None = None,
        forcing: Fields | None = None,
        parameters: Numbers | None = None,
        mask: Array | None = None,
    ) -> Batch:
        """A batch for ``problem`` from a batch or from arrays.

        A bare array is the context or, for a steady problem, the static fields, with or without an axis for their one
        frame. Fields and parameters may be given by name; ``frame_dt`` is the problem's unless it is among these.
        """
        axes = problem.grid.num_axes
        static, forcing = (None if _is_empty(part) else part for part in (static, forcing))
        parameters = None if _is_empty(parameters) else parameters
        if isinstance(given, Batch):
            beside = {"static": static, "forcing": forcing, "parameters": parameters, "mask": mask}
            twice = [name for name in given.names if beside.get(name) is not None]
            if twice:
                raise UserError(f"{twice[0]}= is given beside a batch that has its own; leave one of them out")
            are_tensors = all(isinstance(part, Tensor) for part in given.tensors)
            batch = given if are_tensors else given.map(lambda part: as_tensor(part, "a part of the batch"))
        elif problem.steady:
            if given is not None and static is not None:
                raise UserError(f"{problem.name!r} is steady and has no context: give its static fields once")
            static, batch = given if static is None else static, cls()
        elif given is None:
            raise UserError(f"{problem.name!r} needs context frames to predict from")
        else:
            batch = cls(as_tensor(given, "the context"))
        new: dict[str, Tensor] = {}
        if static is not None:
            values = joined(static, problem.static, axes + 1, "static")
            new["static"] = values.squeeze(1) if values.ndim == axes + 3 and values.shape[1] == 1 else values
        if forcing is not None:
            new["forcing"] = joined(forcing, problem.forcing, axes + 2, "forcing")
        first = next((part for part in (batch.context, new.get("static"), batch.static) if part is not None), None)
        size = 1 if first is None or not first.ndim else len(first)
        if parameters is None and batch.parameters is None and problem.parameters == (STEP,):
            parameters = {}
        if parameters is not None:
            if STEP in problem.parameters and isinstance(parameters, Mapping):
                parameters = {STEP: problem.frame_dt, **parameters}
            exact = first is not None and first.dtype == torch.float64
            numbers = joined_parameters(parameters, problem.parameters, size)
            new["parameters"] = numbers if exact else numbers.float()
        if mask is not None:
            values = as_mask(mask)
            new["mask"] = values.expand(size, *values.shape) if values.ndim == axes else values
        if not new:
            return batch
        if first is not None:
            new = {name: values.to(first.device) for name, values in new.items()}
        return batch._replace(**new)

    @property
    def names(self) -> tuple[str, ...]:
        """The parts that are there."""
        return tuple(name for name, part in zip(self._fields, self, strict=True) if part is not None)

    @property
    def tensors(self) -> list[Tensor]:
        """The parts that are there, in the order of `names`."""
        return [part for part in self if part is not None]

    def filled(self, tensors: Sequence[Tensor]) -> Batch:
        """A batch of the same parts with other tensors, as `tensors` gave them."""
        return self._replace(**dict(zip(self.names, tensors, strict=True)))

    @property
    def size(self) -> int:
        """The number of samples."""
        return len(self.tensors[0])

    @property
    def device(self) -> torch.device:
        return self.tensors[0].device

    @property
    def seen(self) -> Float[Tensor, "batch frame *grid channel"]:
        """The frames that a sample shows: its context or, for a steady problem, its static fields as one frame."""
        if self.context is not None:
            return self.context
        assert self.static is not None
        return self.static.unsqueeze(1)

    def map(self, function: Callable[[Tensor], Tensor]) -> Batch:
        """The batch with ``function`` of each of its tensors."""
        return Batch(*(None if part is None else function(part) for part in self))

    def to(self, *args: Any, **options: Any) -> Batch:
        """The batch on another device or in another floating-point type, as `torch.Tensor.to`; a mask stays boolean."""
        mask = None if self.mask is None else moved(self.mask, *args, **options)
        return self.map(lambda part: part.to(*args, **options))._replace(mask=mask)

    def rows(self, chosen: slice) -> Batch:
        """Some of the samples."""
        return self.map(lambda part: part[chosen])

    def split(self, size: int) -> Iterator[Batch]:
        """The samples, ``size`` at a time."""
        return (self.rows(slice(first, first + size)) for first in range(0, self.size, size))

    def from_frame(self, first: int, context: Tensor | None) -> Batch:
        """The batch with ``context`` frames of which the first is frame ``first`` of this batch's forcing."""
        forcing = None if self.forcing is None else self.forcing[:, first:]
        return self._replace(context=context, forcing=forcing)

    def until(self, num_frames: int) -> Batch:
        """The batch without the forcing of frames beyond the first ``num_frames``."""
        return self if self.forcing is None else self._replace(forcing=self.forcing[:, :num_frames])

    def frame_dt(self, problem: Problem) -> float:
        """The time between the frames of the first sample: a parameter of it, or the problem's."""
        if self.parameters is None or STEP not in problem.parameters:
            return problem.frame_dt
        return float(self.parameters[0, problem.parameters.index(STEP)])

    def with_parameter(self, problem: Problem, name: str, values: Array | float | int) -> Batch:
        """The batch with other values of one of its parameters; a single number holds for all samples."""
        if name not in problem.parameters:
            raise UserError(
                f"{name!r} is no parameter of {problem.name!r}, which has {', '.join(problem.parameters) or 'none'}"
            )
        if self.parameters is None:
            raise UserError(f"{problem.name!r} needs {describe_part(problem, 'parameters')}; give parameters=")
        columns = dict(zip(problem.parameters, self.parameters.unbind(-1), strict=True))
        changed = joined_parameters({**columns, name: values}, problem.parameters, self.size)
        return self._replace(parameters=changed.to(self.parameters))

    @classmethod
    def cat(cls, batches: Sequence[Batch]) -> Batch:
        """Several batches of the same parts as one."""
        parts = zip(*batches, strict=True)
        return cls(*(None if column[0] is None else torch.cat(column) for column in parts))

    def require(self, problem: Problem, num_steps: int = 1) -> tuple[int, ...]:
        """The shape of the grid; raises where a part is missing, too much or shaped otherwise than ``problem`` says."""
        parts = (*(["context"] if problem.num_context_frames else []), *problem.parts)
        for name in self._fields:
            there = getattr(self, name) is not None
            if there and name not in parts:
                raise UserError(f"{problem.name!r} has no {name}; leave it out")
            if not there and name in parts:
                raise UserError(f"{problem.name!r} needs {describe_part(problem, name)}; give {name}=")
        axes = problem.grid.num_axes
        grid = tuple(f"axis {m}" for m in range(axes))
        if self.context is not None:
            _require_axes(self.context, "frames", ("batch", "frame", *grid, "channel"))
            sizes: tuple[int | str, ...] = ("batch", "frame", *problem.grid.shape, num_channels(problem.state))
            _require_channels(self.context, problem.state, shape_advice(tuple(self.context.shape), sizes))
            if self.context.shape[1] != problem.num_context_frames:
                raise UserError(f"expected {problem.num_context_frames} context frames, got {self.context.shape[1]}")
        if self.static is not None:
            _require_axes(self.static, "static fields", ("batch", *grid, "channel"))
            _require_channels(self.static, problem.static)
        shape = tuple(self.seen.shape[2:-1])
        if self.forcing is not None:
            _require_axes(self.forcing, "forcing", ("batch", "frame", *grid, "channel"))
            _require_channels(self.forcing, problem.forcing)
            needed = problem.num_context_frames + num_steps
            if self.forcing.shape[1] < needed:
                raise UserError(
                    f"forcing must cover {problem.num_context_frames} context and {num_steps} predicted frames; "
                    f"got {self.forcing.shape[1]} frames"
                )
        if self.parameters is not None and tuple(self.parameters.shape[1:]) != (len(problem.parameters),):
            raise UserError(
                f"expected parameters (batch, {len(problem.parameters)}): {', '.join(problem.parameters)}; "
                f"got shape {tuple(self.parameters.shape)}"
            )
        if self.mask is not None:
            _require_axes(self.mask, "a mask", ("batch", *grid))
            if self.mask.dtype != torch.bool:
                raise UserError(f"a mask holds true and false, got {self.mask.dtype}; use Batch.of")
        for name, part in zip(self._fields, self, strict=True):
            if part is None:
                continue
            if not isinstance(part, Tensor):
                raise UserError(f"{name} of a batch must be a tensor, got {type(part).__name__}; use Batch.of")
            if not len(part):
                raise UserError(f"{name} holds no samples: shape {tuple(part.shape)}")
            if len(part) != self.size:
                raise UserError(f"{name} holds {len(part)} samples beside {self.size} of {self.names[0]}")
            start = 2 if name in ("context", "forcing") else 1
            if name != "parameters" and tuple(part.shape[start : start + axes]) != shape:
                raise UserError(
                    f"{name} is on a grid of {tuple(part.shape[start : start + axes])} points beside {shape}"
                )
        return shape


class Window(NamedTuple):
    """Consecutive true frames of some trajectories, and what else is known of them (a batch without context)."""

    frames: Float[Tensor, "batch frame *grid channel"]
    known: Batch = Batch()

    def batch(self, num_context_frames: int) -> Batch:
        """What a surrogate sees of the window: the first frames, none for a steady problem."""
        return self.known._replace(context=self.frames[:, :num_context_frames] if num_context_frames else None)

    def map(self, function: Callable[[Tensor], Tensor]) -> Window:
        """The window with ``function`` of each of its tensors."""
        return Window(function(self.frames), self.known.map(function))

    def to(self, *args: Any, **options: Any) -> Window:
        """The window on another device or in another floating-point type; a mask stays boolean."""
        return self.map(lambda part: moved(part, *args, **options))

    def rows(self, chosen: slice) -> Window:
        """Some of the samples."""
        return self.map(lambda part: part[chosen])

    def every(self, step: int) -> Window:
        """The window on every ``step``-th point along each axis."""
        if step == 1:
            return self
        axes = self.frames.ndim - 3
        points = [slice(None, None, step)] * axes
        known = self.known
        return Window(
            self.frames[:, :, *points].contiguous(),
            known._replace(
                static=None if known.static is None else known.static[:, *points].contiguous(),
                forcing=None if known.forcing is None else known.forcing[:, :, *points].contiguous(),
                mask=None if known.mask is None else known.mask[:, *points].contiguous(),
            ),
        )

    @classmethod
    def cat(cls, windows: Sequence[Self]) -> Window:
        """Several windows of the same length as one."""
        return Window(torch.cat([w.frames for w in windows]), Batch.cat([w.known for w in windows]))


def moved(part: Tensor, *args: Any, **options: Any) -> Tensor:
    """``part.to(…)``, but a mask stays boolean."""
    if part.dtype != torch.bool:
        return part.to(*args, **options)
    places = [value for value in args if not isinstance(value, torch.dtype)]
    places = [value.device if isinstance(value, Tensor) else value for value in places]
    return part.to(*places, **{key: value for key, value in options.items() if key != "dtype"})


def _is_empty(values: Any) -> bool:
    return isinstance(values, Mapping) and not values


def _require_axes(part: Tensor, what: str, axes: tuple[str, ...]) -> None:
    if part.ndim != len(axes):
        raise UserError(f"expected {what} ({', '.join(axes)}), got a tensor of shape {tuple(part.shape)}")


def _require_channels(part: Tensor, fields: Sequence[Field], advice: str = "") -> None:
    if part.shape[-1] != num_channels(fields):
        expected = f"expected {num_channels(fields)} channels: {field_names(fields)}"
        raise UserError(f"{expected}; got {part.shape[-1]}{advice}")
