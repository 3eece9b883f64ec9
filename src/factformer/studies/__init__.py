"""`reproduce`: the paper's tables and figures, end to end, with an honest status for each cell."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from factformer.config import unknown_name
from factformer.studies.cells import SCALES, Training, Work
from factformer.studies.pictures import write_pictures
from factformer.studies.result import Outcome
from factformer.studies.scales import check_assignments
from factformer.studies.targets import find_target, targets
from factformer.studies.work import Done, Workshop

__all__ = ["Outcome", "reproduce_target", "targets"]

SHARE_FOR_TRAINING = 0.8
"""Part of a budget that goes to training; the rest is for data, compilation and evaluation."""


def reproduce_target(
    name: str,
    *,
    scale: str = "reduced",
    out: str | Path = "reproduction",
    budget_minutes: float | None = None,
    device: str | None = None,
    assignments: Sequence[str] = (),
    report: Callable[[str], None] = lambda message: None,
    live: bool = False,
) -> Outcome:
    """Fill the cells of a target and write ``out/<target>-<scale>/``.

    ``budget_minutes`` limits the whole call: at reduced scale its training runs share four fifths of it, and
    at every scale nothing is begun after it, so that a later call goes on. Runs, datasets and measurements in
    ``out`` are shared between targets and never made twice. ``report`` hears of each piece of work, ``live``
    shows the progress of data and training on standard error.
    """
    if scale not in SCALES:
        raise unknown_name("scale", scale, SCALES)
    began = time.monotonic()
    target = find_target(name, scale)
    minutes = None
    if budget_minutes and target.trainings:
        minutes = round(SHARE_FOR_TRAINING * budget_minutes / len(target.trainings), 4)
    check_assignments([work for work in target.works if isinstance(work, Training)], scale, assignments)
    workshop = Workshop(
        out,
        scale,
        minutes_per_run=minutes,
        deadline=None if budget_minutes is None else began + 60 * budget_minutes,
        device=device,
        assignments=assignments,
        say=report,
        live=live,
    )
    finished: list[tuple[Work, Done]] = [(work, workshop.do(work)) for work in target.works]
    outcome = Outcome(
        target,
        scale,
        tuple(next(done for work, done in finished if work == cell.work) for cell in target.cells),
        Path(out) / f"{name}-{scale}",
        time.monotonic() - began,
        str(workshop.device),
    )
    outcome.write()
    write_pictures(outcome)
    return outcome
