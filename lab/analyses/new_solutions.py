"""Solutions of a bundle's problem that are made anew, for benchmarks that ask how it does on them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from factformer.data.generate.run import generate
from factformer.data.store import Dataset, open_dataset
from factformer.problem import Problem


@contextmanager
def new_solutions(
    problem: Problem,
    number: int,
    seed: int,
    settings: Sequence[str] = (),
    *,
    size: int | None = None,
    device: str = "cpu",
) -> Iterator[Dataset]:
    """A test set by the solver of the training data, with ``size`` points per axis instead of the problem's."""
    with tempfile.TemporaryDirectory() as folder:
        generate(
            problem.name,
            folder,
            preset="paper",
            splits=["test"],
            trajectories=number,
            seed=seed,
            device=device,
            resolution=size or problem.grid.shape[0],
            settings=list(settings),
            progress=True,
        )
        yield open_dataset(folder, "test")
