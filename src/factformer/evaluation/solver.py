"""Surrogate against solver: simulated time per second of computing, and the accuracy at which that holds.

The reference is the solver at the resolution that made the data. A fair rival of the surrogate is not that
but the same solver on coarser grids, started from the same frame: it also trades accuracy for speed. It can
be run where a stored frame holds the solver's whole state.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from factformer import metrics
from factformer._support.documents import finite
from factformer.batch import Batch
from factformer.data.store import StoredDataset
from factformer.errors import UserError
from factformer.evaluation.accuracy import check_compatible, evaluate
from factformer.evaluation.provenance import provenance
from factformer.evaluation.timing import inference_cost, median_seconds, resolve_device
from factformer.pdes import PDE, Settings, find_pde, solve
from factformer.problem import Problem
from factformer.surrogate import Surrogate


def benchmark_solver(
    surrogate: Surrogate,
    dataset: StoredDataset,
    *,
    resolutions: Sequence[int] = (),
    batch_size: int | None = None,
    num_starts: int = 1,
    device: torch.device | str | None = None,
    precision: str = "32-true",
) -> dict[str, Any]:
    """One row for the surrogate and each solver: ``simulated_seconds_per_second`` and ``relative_l2`` per field group.

    ``resolutions`` are the grids of the coarse solver, by default the stored one and its half. Every row
    advances ``batch_size`` trajectories at once over the surrogate's horizon, on the same device. A steady
    problem has no time; its rows count ``solutions_per_second``.
    """
    began = time.perf_counter()
    target = resolve_device(device)
    problem = surrogate.problem
    evolves = problem.num_context_frames > 0
    made_by = dataset.provenance
    if "pde" not in made_by:
        raise UserError("the dataset does not say which solver made it: benchmark on data of `factformer generate`")
    equation = find_pde(str(made_by["pde"]))
    parameters: Any = Settings.parse(equation, made_by.get("parameters", {}))
    check_compatible(surrogate, dataset, problem.horizon)
    size = min(batch_size or dataset.num_trajectories, dataset.num_trajectories)
    if names := dataset.problem.parameters:
        parameters = parameters.of(names, dataset.read(range(size), part="parameters"))
    else:
        parameters = parameters.shared
    scores = evaluate(
        surrogate,
        dataset,
        num_starts=num_starts,
        batch_size=size,
        device=target,
        precision=precision,
        timing=False,
    )
    batch = dataset.batch(range(size), 0, problem.horizon, num_context_frames=problem.num_context_frames).to(target)
    cost = inference_cost(surrogate.eval(), batch, problem.horizon, precision=precision)
    errors = {name: values.relative_l2 for name, values in scores.fields.items()}
    span = size * (problem.horizon * problem.frame_dt if evolves else 1.0)
    rate = "simulated_seconds_per_second" if evolves else "solutions_per_second"

    def row(name: str, resolution: int, seconds: float, relative_l2: Any) -> dict[str, Any]:
        return {
            "contender": name,
            "resolution": resolution,
            "seconds": seconds,
            rate: span / seconds,
            "relative_l2": relative_l2,
        }

    shape = dataset.problem.grid.shape
    stored = next((size for size in shape if equation.shape(size) == shape), shape[0])  # the resolution it stands for
    reference = int(made_by.get("simulation_resolution") or stored)
    rows = [row(f"surrogate ({surrogate.config.name})", stored, cost.seconds, errors)]
    start, known = _reference_states(equation, reference, size, problem, target)

    def reference_solve() -> None:
        for _ in _frames(equation, start, problem.horizon, problem.frame_dt, parameters, known):
            pass

    reference_solve()
    rows.append(row("solver (reference)", reference, median_seconds(reference_solve, target, repeats=3), None))
    for resolution in resolutions or (stored, stored // 2):
        try:
            coarse = _coarse_row(equation, parameters, surrogate, dataset, size, resolution, target)
        except UserError:  # too coarse for the solver
            if resolutions:
                raise
            continue
        if coarse is not None:
            rows.append(row("solver (coarse)", resolution, *coarse))
    return {
        "benchmark": "solver",
        "problem": problem.name,
        "batch_size": size,
        "num_frames": problem.horizon,
        "precision": precision,
        "rows": finite(rows),
        "speedup_over_reference": rows[1]["seconds"] / rows[0]["seconds"],
        **provenance(seed=surrogate.provenance.get("seed"), seconds=time.perf_counter() - began, device=target),
    }


def _reference_states(
    equation: PDE, resolution: int, size: int, problem: Problem, device: torch.device
) -> tuple[Tensor, Batch | None]:
    """Random starts, and what else the equation is given."""
    generators = [torch.Generator().manual_seed(index) for index in range(size)]
    grid = equation.problem(resolution).grid
    known = None
    if equation.conditions:
        known = equation.sample_known(
            grid, generators, problem.horizon + 1, problem.frame_dt, dtype=torch.float32, device=device
        )
    return equation.sample_initial(grid, generators, dtype=torch.float32, device=device), known


def _frames(
    equation: PDE, start: Tensor, num_frames: int, frame_dt: float, parameters: Any, known: Batch | None
) -> Iterator[Tensor]:
    """``start`` and the ``num_frames`` frames after it; of a steady problem its solution alone."""
    evolves = not equation.steady
    yield from solve(equation, start, num_frames + 1 if evolves else 1, frame_dt, parameters, known)


def _known(equation: PDE, dataset: StoredDataset, size: int, frames: slice, shape: tuple[int, ...]) -> Batch | None:
    """What the stored trajectories give the solver beside their start, on a grid of ``shape``."""
    if not equation.conditions:
        return None
    known = dataset.known(range(size), frames)._replace(parameters=None)
    if shape == dataset.problem.grid.shape:
        return known
    fields = {
        "static": known.static if known.static is None else known.static[:, None],
        "forcing": known.forcing,
        "mask": known.mask if known.mask is None else known.mask[:, None, ..., None].float(),
    }
    coarse = {name: value if value is None else equation.downsample(value, shape) for name, value in fields.items()}
    static, mask = coarse["static"], coarse["mask"]
    return Batch(
        static=static if static is None else static[:, 0],
        forcing=coarse["forcing"],
        mask=mask if mask is None else mask[:, 0, ..., 0] > 0.5,
    )


def _coarse_row(
    equation: PDE,
    parameters: Any,
    surrogate: Surrogate,
    dataset: StoredDataset,
    size: int,
    resolution: int,
    device: torch.device,
) -> tuple[float, dict[str, float]] | None:
    """Seconds and errors of the solver at ``resolution`` from the last known frame; None where it cannot."""
    problem = dataset.problem
    shape = equation.problem(resolution).grid.shape
    context = surrogate.problem.num_context_frames
    if not context:
        start = dataset.read(range(size), part="static").to(device)
        truth = dataset.read(range(size)).to(device)
    else:
        span = slice(context - 1, context + surrogate.problem.horizon)
        window = dataset.read(range(size), span).to(device)
        seen = _known(equation, dataset, size, span, problem.grid.shape)
        candidate = _state(equation, window[:, 0], surrogate, parameters, seen and seen.to(device))
        if candidate is None:
            return None
        start, truth = candidate, window[:, 1:]
    known = _known(equation, dataset, size, span, problem.grid.shape) if context else None
    if shape != problem.grid.shape:
        try:
            start = equation.downsample(start[:, None], shape)[:, 0]
            truth = equation.downsample(truth, shape)
            known = _known(equation, dataset, size, span, shape) if context else None
        except ValueError:  # stored on the solver's own grid, or not a divisor of it
            return None
    horizon, frame_dt = surrogate.problem.horizon, surrogate.problem.frame_dt

    known = known and known.to(device)

    def coarse_solve() -> Tensor:
        frames = list(_frames(equation, start, horizon, frame_dt, parameters, known))
        return torch.stack(frames[1:] if context else frames, 1)

    prediction = coarse_solve()
    mask = None if known is None else known.mask
    errors = metrics.grouped_relative_l2(prediction, truth, problem.state_slices, mask=mask)
    return median_seconds(coarse_solve, device, repeats=3), {name: float(value) for name, value in errors.items()}


def _state(equation: PDE, frame: Tensor, surrogate: Surrogate, parameters: Any, known: Batch | None) -> Tensor | None:
    """The solver's state that a frame shows, if starting from it gives that frame back; else None."""
    for channels in surrogate.problem.state_slices.values():
        if channels.stop - channels.start != equation.initial_channels(surrogate.problem.grid.num_axes):
            continue
        state = frame[..., channels].contiguous()
        first = next(iter(solve(equation, state, 1, surrogate.problem.frame_dt, parameters, known)))
        mask = None if known is None else known.mask
        if float(metrics.relative_l2(first[:, None], frame[:, None], mask=mask).max()) < 1e-3:
            return state
    return None
