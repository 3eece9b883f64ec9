"""Runs with other frame intervals or lengths, compared at the physical times that all of them predict.

Times are counted from the last frame that a run has seen. An evaluation knows the error of each frame, so these can be
averaged over other times; what else is averaged over all frames of a run is left out of a comparison.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from factformer.errors import UserError
from factformer.evaluation.results import Amount, Evaluation, FieldErrors, Floor
from factformer.report.runs import ReportRun

LARGEST_RATIO = 1000
"""Of frame intervals that are taken for multiples of one another."""


@dataclass(frozen=True)
class Times:
    """``count`` times, ``interval`` apart, the first one ``interval`` after the last known frame."""

    interval: float
    count: int

    @property
    def last(self) -> float:
        return self.count * self.interval

    def of(self, frames: Any, frame_dt: float) -> Any:
        """Those of the frames, ``frame_dt`` apart, that are at these times; of a list or an array."""
        every = round(self.interval / frame_dt)
        return frames[every - 1 :: every][: self.count]

    def mean(self, errors: Sequence[Amount], frame_dt: float) -> Amount:
        """The mean of the errors of frames at these times; None where one of them is not known."""
        known = [error for error in self.of(errors, frame_dt) if error is not None]
        return statistics.fmean(known) if len(known) == self.count else None

    def describe(self) -> str:
        """What a table of errors at these times has to say."""
        return (
            f"Frames of the runs differ in their times. Errors are means over the {self.count} times that all of them "
            f"predict, {self.interval:g} apart and up to {self.last:g} after the last known frame; the last of these "
            "counts as the last frame. Other averages, and the time of roll-outs that go further, are left out."
        )


def common_times(rollouts: Iterable[tuple[float, int]]) -> Times | None:
    """The times that all roll-outs predict, of each its frame interval and number of frames; None if there are none."""
    known = list(rollouts)
    shortest = min(interval for interval, _ in known)
    ratios = [Fraction(interval / shortest).limit_denominator(LARGEST_RATIO) for interval, _ in known]
    together = Fraction(math.lcm(*(r.numerator for r in ratios)), math.gcd(*(r.denominator for r in ratios)))
    interval = shortest * float(together)
    count = math.floor(min(each * number for each, number in known) / interval + 1e-6)
    return Times(interval, count) if count else None


def differ_in_times(evaluations: Iterable[Evaluation]) -> bool:
    """Whether evaluations are of frames at other times, so that their averages cannot be compared."""
    return len({(one.frame_dt, one.num_frames) for one in evaluations}) > 1


def evaluation_at(evaluation: Evaluation, times: Times) -> Evaluation:
    """The evaluation of the frames at these times alone, as far as it is known."""
    fields = {name: _errors_at(errors, evaluation.frame_dt, times) for name, errors in evaluation.fields.items()}
    is_as_long = math.isclose(evaluation.frame_dt * evaluation.num_frames, times.last, rel_tol=1e-6)
    return replace(
        evaluation,
        fields=fields,
        persistence={name: errors.persistence.relative_l2 for name, errors in fields.items()},
        seconds_per_sequence=evaluation.seconds_per_sequence if is_as_long else None,
        seconds_per_batch=evaluation.seconds_per_batch if is_as_long else None,
        num_frames=times.count,
        frame_dt=times.interval,
        metrics={},
    )


def _errors_at(errors: FieldErrors, frame_dt: float, times: Times) -> FieldErrors:
    frames, floor = errors.relative_l2_per_frame, errors.persistence.relative_l2_per_frame
    kept, kept_floor = times.of(frames, frame_dt), times.of(floor, frame_dt)
    return FieldErrors(
        relative_l2=times.mean(frames, frame_dt),
        relative_l2_final=kept[-1],
        relative_l2_per_frame=kept,
        standard_error=None,
        standard_error_final=None,
        vrmse=None,
        spectrum_error=None,
        correlation_time=None,
        persistence=Floor(times.mean(floor, frame_dt), kept_floor[-1], kept_floor),
        spectrum=None,
    )


def runs_at_common_times(runs: Sequence[ReportRun]) -> tuple[Sequence[ReportRun], Times | None]:
    """Runs whose numbers and roll-outs are of common times, and these; the runs themselves where all frames are."""
    evaluations = [run.evaluation for run in runs]
    if not differ_in_times(evaluations):
        return runs, None
    times = common_times((one.frame_dt, one.num_frames) for one in evaluations)
    if times is None:
        intervals = ", ".join(f"{one.frame_dt:g}" for one in evaluations)
        raise UserError(f"the runs, with frames {intervals} apart, predict no time in common: report them one by one")
    return [_run_at(run, times) for run in runs], times


def _run_at(run: ReportRun, times: Times) -> ReportRun:
    step = run.evaluation.frame_dt
    rollouts = [
        replace(one, truth=times.of(one.truth, step), prediction=times.of(one.prediction, step)) for one in run.rollouts
    ]
    return replace(run, evaluation=evaluation_at(run.evaluation, times), rollouts=rollouts)
