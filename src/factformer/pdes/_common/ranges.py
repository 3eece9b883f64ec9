"""Parameters that differ between trajectories: a range such as ``200..2000:log`` gives each a value of its own."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor

from factformer.config import Config
from factformer.errors import UserError

if TYPE_CHECKING:
    from factformer.pdes._common.base import PDE

_NUMBER = r"[+-]?(?:\d+(?:\.\d+)?|\.\d+)(?:[eE][+-]?\d+)?"
_RANGE = re.compile(rf"\s*({_NUMBER})\s*\.\.\s*({_NUMBER})\s*(?::\s*(\w+)\s*)?")


@dataclass(frozen=True)
class Range:
    """Values from ``low`` to ``high``, uniform or, with ``log``, uniform in their logarithm.

    ``whole`` numbers include both ends.
    """

    low: float
    high: float
    log: bool = False
    whole: bool = False

    @classmethod
    def parse(cls, name: str, text: str, *, whole: bool) -> Self:
        """``LOW..HIGH`` or ``LOW..HIGH:log``."""
        found = _RANGE.fullmatch(text)
        if found is None or found[3] not in (None, "log"):
            raise UserError(f"{name}={text}: a range is LOW..HIGH or LOW..HIGH:log, such as 200..2000:log")
        low, high, log = float(found[1]), float(found[2]), found[3] == "log"
        if not -math.inf < low < high < math.inf:
            raise UserError(f"{name}={text}: the first number of a range is the smaller one")
        if log and low <= 0:
            raise UserError(f"{name}={text}: a logarithmic range needs numbers above 0")
        if whole and not (low.is_integer() and high.is_integer()):
            raise UserError(f"{name}={text}: {name} is a whole number; give whole numbers")
        return cls(low, high, log, whole)

    def draw(self, seed: int, name: str) -> float:
        """The value of the trajectory with this seed, as float32 keeps it.

        It has a generator of its own, so that the start of the trajectory is the same with a range and without.
        """
        digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)
        share = float(torch.rand((), generator=generator, dtype=torch.float64))
        margin = 0.5 if self.whole else 0.0
        low, high = self.low - margin, self.high + margin
        value = low * (high / low) ** share if self.log else low + (high - low) * share
        if self.whole:
            value = math.floor(value + 0.5)
        return float(torch.tensor(min(max(value, self.low), self.high), dtype=torch.float32))

    def __str__(self) -> str:
        low, high = (str(int(end)) if end.is_integer() else repr(end) for end in (self.low, self.high))
        return f"{low}..{high}" + (":log" if self.log else "")


@dataclass(frozen=True)
class Settings:
    """The parameters of a dataset: one value for all trajectories, or a range to draw one for each from.

    In ``shared`` the lower end of a range stands for its values.
    """

    shared: Config
    ranges: Mapping[str, Range]

    @classmethod
    def parse(cls, equation: PDE, given: Mapping[str, Any]) -> Self:
        """``given`` values, some of them texts of ranges."""
        texts = {name: value for name, value in given.items() if isinstance(value, str) and ".." in value}
        fields = equation.parameters.model_fields
        ranges = {}
        for name in fields:  # their order, whatever that of the arguments
            if name in texts:
                require_varying(equation, name)
                ranges[name] = Range.parse(name, texts[name], whole=fields[name].annotation is int)
        low, high = (
            equation.parameters.parse({**given, **{name: getattr(r, end) for name, r in ranges.items()}})
            for end in ("low", "high")
        )
        grid = equation.grid_of((16,) * equation.dimensions[0], low)
        deciding = [
            name
            for name in ranges
            if equation.grid_of(grid.shape, low.model_copy(update={name: getattr(high, name)})) != grid
        ]
        if deciding:
            raise UserError(
                f"{equation.name}: {', '.join(deciding)} would decide the grid, which all trajectories of a dataset "
                "share; give one value"
            )
        return cls(low, ranges)

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON, ranges as their texts; `parse` reads it back."""
        return {**self.shared.model_dump(mode="json"), **{name: str(r) for name, r in self.ranges.items()}}

    def values(self, names: Sequence[str], seeds: Sequence[int]) -> Tensor:
        """The parameters called ``names`` of the trajectories with these seeds, ``(batch, parameter)``."""
        values = torch.empty(len(seeds), len(names), dtype=torch.float64)
        for place, name in enumerate(names):
            own = self.ranges.get(name)
            drawn = [getattr(self.shared, name) if own is None else own.draw(seed, name) for seed in seeds]
            values[:, place] = torch.tensor(drawn, dtype=torch.float64)
        return values

    def of(self, names: Sequence[str], values: Tensor) -> Config:
        """The parameters of a batch whose ``values (batch, parameter)`` are known, as `PDE.frames` takes them."""
        varied = {name: values[:, place].double() for place, name in enumerate(names) if name in self.ranges}
        return self.shared.model_copy(update=varied)


def require_varying(equation: PDE, name: str) -> None:
    """Raise where a parameter cannot differ between trajectories."""
    if name not in equation.varying:
        known = f"; one for each may be {', '.join(equation.varying)}" if equation.varying else ""
        raise UserError(f"{equation.name}: {name} takes one value for all trajectories{known}")


def per_sample(value: Any, num_axes: int, device: torch.device | str | None = None) -> Any:
    """A number as it is; one per trajectory so that it broadcasts against tensors of ``num_axes``."""
    return value.to(device).reshape(-1, *[1] * (num_axes - 1)) if isinstance(value, Tensor) else value
