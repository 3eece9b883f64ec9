"""What a protocol file offers: which window of frames a training update sees and what is predicted from it.

The file ``protocols/<name>.py`` defines ``class Config(ProtocolConfig)`` and ``class Protocol(BaseProtocol)``. The loss
on the prediction is the objective's (`factformer.training.loop.objective`). A protocol knows nothing of the
model: it drives any surrogate through `factformer.rollout.rollout`, the only roll-out there is.

Training time is measured as ``progress`` from 0 (first update) to 1 (end), in updates or in seconds, so that
curriculum and pushforward stretch with the length of training.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Annotated

from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from factformer.batch import Window
from factformer.config import Config
from factformer.problem import Problem

if TYPE_CHECKING:
    from factformer.surrogate import Surrogate

Frames = Float[Tensor, "batch frame *grid channel"]
Plan = dict[str, int]
"""What the protocol does at one update, as whole numbers that are logged with it."""


Stride = Annotated[int, Field(ge=1, le=4096)]


class ProtocolConfig(Config):
    """What every protocol reads; the `Config` of each adds its own keys."""

    name: str
    stride: Stride | Annotated[tuple[Stride, ...], Field(min_length=1, max_length=64)] = 1
    """Train on every s-th frame, from all s phases: a call of the surrogate advances s frames of the data at once.
    Several, such as ``[1, 2, 4]``, train one surrogate for all these steps: ``frame_dt`` becomes a parameter of it."""
    coarse: int = Field(default=1, ge=1, le=2**20)
    """Begin on every s-th point along each axis, where an update costs a fraction; 1 trains on all of them. For models
    that are the same on both grids, such as factformer and factformer_plus; dilated_resnet is not."""
    coarse_until: float = Field(default=0.7, ge=0, le=1)
    """Part of training after which all points take part."""

    @property
    def strides(self) -> tuple[int, ...]:
        """All of them, from the smallest to the largest."""
        return tuple(sorted({self.stride} if isinstance(self.stride, int) else set(self.stride)))

    @property
    def several_steps(self) -> bool:
        """Whether the surrogate is for several time steps."""
        return len(self.strides) > 1


class BaseProtocol(ABC):
    """How one batch of windows becomes a prediction and the truth it is compared with.

    ``problem`` is that of the surrogate: with a stride, its frames are as far apart as those of a window.
    """

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
        """Frames of a training window, ``config.strides`` apart in the data."""
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
        """Predicted frames, with gradients, and the true ones they are compared with."""
