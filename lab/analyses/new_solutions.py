"""New solutions of a bundle's problem, to test the bundle on."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from factformer.data.dataset import Dataset
from factformer.data.generate.run import generate
from factformer.data.store import open_dataset
from factformer.problem import Problem


@contextmanager
def new_solutions(
    problem: Problem,
    number: int,
    seed: int,
    settings: Sequence[str] = (),
    *,
    size: int | None = None,
    simulation_resolution: int | None = None,
    device: str = "cpu",
) -> Iterator[Dataset]:
    """A test set by the solver of the training data, with ``size`` points per axis instead of the problem's.

    ``simulation_resolution`` is that of the solver, by default the preset's.
    """
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
            simulation_resolution=simulation_resolution,
            settings=list(settings),
            progress=True,
        )
        yield open_dataset(folder, "test")
