"""The file of a solver benchmark, read again: what a report shows of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter

from factformer._support.documents import read_typed

Text = Annotated[str, Field(max_length=1000, strict=True)]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


@dataclass(frozen=True)
class Row:
    """The surrogate in one precision, or the solver on one grid from one start; the reference has no error."""

    method: Text
    resolution: Annotated[int, Field(ge=1)]
    precision: Text
    start: Text | None
    seconds_per_simulated_second: Positive
    error: Amount | None

    @property
    def is_surrogate(self) -> bool:
        return self.method.startswith("surrogate")


@dataclass(frozen=True)
class AtEqualError:
    """How many times as fast as the solver at the surrogate's error; ``bound`` where it was not measured that far."""

    factor: Positive
    bound: Text


@dataclass(frozen=True)
class SolverBenchmark:
    """A benchmark as its file holds it, as far as it is shown."""

    rows: Annotated[list[Row], Field(min_length=1, max_length=1000)]
    speedup_over_reference: Positive
    speedup_at_equal_error: dict[Text, dict[Text, AtEqualError]]
    break_even_solutions: dict[Text, dict[Text, Amount | None]]
    batch_size: Annotated[int, Field(ge=1)]
    hardware: Text
    effort: dict[Text, Amount | None] = field(default_factory=dict)

    @classmethod
    def of(cls, values: Any) -> SolverBenchmark:
        """What `benchmark_solver` gave."""
        return _READER.validate_python(values)

    def sentences(self) -> list[str]:
        """The bill in words: one line for each precision, and what went into the surrogate."""
        surrogates = [row for row in self.rows if row.is_surrogate]
        reference = next(row for row in self.rows if row.start is None and not row.is_surrogate)
        lines = []
        for row in surrogates:
            factor = reference.seconds_per_simulated_second / row.seconds_per_simulated_second
            parts = [f"{factor:.3g} times as fast as the solver that made the data"]
            for start, found in self.speedup_at_equal_error.get(row.precision, {}).items():
                bound = f"{found.bound} " if found.bound else ""
                parts.append(f"{bound}{found.factor:.3g} times as fast as the solver of its error from the {start}")
            lines.append(f"surrogate in {row.precision}: {', '.join(parts)}")
            lines += self._paid_back(row.precision)
        return lines

    def _paid_back(self, precision: str) -> Sequence[str]:
        total = self.effort.get("total_seconds")
        if total is None:
            return ["break-even: not known, as the bundle or the data do not say what they took"]
        known = {k: v for k, v in self.break_even_solutions.get(precision, {}).items() if v is not None}
        if not known:
            return ["break-even: never, the surrogate is slower than the solver here"]
        counts = ", ".join(f"{value:.3g} solutions against the {_opponent(name)}" for name, value in known.items())
        return [f"break-even: {total:.3g} s of data and training are paid back after {counts}"]


def _opponent(name: str) -> str:
    return name if name == "reference" else f"solver from the {name}"


def read_solver_benchmark(path: Path) -> SolverBenchmark:
    """The benchmark in a file; one line says what is wrong with another file."""
    return read_typed(path, _READER, "a solver benchmark", "factformer benchmark solver")


_READER = TypeAdapter(SolverBenchmark)
