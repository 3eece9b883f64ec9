"""Solving a batch whose trajectories may have parameters of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from torch import Tensor

from factformer.batch import Batch
from factformer.config import Config
from factformer.errors import UserError
from factformer.grid import Grid
from factformer.pdes._common.base import PDE, State


def solve(
    equation: PDE,
    initial: State,
    num_frames: int,
    frame_dt: float,
    parameters: Config,
    known: Batch | None = None,
    grid: Grid | None = None,
) -> Iterator[State]:
    """`PDE.frames`, where a varying parameter may be a tensor ``(batch,)``.

    All trajectories are solved at once where the solver takes such tensors, otherwise those that share all parameters.
    ``known`` holds what the equation is given beside its start. ``grid`` is what the states are on, where they are
    parts of fields that are cut over processes. A grid that is too coarse for the parameters is refused.
    """
    shape = initial.shape[1:-1] if grid is None else grid.whole.shape
    if why := equation.why_not_solved(shape, parameters):
        raise UserError(f"{equation.name}: {why}")
    frames: Callable[..., Iterator[State]] = equation.frames
    if grid is not None:
        frames = partial(frames, grid=grid)
    varied = {name: value for name in equation.varying if isinstance(value := getattr(parameters, name), Tensor)}
    if not varied or (equation.vectorized and (equation.exact_in_batch or initial.is_cuda)):
        yield from frames(initial, num_frames, frame_dt, parameters, *_given(known))
        return
    groups: dict[tuple[float, ...], list[int]] = {}
    for row, values in enumerate(zip(*(value.tolist() for value in varied.values()), strict=True)):
        groups.setdefault(values, []).append(row)
    solutions = []
    for values, rows in groups.items():
        shared = parameters.model_dump(exclude=set(varied))
        own = equation.parameters.parse({**shared, **dict(zip(varied, values, strict=True))})
        given = _given(known and Batch(*(part if part is None else part[rows] for part in known)))
        solutions.append((rows, frames(initial[rows], num_frames, frame_dt, own, *given)))
    for _ in range(num_frames):
        result: Tensor | None = None
        for rows, solution in solutions:
            frame = next(solution)
            if result is None:
                result = frame.new_empty((len(initial), *frame.shape[1:]))
            result[rows] = frame
        assert result is not None
        yield result


def _given(known: Batch | None) -> tuple[Batch, ...]:
    return () if known is None else (known,)
