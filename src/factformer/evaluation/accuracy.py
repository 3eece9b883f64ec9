"""How good a surrogate is: errors of roll-outs over every trajectory of a split and several start frames.

Per field group the relative L2 error (joint window, per frame, last frame), VRMSE, the error of the energy
spectrum and the time until the correlation is lost, beside the floor that costs nothing: persistence, the
last context frame repeated. A steady problem has none; its floor is the mean of the training outputs.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from factformer import engine, metrics
from factformer.arrays import field_names
from factformer.batch import Batch
from factformer.data.agreement import describe_geometry, describe_parameters, frame_stride, require_finite
from factformer.data.dataset import Dataset, compute_normalizer
from factformer.data.windows import frames_from, span
from factformer.errors import UserError
from factformer.evaluation.own_metrics import Metric, OwnMetrics
from factformer.evaluation.provenance import hardware
from factformer.evaluation.results import Evaluation, Trajectories
from factformer.evaluation.scores import Scores, clustered_standard_error
from factformer.evaluation.timing import inference_cost, resolve_device, roll_out
from factformer.problem import FIELD_GROUPS, STEP, Problem
from factformer.surrogate import Surrogate
from factformer.training.feed.steps import as_told

DEFAULT_STARTS = 4
NUM_LOOKS = 8
"""Frames of a trajectory that tell how much its fields vary."""
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Predicted:
    """Windows of some trajectories that start at one frame, with what the surrogate made of them."""

    trajectories: list[int]
    start: int
    batch: Batch
    truth: Float[Tensor, "batch frame *grid channel"]
    prediction: Float[Tensor, "batch frame *grid channel"]


def evaluate(
    surrogate: Surrogate,
    dataset: Dataset,
    *,
    num_frames: int | None = None,
    num_starts: int = DEFAULT_STARTS,
    batch_size: int | None = None,
    device: torch.device | str | None = None,
    precision: str = "32-true",
    timing: bool = True,
    progress: Progress | None = None,
    metrics: Mapping[str, Metric] | None = None,
) -> Evaluation:
    """Errors, floor, parameters and cost of ``surrogate`` on all trajectories of ``dataset``.

    Where the data have several frames in one interval of the surrogate, it is scored at those that it predicts: with
    a ``stride`` of 2 at frames 2, 4, … after its context.

    Roll-outs of ``num_frames`` (the problem's horizon) begin at up to ``num_starts`` frames spread evenly
    over each trajectory. ``standard_error`` is that of the mean over trajectories, since windows of one
    trajectory are not independent; with a single trajectory it is over its windows. ``seconds_per_batch`` is
    the time of one roll-out of ``batch_size`` sequences (the paper's inference time; by default its batch
    sizes, 10 in two dimensions and 4 in three), ``seconds_per_sequence`` that divided by the batch size.
    ``metrics`` are functions of one's own, ``f(prediction, target, problem)``, that give one number per sample; the
    result holds their means under ``metrics``.
    """
    target = resolve_device(device)
    num_frames = num_frames or surrogate.problem.horizon
    size = batch_size or paper_batch_size(surrogate.problem.grid.num_axes)
    dataset = as_told(dataset, surrogate.problem)
    check_compatible(surrogate, dataset, num_frames)
    starts = start_frames(surrogate, dataset, num_frames, num_starts)
    stride = check_setting(surrogate.problem, dataset.problem)
    frame_dt = surrogate.problem.frame_dt
    if STEP in surrogate.problem.parameters:
        frame_dt = stride * dataset.problem.frame_dt
    if dataset.problem.parameters:
        used = dataset.read(slice(None), slice(None, None, stride), "parameters")
        surrogate.warn_outside_range(Batch(parameters=used))
    was_training = surrogate.training
    engine.attach(surrogate)
    surrogate = surrogate.to(target).eval()

    deviation = _deviation(dataset).to(target)
    even = all(dataset.problem.grid.is_even(m) for m in range(dataset.problem.grid.num_axes))
    scores = {name: Scores(deviation[s], even) for name, s in surrogate.problem.state_slices.items()}
    own = OwnMetrics(metrics or {}, surrogate.problem.with_grid(dataset.problem.grid))
    owners: list[int] = []
    total = dataset.num_trajectories * len(starts)
    began = time.perf_counter()
    for predicted in predicted_batches(surrogate, dataset, num_frames, starts, size, target, precision):
        owners.extend(predicted.trajectories)
        floor = _floor(surrogate, predicted)
        for name, channels in surrogate.problem.state_slices.items():
            truth, prediction = predicted.truth[..., channels], predicted.prediction[..., channels]
            scores[name].add(prediction, truth, floor[..., channels], frame_dt, predicted.batch.mask)
        own.add(predicted.prediction, predicted.truth, floor)
        if progress is not None:
            progress(len(owners), total)
    groups = torch.tensor(owners)
    fields = {name: score.summary(groups) for name, score in scores.items()}
    result = Evaluation(
        fields=fields,
        persistence={name: errors.persistence.relative_l2 for name, errors in fields.items()},
        floor="last context frame" if surrogate.problem.num_context_frames else "training mean",
        parameters=surrogate.num_parameters,
        seconds_per_sequence=None,
        seconds_per_batch=None,
        peak_memory_mb=None,
        batch_size=size,
        num_windows=len(owners),
        num_trajectories=dataset.num_trajectories,
        num_diverged=int(max(score.num_diverged() for score in scores.values())),
        num_frames=num_frames,
        frame_dt=frame_dt,
        stride=stride,
        problem=surrogate.problem.name,
        model=surrogate.config.name,
        grid=list(dataset.problem.grid.shape),
        split=dataset.split,
        other_parameters=other_parameters(surrogate, dataset.provenance),
        dataset_fingerprint=dataset.fingerprint,
        precision=precision,
        hardware=hardware(target),
        evaluation_seconds=time.perf_counter() - began,
        metrics=own.summary(lambda values: clustered_standard_error(values, groups)),
        trajectories=_trajectories(dataset, {name: score.of_trajectories(groups) for name, score in scores.items()}),
    )
    if timing:
        count = surrogate.problem.num_context_frames
        one = dataset.batch([0], starts[0], num_frames, num_context_frames=count, stride=stride).to(target)
        batch = one.map(lambda part: part.repeat(size, *[1] * (part.ndim - 1)))
        cost = inference_cost(surrogate, batch, num_frames, precision=precision)
        result = replace(
            result,
            seconds_per_batch=cost.seconds,
            seconds_per_sequence=cost.seconds / size,
            peak_memory_mb=cost.peak_memory_mb,
        )
    surrogate.train(was_training)
    return result


def predicted_batches(
    surrogate: Surrogate,
    dataset: Dataset,
    num_frames: int,
    starts: Sequence[int],
    batch_size: int,
    device: torch.device,
    precision: str = "32-true",
    trajectories: Sequence[int] | None = None,
) -> Iterator[Predicted]:
    """Roll-outs of all windows, a batch at a time; only that batch is in memory."""
    dataset = as_told(dataset, surrogate.problem)
    chosen = list(range(dataset.num_trajectories)) if trajectories is None else list(trajectories)
    num_context = surrogate.problem.num_context_frames
    stride = check_setting(surrogate.problem, dataset.problem)
    for start in starts:
        for first in range(0, len(chosen), batch_size):
            members = chosen[first : first + batch_size]
            window = dataset.window(members, frames_from(start, num_context + num_frames, stride))
            for values in (window.frames, *window.known.tensors):
                require_finite(values, dataset.split, members, "leave it out or evaluate on another split")
            window = window.to(device)
            batch, truth = window.batch(num_context), window.frames[:, num_context:]
            prediction = roll_out(surrogate, batch, num_frames, precision=precision)
            yield Predicted(members, start, batch, truth, prediction.to(truth.dtype))


def _trajectories(dataset: Dataset, errors: dict[str, list[float | None]]) -> Trajectories | None:
    """Errors beside the parameters of each trajectory; none where the problem has no parameters."""
    names = dataset.problem.parameters
    if not names:
        return None
    columns = dataset.read(slice(None), part="parameters").T.tolist()
    return Trajectories(dict(zip(names, columns, strict=True)), errors)


def _floor(surrogate: Surrogate, predicted: Predicted) -> Tensor:
    """What costs nothing: the last context frame repeated or, where there is none, the mean of the training data."""
    context = predicted.batch.context
    known = surrogate.normalizer.state_mean if context is None else context[:, -1:]
    return metrics.within(known.to(predicted.truth.device).expand_as(predicted.truth), predicted.batch.mask)


def start_frames(surrogate: Surrogate, dataset: Dataset, num_frames: int, num_starts: int) -> list[int]:
    """Up to ``num_starts`` first frames, spread evenly from the first possible window to the last."""
    if num_starts < 1:
        raise UserError(f"the number of start frames must be at least 1, got {num_starts}")
    stride = check_setting(surrogate.problem, dataset.problem)
    last = dataset.num_frames - span(surrogate.problem.num_context_frames + num_frames, stride)
    if num_starts == 1 or last == 0:
        return [0]
    count = min(num_starts, last + 1)
    return sorted({round(last * i / (count - 1)) for i in range(count)})


def check_compatible(surrogate: Surrogate, dataset: Dataset, num_frames: int) -> None:
    """Raise `UserError` when the dataset is not of the surrogate's problem; another resolution is allowed."""
    mine, theirs = surrogate.problem, as_told(dataset, surrogate.problem).problem
    if dataset.num_trajectories < 1:
        raise UserError(f"split {dataset.split!r} holds no trajectories; generate it or choose another split")
    for group in FIELD_GROUPS:
        ours, found = getattr(mine, group), getattr(theirs, group)
        if ours != found:
            word = "" if group == "state" else f"{group} "
            raise UserError(
                f"the surrogate's {word}fields {field_names(ours) or 'none'} are not the dataset's "
                f"{field_names(found) or 'none'}: evaluate on data of the problem it was trained on"
            )
    if (mine.parameters, mine.masked) != (theirs.parameters, theirs.masked):
        raise UserError(
            f"the surrogate knows the parts {', '.join((*mine.parts, *mine.parameters)) or 'none'} beside its fields, "
            f"the dataset {', '.join((*theirs.parts, *theirs.parameters)) or 'none'}: evaluate on data of its problem"
        )
    stride = check_setting(mine, theirs)
    needed = span(mine.num_context_frames + num_frames, stride)
    mine.require_frames(num_frames, "asked for")
    if dataset.num_frames < needed:
        apart = "" if stride == 1 else f", {stride} frames apart,"
        raise UserError(
            f"trajectories of split {dataset.split!r} hold {dataset.num_frames} frames, but "
            f"{mine.num_context_frames} context and {num_frames} predicted ones{apart} are needed: ask for fewer"
        )


def check_setting(mine: Problem, theirs: Problem) -> int:
    """How many frames of a dataset one frame of the surrogate is.

    Raises where the dataset has other axes, another box or boundary, or an interval that is no whole part of its. A
    surrogate for several time steps takes the interval of the data then.
    """
    if mine.grid.num_axes != theirs.grid.num_axes or mine.grid.periodic != theirs.grid.periodic:
        raise UserError(
            f"the surrogate's grid has periodic axes {mine.grid.periodic} and the dataset's "
            f"{theirs.grid.periodic}: only the resolution may differ"
        )
    geometry = describe_geometry(mine.grid, theirs.grid)
    if not geometry and mine.boundary != theirs.boundary:
        geometry = f"boundary {mine.boundary!r} expected, {theirs.boundary!r} found"
    if geometry:
        raise UserError(f"the dataset is not of the surrogate's problem: {geometry}; only the resolution may differ")
    if not mine.num_context_frames:
        return 1
    stride = frame_stride(mine.frame_dt, theirs.frame_dt)
    if not stride and STEP in mine.parameters:
        return 1
    if not stride:
        raise UserError(
            f"the surrogate advances {mine.frame_dt:g} per frame and the dataset {theirs.frame_dt:g}: "
            "take data with the same frame interval, or a whole part of it"
        )
    return stride


def other_parameters(surrogate: Surrogate, made_with: Mapping[str, Any]) -> str:
    """In which parameters data differ from those it was trained on, by their provenance; empty if in none known.

    Such data may be what somebody wants to know about, so this is said and not refused. The surrogate's own parameters
    do not count: it is told their values, and those outside its range are said by `Surrogate.warn_outside_range`.
    """
    trained = surrogate.provenance.get("data_parameters", {})
    own = surrogate.problem.parameters
    fixed = {name: value for name, value in trained.items() if name not in own}
    return describe_parameters(fixed, made_with.get("parameters", {}))


def paper_batch_size(num_axes: int) -> int:
    """The batch sizes at which the paper gives inference times."""
    return 4 if num_axes >= 3 else 10


def _deviation(dataset: Dataset) -> Tensor:
    """How much the channels vary, for truths that are nearly zero: by the data, whoever predicts them.

    Where nobody wrote it down, it is that of some frames of each trajectory: a foreign training split takes long to
    read, and for a bound any number of that size will do.
    """
    try:
        known = dataset.known_normalizer()
    except UserError:  # a split without the training split that it belongs to
        known = None
    if known is None:
        known = compute_normalizer(dataset, slice(None, None, math.ceil(dataset.num_frames / NUM_LOOKS)))
    return known.deviation
