"""Per-channel mean and standard deviation of fields, of their frame-to-frame increments, and of parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import torch
from jaxtyping import Float
from torch import Tensor, nn

from factformer.config import unknown_name
from factformer.errors import UserError
from factformer.metrics import LEAST
from factformer.problem import STEP, Problem

WEAKEST = 0.1
"""Of a field's deviation, what the truth of a training window counts as at least: a weaker one must not outweigh the
other windows by more."""
FAR = 3.0
"""Deviations that a mean lies from zero at most for errors to be relative to the whole field."""


KINDS = ("context", "static", "forcing", "parameters", "state")
"""What has a mean and a deviation: what a surrogate sees, part by part, and the state that it predicts."""
TRAINED = ("parameters_log", "parameters_min", "parameters_max")
"""What is known of parameters beside that: whether their logarithm is taken, and the range that was trained on."""
UNBOUNDED = 3e38
"""The end of a range that nobody has said."""
ROUNDING = 1e-6
"""Of a range's ends, what a value may lie beyond them: numbers are rounded to float32 and written in few digits."""
DECADE = 10.0
"""A positive parameter whose largest value is more than so many times its smallest is taken on a log scale."""
FIRST_EDITION = {"state_mean": "output_mean", "state_std": "output_std"}
"""Its names of statistics; ``input`` is that of what a surrogate saw (`first_edition_names`)."""


class Normalizer(nn.Module):
    """Statistics of every channel and parameter, kept as buffers so that they travel with the weights.

    ``context`` and ``state`` are the same fields: a constant field has deviation 1 where it is seen, so that one can
    divide by it, and 0 where it is predicted. ``increment_std`` is that of the difference between consecutive frames.
    Mean and deviation of a parameter are those of its logarithm where ``parameters_log`` is 1; ``parameters_min`` and
    ``parameters_max`` are the smallest and largest value of the training data. Parts that a problem does not have are
    None.
    """

    context_mean: Tensor | None
    context_std: Tensor | None
    static_mean: Tensor | None
    static_std: Tensor | None
    forcing_mean: Tensor | None
    forcing_std: Tensor | None
    parameters_mean: Tensor | None
    parameters_std: Tensor | None
    parameters_log: Tensor | None
    parameters_min: Tensor | None
    parameters_max: Tensor | None
    state_mean: Tensor
    state_std: Tensor
    increment_std: Tensor

    def __init__(
        self,
        *,
        state_mean: Sequence[float],
        state_std: Sequence[float],
        increment_std: Sequence[float],
        **known: Sequence[float],
    ) -> None:
        super().__init__()
        given = {**known, "state_mean": state_mean, "state_std": state_std, "increment_std": increment_std}
        names = [f"{kind}_{moment}" for kind in KINDS for moment in ("mean", "std")] + ["increment_std", *TRAINED]
        for name in given:
            if name not in names:
                raise unknown_name("statistic", name, names)
        if "parameters_mean" in given:  # where nothing else is said: values as they are, of any size
            unsaid = zip(TRAINED, (0.0, -UNBOUNDED, UNBOUNDED), strict=True)
            given = {name: [value] * len(given["parameters_mean"]) for name, value in unsaid} | given
        for name in names:
            values = given.get(name)
            filled = None if values is None else torch.tensor([float(v) for v in values], dtype=torch.float32)
            self.register_buffer(name, filled)

    @classmethod
    def identity(cls, problem: Problem) -> Self:
        """Zero mean and unit deviation: for values that need no scaling."""
        sizes = channel_counts(problem)
        mean = {f"{kind}_mean": [0.0] * size for kind, size in sizes.items()}
        std = {f"{kind}_std": [1.0] * size for kind, size in sizes.items()}
        return cls(**mean, **std, increment_std=[1.0] * sizes["state"])

    def require(self, problem: Problem) -> None:
        """Raise where there are not exactly the statistics that ``problem`` needs."""
        sizes = channel_counts(problem)
        for kind in (*KINDS, "increment"):
            for moment in ("mean", "std") if kind != "increment" else ("std",):
                name, wanted = f"{kind}_{moment}", sizes["state"] if kind == "increment" else sizes.get(kind, 0)
                buffer = getattr(self, name)
                found = 0 if buffer is None else len(buffer)
                if found != wanted:
                    raise UserError(f"the normaliser's {name} has {found} channels, the problem {wanted}")
        for name in TRAINED:
            buffer = getattr(self, name)
            if (0 if buffer is None else len(buffer)) != len(problem.parameters):
                raise UserError(f"the normaliser's {name} is not of the {len(problem.parameters)} parameters it needs")

    def check(self, problem: Problem) -> None:
        """Raise where these cannot be statistics of data of ``problem``.

        A constant field has deviation 0 where it is predicted, in all its components, and 1 where it is seen
        (`factformer.data.statistics.normalizer_from`); every other deviation is positive.
        """
        self.require(problem)
        for name, values in self.named_buffers():
            if not bool(values.isfinite().all()):
                raise UserError(f"the normaliser's {name} is not finite")
            if name.endswith("_std") and bool((values < 0).any()):
                raise UserError(f"the normaliser's {name} is negative")
            seen = name.endswith("_std") and name not in ("state_std", "increment_std")
            if seen and bool((values == 0).any()):
                raise UserError(f"the normaliser's {name} is zero, and nothing can be divided by it")
        constant = self.state_std.eq(0)
        for field, channels in problem.state_slices.items():
            some = constant[channels]
            if bool(some.any()) and not bool(some.all()):
                raise UserError(
                    f"the normaliser's state_std is zero for some components of {field!r} and not for others"
                )
            context = self.context_std
            if bool(some.any()) and context is not None and bool((context[channels] != 1).any()):
                raise UserError(
                    f"the normaliser's state_std of {field!r} is zero, but its context_std says that it varies"
                )
        if bool(((self.increment_std == 0) & ~constant).any()):
            raise UserError("the normaliser's increment_std is zero for a field that varies")
        self._check_parameters(problem)

    def _check_parameters(self, problem: Problem) -> None:
        log, low, high = self.parameters_log, self.parameters_min, self.parameters_max
        if log is None or low is None or high is None:
            return
        for index, name in enumerate(problem.parameters):
            if float(log[index]) not in (0.0, 1.0):
                raise UserError(f"the normaliser's parameters_log of {name!r} is {float(log[index])}, neither 0 nor 1")
            if low[index] > high[index]:
                raise UserError(f"the normaliser's range of {name!r} begins at {low[index]:g}, above its end")
            if log[index] and low[index] <= 0:
                raise UserError(f"the normaliser takes the logarithm of {name!r}, which begins at {low[index]:g}")

    def denormalize(self, values: Tensor) -> Tensor:
        """Predicted values back to physical units."""
        return values * self.state_std + self.state_mean

    def normalize_parameters(self, values: Float[Tensor, "batch parameter"]) -> Float[Tensor, "batch parameter"]:
        """Parameters, or their logarithms, with mean 0 and deviation 1 over the training data."""
        log, mean, std = self.parameters_log, self.parameters_mean, self.parameters_std
        assert log is not None and mean is not None and std is not None
        logarithms = values.clamp(min=torch.finfo(values.dtype).tiny).log()
        return (torch.where(log > 0, logarithms, values) - mean) / std

    def normalize_forcing(self, values: Tensor) -> Tensor:
        """Forcing with mean 0 and deviation 1 over the training data."""
        assert self.forcing_mean is not None and self.forcing_std is not None
        return (values - self.forcing_mean) / self.forcing_std

    def require_positive(self, values: Float[Tensor, "batch parameter"], problem: Problem) -> None:
        """Raise where a parameter is not positive that must be: one on a log scale, or a time step."""
        assert self.parameters_log is not None and self.parameters_min is not None and self.parameters_max is not None
        positive = self.parameters_log > 0
        if STEP in problem.parameters:
            places = torch.arange(len(problem.parameters), device=values.device)
            positive = positive | (places == problem.parameters.index(STEP))
        bad = ((values <= 0) & positive).any(0)
        if bool(bad.any()):  # the only question to the device, unless something is wrong
            index = int(bad.nonzero()[0])
            found, low, high = (float(v[index]) for v in (values.amin(0), self.parameters_min, self.parameters_max))
            trained = "" if low < -UNBOUNDED / 2 else f": the surrogate was trained on {low:g} to {high:g}"
            raise UserError(f"the parameter {problem.parameters[index]!r} must be positive, got {found:g}{trained}")

    def outside_range(self, values: Float[Tensor, "batch parameter"], problem: Problem) -> str:
        """Which of ``values`` lie outside the range of the training data, in one line; empty if none does."""
        assert self.parameters_min is not None and self.parameters_max is not None
        found = []
        for index, name in enumerate(problem.parameters):
            low, high = float(self.parameters_min[index]), float(self.parameters_max[index])
            slack = ROUNDING * max(abs(low), abs(high))
            column = values[:, index].double()
            outside = column[column.isfinite() & ((column < low - slack) | (column > high + slack))]
            if len(outside):
                ends = sorted({float(outside.min()), float(outside.max())})
                found.append(f"{name}={' to '.join(f'{end:g}' for end in ends)} outside {low:g} to {high:g}")
        return ", ".join(found)

    @property
    def deviation(self) -> Tensor:
        """Of the state's channels; of a constant one its size or, where it is zero, 1."""
        level = self.state_mean.abs()
        return torch.where(self.state_std > 0, self.state_std, torch.where(level > 0, level, 1.0))

    def loss_scale(self) -> tuple[Tensor, Tensor | None]:
        """Deviation and offset of the state's channels for the loss (`factformer.metrics.grouped_relative_l2`).

        Of a temperature near 300 that varies by one, errors relative to 300 would teach nothing beside other fields.
        A mean that is `FAR` from zero is taken off, and what is left counts as one deviation at least; a field near
        zero counts as `WEAKEST` of one at least.
        """
        deviation, far = self.deviation / LEAST, self.state_mean.abs() > FAR * self.state_std
        if not bool(far.any()):
            return WEAKEST * deviation, None
        zero = torch.zeros_like(self.state_mean)
        return torch.where(far, deviation, WEAKEST * deviation), torch.where(far, self.state_mean, zero)

    def first_edition_names(self) -> dict[str, str]:
        """The names of this edition with those of the first: ``input`` was the context, or what is static."""
        seen = "static" if self.context_mean is None else "context"
        return {**FIRST_EDITION, f"{seen}_mean": "input_mean", f"{seen}_std": "input_std"}

    def to_dict(self) -> dict[str, list[float]]:
        return {name: buffer.tolist() for name, buffer in self.named_buffers()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], problem: Problem) -> Self:
        """Read what `to_dict` gave for ``problem``, in this edition or the first."""
        if "output_mean" in values:
            names = {old: new for new, old in cls.identity(problem).first_edition_names().items()}
            values = {names.get(name, name): numbers for name, numbers in values.items()}
        return cls(**values)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        migrate_state(state_dict, self, prefix)
        super()._load_from_state_dict(state_dict, prefix, *args)


def migrate_state(tensors: dict[str, Any], normalizer: Normalizer, prefix: str = "") -> None:
    """Give the statistics of a first edition's checkpoint or bundle their names of today, in place."""
    for new, old in normalizer.first_edition_names().items():
        if prefix + old in tensors:
            tensors[prefix + new] = tensors.pop(prefix + old)


def channel_counts(problem: Problem) -> dict[str, int]:
    """How many channels, or parameters, each kind of statistics has for ``problem``; kinds without any are left out."""
    state = problem.num_state_channels
    counts = {
        "context": state if problem.num_context_frames else 0,
        "static": problem.num_static_channels,
        "forcing": problem.num_forcing_channels,
        "parameters": len(problem.parameters),
        "state": state,
    }
    return {kind: count for kind, count in counts.items() if count}
