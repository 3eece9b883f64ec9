"""Studies: many runs, one table. The paper's tables and figures are studies, with a status for each cell."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from factformer.config import unknown_name
from factformer.studies.cells import SCALES, Training, Work
from factformer.studies.pictures import write_pictures
from factformer.studies.result import StudyResult
from factformer.studies.runner import Ended, Runner
from factformer.studies.scales import check_assignments
from factformer.studies.study_folder import StudyFolder
from factformer.studies.targets import find_target, targets

__all__ = ["StudyResult", "reproduce_target", "targets"]

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
) -> StudyResult:
    """Fill the cells of a target and write ``out/<target>-<scale>/``.

    ``budget_minutes`` limits the whole call. At reduced scale the training runs share four fifths of it. At every
    scale nothing is begun after it, and a later call resumes. Runs, datasets and measurements in ``out`` are shared
    between targets and never made twice. ``report`` is called with a line for each piece of work; ``live`` shows the
    progress of data and training on standard error.
    """
    if scale not in SCALES:
        raise unknown_name("scale", scale, SCALES)
    began = time.monotonic()
    target = find_target(name, scale)
    minutes = None
    if budget_minutes and target.num_runs and scale == "reduced":
        minutes = round(SHARE_FOR_TRAINING * budget_minutes / target.num_runs, 4)
    check_assignments([work for work in target.works if isinstance(work, Training)], scale, assignments)
    seconds = None if budget_minutes is None else 60 * budget_minutes
    runner = Runner(seconds=seconds, device=device, say=report)
    folder = StudyFolder(out, scale, runner, minutes_per_run=minutes, assignments=assignments, live=live)
    ended: list[tuple[Work, Ended]] = [(work, folder.do(work)) for work in target.works]
    study = StudyResult(
        target,
        scale,
        tuple(next(one for work, one in ended if work == cell.work) for cell in target.cells),
        Path(out) / f"{name}-{scale}",
        time.monotonic() - began,
        str(runner.device),
    )
    study.write()
    write_pictures(study)
    return study
