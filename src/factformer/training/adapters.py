"""Our surrogates in other people's loops: modules from ``(batch, channel, *grid)`` to the same layout."""

from __future__ import annotations

from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from factformer.errors import UserError
from factformer.surrogate import Surrogate


class ChannelsFirst(nn.Module):
    """A surrogate as ``neuraloperator`` and most convolutional code expect a model.

    ``x`` holds the context, frame after frame: channel ``t · C + c`` is field channel ``c`` of frame ``t``. The
    answer holds ``num_steps`` predicted frames in the same order. Other keyword arguments, such as the target
    ``y`` that ``neuralop.Trainer`` passes along, are ignored.
    """

    def __init__(self, surrogate: Surrogate, num_steps: int | None = None) -> None:
        super().__init__()
        self.surrogate = surrogate
        self.num_steps = surrogate.marching_steps if num_steps is None else num_steps

    @property
    def num_input_channels(self) -> int:
        problem = self.surrogate.problem
        return max(1, problem.num_context_frames) * self._num_field_channels

    @property
    def _num_field_channels(self) -> int:
        """Of one frame: the state or, for a steady problem, its static fields."""
        problem = self.surrogate.problem
        return problem.num_state_channels if problem.num_context_frames else problem.num_static_channels

    @property
    def num_output_channels(self) -> int:
        return self.num_steps * self.surrogate.problem.num_state_channels

    def forward(self, x: Float[Tensor, "batch channel_in *grid"], **_: Any) -> Float[Tensor, "batch channel_out *grid"]:
        problem = self.surrogate.problem
        if x.ndim != problem.grid.num_axes + 2 or x.shape[1] != self.num_input_channels:
            raise UserError(
                f"expected x of shape (batch, {self.num_input_channels}, *grid): frame after frame, "
                f"{self._num_field_channels} channels each, got {tuple(x.shape)}"
            )
        frames = x.unflatten(1, (-1, self._num_field_channels)).movedim(2, -1)
        predicted: Tensor = self.surrogate(frames, self.num_steps)
        return predicted.movedim(-1, 2).flatten(1, 2)


def to_channels_first(
    frames: Float[Tensor, "batch frame *grid channel"],
) -> Float[Tensor, "batch channels *grid"]:
    """Frames as `ChannelsFirst` takes and gives them."""
    return frames.movedim(-1, 2).flatten(1, 2)
