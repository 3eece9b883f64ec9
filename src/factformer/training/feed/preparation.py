"""What happens to the windows of an update before they are trained on: augmentation, noise, the part of a domain."""

from __future__ import annotations

from collections.abc import Sequence

from factformer.batch import Window
from factformer.data.dataset import Dataset
from factformer.errors import UserError
from factformer.parallel.part import GridPart, cut_window
from factformer.problem import Problem
from factformer.training.experiment.definition import Experiment
from factformer.training.feed.augmentation import Augmentation
from factformer.training.feed.noise import ContextNoise


class Preparation:
    """What the experiment asks for, in this order; ``part`` is what this process holds of a domain that is cut."""

    def __init__(
        self, experiment: Experiment, dataset: Dataset, problem: Problem, part: GridPart | None = None
    ) -> None:
        config = experiment.training
        self.augment = Augmentation(experiment.problem, dataset, config.seed) if config.augment else None
        self.noise = None
        if config.noise:
            if not problem.num_context_frames:
                raise UserError("training.noise is for context frames, and a steady problem has none; set it to 0")
            self.noise = ContextNoise(config.noise, problem.num_context_frames, dataset.normalizer(), config.seed)
        self.part = part

    def __call__(self, window: Window, update: int, slots: Sequence[int]) -> Window:
        """``slots`` are the places of the windows in the batch of all processes."""
        if self.augment is not None:
            window = self.augment(window, update, slots)
        if self.noise is not None:
            window = self.noise(window, update, slots)
        if self.part is not None:  # after what moves points and draws numbers for all of them
            window = cut_window(window, self.part)
        return window
