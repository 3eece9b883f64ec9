"""Figures of what an equation declares beside its fields (`PDE.reductions`): integrals over axes, numbers over time."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from matplotlib.figure import Figure

from factformer import catalog
from factformer.grid import Grid
from factformer.pdes import PDE, find_pde
from factformer.report.figures import comparison, numbers_over_time
from factformer.report.planes import Array, Component, Plane
from factformer.report.runs import ReportRun
from factformer.report.samples import Rollout


def reduction_figures(runs: Sequence[ReportRun], names: Sequence[str]) -> dict[str, Figure]:
    """By heading: fields on fewer axes for each run, and numbers over time of all runs, of the first roll-out each.

    Nothing for problems that are not of the catalog, and for equations that declare none.
    """
    fields: dict[str, Figure] = {}
    curves: dict[str, dict[str, Array]] = {}
    truths: dict[str, Array] = {}
    frame_dt = None
    for run, name in zip(runs, names, strict=True):
        equation = _equation_of(run)
        if equation is None or run.grid is None or not run.rollouts:
            continue
        frame_dt = run.evaluation.frame_dt
        for heading, rollout in reduced(equation, run.rollouts[0], run.grid).items():
            plane = plane_of(rollout)
            if plane is None:
                truths.setdefault(heading, rollout.truth.ravel())
                curves.setdefault(heading, {})[name] = rollout.prediction.ravel()
                continue
            title = _capitalized(heading) + (f", {name}" if len(runs) > 1 else "")
            part = Component(heading, heading, 0)
            fields[title] = comparison(rollout, part, plane=plane, frame_dt=frame_dt, grid=run.grid)
    numbers = {
        _capitalized(heading): numbers_over_time(lines, truths[heading], label=heading, frame_dt=frame_dt)
        for heading, lines in curves.items()
    }
    return fields | numbers


def reduced(equation: PDE, rollout: Rollout, grid: Grid) -> dict[str, Rollout]:
    """Truth and prediction of each reduction, ``(frame, *grid, 1)``; one point along axes it does not depend on."""
    truth, prediction = (
        equation.reductions(torch.from_numpy(values)[None], grid) for values in (rollout.truth, rollout.prediction)
    )
    return {name: Rollout(truth[name][0].numpy(), prediction[name][0].numpy()) for name in truth}


def plane_of(rollout: Rollout) -> Plane | None:
    """The plane or line to draw: the first two axes with more than one point; none for a number."""
    shape = rollout.truth.shape[1:-1]
    shown = tuple(m for m, size in enumerate(shape) if size > 1)[:2]
    cuts = tuple((m, size // 2) for m, size in enumerate(shape) if m not in shown)
    return Plane(shown, cuts) if shown else None


def _equation_of(run: ReportRun) -> PDE | None:
    known = run.problem is not None and run.problem.name in catalog.names("pdes")
    return find_pde(run.problem.name) if known and run.problem is not None else None


def _capitalized(text: str) -> str:
    return text[:1].upper() + text[1:]
