"""What a protocol file offers: which window of frames a training update sees and the loss on it.

The file ``protocols/<name>.py`` defines ``class Protocol(BaseProtocol)``. A protocol knows nothing of the
model: it drives any surrogate through `factformer.rollout.rollout`, the only roll-out there is.

Training time is measured as ``progress`` from 0 (first update) to 1 (end), in updates or in seconds, so that
curriculum and pushforward stretch with the length of training.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from factformer import metrics
from factformer.batch import Window
from factformer.config import Config
from factformer.problem import Problem

if TYPE_CHECKING:
    from factformer.surrogate import Surrogate

Frames = Float[Tensor, "batch frame *grid channel"]
Plan = dict[str, int]
"""What the protocol does at one update, as whole numbers that are logged with it."""


class ProtocolConfig(Config):
    """How frames are predicted in training; each protocol reads the keys that concern it."""

    name: str = "latent_marching"
    marching_steps: int = Field(default=4, ge=1)
    """Frames per call of the model once the curriculum is over (``latent_marching``)."""
    curriculum: float = Field(default=0.06, ge=0, le=1)
    """Part of training over which the marching steps grow from 1 to ``marching_steps``; 0 starts with all."""
    pushforward: int = Field(default=1, ge=0)
    """Gradient-free calls before the one that is trained on; 0 turns pushforward off."""
    pushforward_from: float = Field(default=0.06, ge=0, le=1)
    """Part of training after which pushforward begins."""
    pushforward_every: int = Field(default=3, ge=1)
    """Push forward at every m-th update; the others predict from true frames."""
    calls: int = Field(default=1, ge=1)
    """Calls in a row that are trained on, with gradients through all of them (``latent_marching``)."""
    calls_from: float = Field(default=0.0, ge=0, le=1)
    """Part of training after which there is more than one of them."""
    coarse: int = Field(default=1, ge=1)
    """Begin on every s-th point along each axis, where an update costs a fraction; 1 trains on all of them. For models
    that are the same on both grids, such as factformer and factformer_plus; dilated_resnet is not."""
    coarse_until: float = Field(default=0.7, ge=0, le=1)
    """Part of training after which all points take part."""
    unroll: int = Field(default=2, ge=1)
    """Calls of one frame each that are rolled out with gradients through all (``autoregressive``)."""


class BaseProtocol(ABC):
    """How one batch of windows becomes a loss."""

    def __init__(self, config: ProtocolConfig, problem: Problem) -> None:
        self.config = config
        self.problem = problem
        problem.grid.every(config.coarse)  # raises where that leaves no grid

    @property
    @abstractmethod
    def steps_per_call(self) -> int:
        """Frames that the trained surrogate predicts in one call."""

    @property
    @abstractmethod
    def num_target_frames(self) -> int:
        """True frames after the context that the longest update needs; shapes stay fixed over training."""

    @property
    def window_length(self) -> int:
        """Frames of a training window."""
        return self.problem.num_context_frames + self.num_target_frames

    @abstractmethod
    def plan(self, update: int, progress: float) -> Plan:
        """What to do at ``update`` (counted from 1), ``progress`` of training being over when it begins."""

    def whole_plan(self, update: int, progress: float) -> Plan:
        """`plan`, and with which points."""
        plan, config = self.plan(update, progress), self.config
        if config.coarse == 1:
            return plan
        return {**plan, "coarse": config.coarse if progress < config.coarse_until else 1}

    @abstractmethod
    def predict(self, surrogate: Surrogate, window: Window, plan: Plan) -> tuple[Frames, Frames]:
        """Predicted frames, with gradients, and the true ones they are held against."""

    def loss(
        self,
        surrogate: Surrogate,
        window: Window,
        plan: Plan,
        deviation: Tensor | None = None,
        offset: Tensor | None = None,
    ) -> tuple[Float[Tensor, ""], Mapping[str, Tensor]]:
        """Sum over field groups of the relative L2 error on the joint window, and its terms, detached.

        ``deviation`` of the channels keeps windows in check whose truth is zero (`metrics.LEAST`); an ``offset`` of
        theirs is not part of what errors are relative to.
        """
        prediction, target = self.predict(surrogate, window, plan)
        terms = metrics.grouped_relative_l2(prediction, target, self.problem.state_slices, deviation, offset)
        return torch.stack(list(terms.values())).sum(), {name: term.detach() for name, term in terms.items()}
