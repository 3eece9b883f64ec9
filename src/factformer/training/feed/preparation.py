"""What happens to the windows of an update before they are trained on: augmentation and noise.

Where the grid is cut, windows come as parts of frames. Augmentation alone moves points over the cuts: with it they come
as whole frames, and are cut here.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from factformer.batch import Window
from factformer.data.dataset import Dataset
from factformer.errors import UserError
from factformer.parallel.part import GridPart, cut_window
from factformer.problem import Problem
from factformer.training.experiment.definition import Experiment
from factformer.training.feed.augmentation import Augmentation
from factformer.training.feed.noise import ContextNoise


class Preparation:
    """What the experiment asks for; ``part`` is what this process holds of a grid that is cut."""

    def __init__(
        self, experiment: Experiment, dataset: Dataset, problem: Problem, part: GridPart | None = None
    ) -> None:
        config = experiment.training
        self.augment = Augmentation(experiment.problem, dataset, config.seed) if config.augment else None
        self.cut_here = part if needs_whole_frames(experiment) else None
        self.noise = None
        if config.noise:
            if not problem.num_context_frames:
                raise UserError("training.noise is for context frames, and a steady problem has none; set it to 0")
            self.noise = ContextNoise(config.noise, problem.num_context_frames, dataset.normalizer(), config.seed)
            if self.cut_here is None:
                self.noise.part = part

    def __call__(self, window: Window, update: int, slots: Sequence[int]) -> Window:
        """``slots`` are the places of the windows in the batch of all processes."""
        if self.augment is not None:
            window = self.augment(window, update, slots)
        if self.noise is not None:
            window = self.noise(window, update, slots)
        if self.cut_here is not None:
            window = cut_window(window, self.cut_here).map(Tensor.clone)  # so that whole frames are freed
        return window


def needs_whole_frames(experiment: Experiment) -> bool:
    """Whether windows are prepared on whole frames even where the grid is cut."""
    return experiment.training.augment
