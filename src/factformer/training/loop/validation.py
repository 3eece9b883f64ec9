"""The error on held-out windows while training goes on."""

from __future__ import annotations

import math

import torch

from factformer import metrics
from factformer.batch import Window
from factformer.data.agreement import require_finite
from factformer.data.dataset import Dataset
from factformer.data.windows import frames_from, span
from factformer.errors import NonFinite, UserError
from factformer.training.experiment.config import TrainingConfig
from factformer.training.loop.objective import Objective


class Validation:
    """A fixed batch of held-out windows, spread over trajectories and time, rolled out to the horizon.

    Their frames lie ``stride`` apart, as those that the surrogate predicts.
    """

    def __init__(self, dataset: Dataset, num_windows: int, device: torch.device, stride: int = 1) -> None:
        problem = dataset.problem.with_stride(stride)
        self.problem = problem
        num_context = problem.num_context_frames
        self.num_frames = min(problem.horizon, -(-dataset.num_frames // stride) - num_context)
        if self.num_frames < 1:
            raise UserError(
                f"validation trajectories of {dataset.num_frames} frames leave none to predict after {num_context} of "
                "context; give longer ones or none"
            )
        length = num_context + self.num_frames
        last_start = dataset.num_frames - span(length, stride)
        count = min(num_windows, dataset.num_trajectories * (last_start + 1))
        windows = []
        for trajectory, start in spread_windows(count, dataset.num_trajectories, last_start):
            windows.append(dataset.window([trajectory], frames_from(start, length, stride)))
            parts = (windows[-1].frames, *windows[-1].known.tensors)
            for part in parts:
                require_finite(part, dataset.split, [trajectory])
        window = Window.cat(windows).to(device)
        self.batch = window.batch(num_context)
        self.target = window.frames[:, num_context:]

    def line(self, objective: Objective) -> dict[str, float | None]:
        """What the log says: the sum over field groups, which decides the best checkpoint, and each error by name."""
        errors = self.errors(objective)
        fields = [errors[name] for name in objective.slices]
        total = None if None in fields else sum(e for e in fields if e is not None)
        return {"validation": total, **{f"validation_{name}": error for name, error in errors.items()}}

    def errors(self, objective: Objective) -> dict[str, float | None]:
        """Relative L2 of each field group over the joint window as in the loss, averaged over the windows.

        A user's own metrics come after them. None where a roll-out left the numbers, as that of a barely trained model
        may.
        """
        try:
            # One window at a time: validation must fit wherever training fits.
            predicted = [objective.roll_out(batch, self.num_frames) for batch in self.batch.split(1)]
        except NonFinite:
            return dict.fromkeys([*self.problem.state_slices, *objective.own.metrics])
        prediction = torch.cat(predicted)
        errors = metrics.grouped_relative_l2(
            prediction,
            self.target,
            self.problem.state_slices,
            objective.deviation,
            objective.offset,
            self.batch.mask,
            objective.surrogate.part,
        )
        values = {name: float(error) for name, error in errors.items()}
        values |= objective.own.measured(prediction, self.target, self.problem)
        return {name: value if math.isfinite(value) else None for name, value in values.items()}


def open_validation(
    held_out: Dataset | None, config: TrainingConfig, device: torch.device, stride: int
) -> Validation | None:
    """The validation of a run, if there are ``held_out`` trajectories."""
    if held_out is None:
        if config.ship == "best":
            raise UserError("training.ship=best is told by held-out trajectories, and there are none; use last")
        return None
    return Validation(held_out, config.validation_windows, device, stride)


def spread_windows(count: int, num_trajectories: int, last_start: int) -> list[tuple[int, int]]:
    """``count`` different pairs of trajectory and first frame, from the first of both to the last."""
    if count <= num_trajectories:
        return [(i * num_trajectories // count, i * last_start // max(count - 1, 1)) for i in range(count)]
    laps = -(-count // num_trajectories)
    return [(i % num_trajectories, i // num_trajectories * last_start // (laps - 1)) for i in range(count)]
