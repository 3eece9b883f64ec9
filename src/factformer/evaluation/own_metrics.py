"""A user's own metrics: functions of predicted and true frames, reported beside ours under their names."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from factformer import metrics as ours
from factformer.errors import UserError
from factformer.evaluation.results import OwnMetric
from factformer.problem import Problem

Metric = Callable[[Tensor, Tensor, Problem], Tensor]
"""``f(prediction, target, problem)`` gives one number per sample, from frames ``(batch, frame, *grid, channel)`` in
physical units; ``problem`` holds their grid and fields."""


def check_metrics(functions: Mapping[str, Metric]) -> dict[str, Metric]:
    """``functions`` themselves, if they are functions by names that ours do not have."""
    for name, function in functions.items():
        if not isinstance(name, str) or not name or not callable(function):
            raise UserError(f'metrics are functions by name, such as {{"largest": f}}; got {name!r}: {function!r}')
        if hasattr(ours, name):
            raise UserError(f"metric {name!r} is a name of ours: give your own another one")
    return dict(functions)


class OwnMetrics:
    """Values of the metrics, gathered window by window, for the prediction and for what costs nothing."""

    def __init__(self, functions: Mapping[str, Metric], problem: Problem) -> None:
        self.functions, self.problem = check_metrics(functions), problem
        self.values: dict[str, list[Tensor]] = {name: [] for name in functions}
        self.floors: dict[str, list[Tensor]] = {name: [] for name in functions}

    def add(self, prediction: Tensor, truth: Tensor, floor: Tensor) -> None:
        for name in self.functions:
            self.values[name].append(self._measure(name, prediction, truth))
            self.floors[name].append(self._measure(name, floor, truth))

    def _measure(self, name: str, prediction: Tensor, truth: Tensor) -> Tensor:
        value = self.functions[name](prediction, truth, self.problem)
        if not isinstance(value, Tensor) or value.shape != truth.shape[:1]:
            got = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            raise UserError(f"metric {name!r} must give one number per sample, shape ({len(truth)},); got {got}")
        return value.detach().double().cpu()

    def summary(self, standard_error: Callable[[Tensor], float]) -> dict[str, OwnMetric]:
        """By name: the mean over windows, its standard error, and the mean of the floor."""
        result = {}
        for name, parts in self.values.items():
            values, floor = torch.cat(parts), torch.cat(self.floors[name])
            result[name] = OwnMetric(float(values.mean()), standard_error(values), float(floor.mean()))
        return result
