"""Surrogate against solver: seconds and accuracy of both, on the same flows, at the same times, on the same device.

The reference is the solver as it made the data. A fair rival of the surrogate is not that but the same solver on
coarser grids and with longer steps (`factformer.evaluation.solver.rival`): it also trades accuracy for speed. It starts
from the stored frame, which is all that the surrogate knows, and from the full state, which only its own data have.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from factformer import engine, metrics
from factformer._support.documents import finite
from factformer.data.store import StoredDataset
from factformer.errors import UserError
from factformer.evaluation.accuracy import check_compatible, check_setting, predicted_batches
from factformer.evaluation.provenance import provenance
from factformer.evaluation.solver.bill import break_even, speedups
from factformer.evaluation.solver.rival import SEARCH, STARTS, Measured, Rival, Start, mean_error
from factformer.evaluation.timing import PRECISIONS, inference_cost, resolve_device
from factformer.pdes import find_pde
from factformer.problem import STEP
from factformer.surrogate import Surrogate

Report = Callable[[dict[str, Any]], None]
SHARES = (0.5, 0.75, 1.0, 1.5, 2.0, 3.0)
"""Of the stored resolution, the solver's grids where none are named; the reference's own is the last."""
NAMES: dict[Start, str] = {"stored frame": "solver (coarse)", "full state": "solver (fine start)"}


def benchmark_solver(
    surrogate: Surrogate,
    dataset: StoredDataset,
    *,
    resolutions: Sequence[int] = (),
    batch_size: int | None = None,
    device: torch.device | str | None = None,
    precision: str | None = None,
    report: Report | None = None,
) -> dict[str, Any]:
    """A row for the surrogate in each precision, for the reference, and for the solver on each grid from each start.

    Every row advances the same ``batch_size`` trajectories at once over the surrogate's horizon: ``seconds``,
    ``simulated_seconds_per_second`` and its inverse, ``relative_l2`` per field group and their mean, ``error``.
    ``resolutions`` are the grids of the solver, by default from half the stored one to that of the data. A steady
    problem has no time; its rows count ``solutions_per_second``. ``precision`` is by default both, one row each.
    """
    began = time.perf_counter()
    target, problem = resolve_device(device), surrogate.problem
    if "pde" not in dataset.provenance:
        raise UserError("the dataset does not say which solver made it: benchmark on data of `factformer generate`")
    check_compatible(surrogate, dataset, problem.horizon)
    stride = check_setting(problem, dataset.problem)
    if STEP in problem.parameters:  # it is told the interval of the data
        problem = replace(problem, frame_dt=stride * dataset.problem.frame_dt)
    size = min(batch_size or dataset.num_trajectories, dataset.num_trajectories)
    rival = Rival(find_pde(str(dataset.provenance["pde"])), dataset, problem, stride, size, target)
    span = size * problem.time_span
    rows: list[dict[str, Any]] = []

    def add(name: str, resolution: int, start: Start | None, precision: str, measured: Measured) -> None:
        rate = "simulated_seconds_per_second" if problem.num_context_frames else "solutions_per_second"
        errors = measured.errors or None
        row = {
            "method": name,
            "resolution": resolution,
            "precision": precision,
            "start": start,
            "dt": measured.dt,
            "seconds": measured.seconds,
            rate: span / measured.seconds,
            "seconds_per_simulated_second": measured.seconds / span,
            "relative_l2": errors,
            "error": None if errors is None else mean_error(errors),
        }
        rows.append(finite(row))
        if report is not None:
            report(rows[-1])

    engine.attach(surrogate)
    surrogate = surrogate.to(target).eval()
    for form in (precision,) if precision else PRECISIONS:
        add(f"surrogate ({surrogate.config.name})", rival.stored, None, form, _surrogate_row(surrogate, rival, form))
    reference = Measured(rival.reference_seconds(), {}, None)
    add("solver (reference)", rival.reference, None, "32-true", reference)
    chosen = resolutions or default_resolutions(rival.stored, rival.reference)
    for start in STARTS:
        for resolution in chosen:
            try:
                measured = rival.measure(resolution, start)
            except UserError:  # too coarse for the solver
                if resolutions:
                    raise
                continue
            if measured is not None:
                add(NAMES[start], resolution, start, "32-true", measured)
    first, at_equal_error = rows[0], speedups(rows, STARTS)
    invested = _invested(surrogate, dataset, reference.seconds / span)
    per_solution = {row["precision"]: row["seconds"] / size for row in rows if row["method"].startswith("surrogate")}
    return {
        "benchmark": "solver",
        "problem": problem.name,
        "batch_size": size,
        "num_frames": problem.horizon,
        "frame_dt": problem.frame_dt,
        "stride": stride,
        "precision": first["precision"],
        "rows": rows,
        "starts": [start for start in STARTS if rival.state(start) is not None],
        "time_step_search": SEARCH,
        "speedup_over_reference": reference.seconds / first["seconds"],
        "speedup_at_equal_error": finite(at_equal_error),
        "effort": invested,
        "break_even_solutions": {
            form: {
                "reference": break_even(invested["total_seconds"], reference.seconds / size, seconds),
                **{
                    start: break_even(invested["total_seconds"], found["solver_seconds"] / size, seconds)
                    for start, found in at_equal_error.get(form, {}).items()
                },
            }
            for form, seconds in per_solution.items()
        },
        **provenance(seed=surrogate.provenance.get("seed"), seconds=time.perf_counter() - began, device=target),
    }


def default_resolutions(stored: int, reference: int) -> list[int]:
    """Grids of the solver from half the stored one to the reference's."""
    sizes = {2 * round(share * stored / 2) for share in SHARES if share != 1.0} | {stored, reference}
    return sorted(size for size in sizes if 4 <= size <= reference)


def _surrogate_row(surrogate: Surrogate, rival: Rival, precision: str) -> Measured:
    """The surrogate on the same flows as the solver."""
    problem, chosen = surrogate.problem, range(rival.size)
    (predicted,) = predicted_batches(
        surrogate, rival.dataset, problem.horizon, [0], rival.size, rival.device, precision, chosen
    )
    mask = predicted.batch.mask
    errors = metrics.grouped_relative_l2(predicted.prediction, predicted.truth, problem.state_slices, mask=mask)
    cost = inference_cost(surrogate, predicted.batch, problem.horizon, precision=precision)
    return Measured(cost.seconds, {name: float(value) for name, value in errors.items()}, None)


def _invested(surrogate: Surrogate, dataset: StoredDataset, seconds_per_simulated_second: float) -> dict[str, Any]:
    """Seconds of data generation, at the speed measured here, and of the training as the bundle tells them.

    The bundle says how much time was simulated for it. An older one does not: then the data beside the evaluated ones
    count if they are those that it was trained on.
    """
    training, simulated = (surrogate.provenance.get(key) for key in ("training_seconds", "simulated_seconds"))
    trained_on = dataset.training_split()
    if simulated is None and trained_on is not None:
        same = surrogate.provenance.get("dataset") in (None, trained_on.fingerprint)
        simulated = trained_on.simulated_seconds if same else None
    generation = simulated * seconds_per_simulated_second if isinstance(simulated, (int, float)) else None
    known = [part for part in (generation, training) if isinstance(part, (int, float))]
    return {
        "generation_seconds": generation,
        "training_seconds": training,
        "total_seconds": sum(known) if len(known) == 2 else None,
    }
