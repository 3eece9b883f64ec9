"""Per-channel mean and standard deviation of fields and of their frame-to-frame increments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn

from factformer.metrics import LEAST

WEAKEST = 0.1
"""Of a field's deviation, what the truth of a training window counts as at least: a weaker one must not outweigh the
other windows by more."""
FAR = 3.0
"""Deviations that a mean lies from zero at most for errors to be relative to the whole field."""


class Normalizer(nn.Module):
    """Statistics of input and output channels, kept as buffers so that they travel with the weights.

    ``increment_std`` is that of the difference between consecutive frames.
    """

    input_mean: Tensor
    input_std: Tensor
    output_mean: Tensor
    output_std: Tensor
    increment_std: Tensor

    def __init__(
        self,
        input_mean: Sequence[float],
        input_std: Sequence[float],
        output_mean: Sequence[float],
        output_std: Sequence[float],
        increment_std: Sequence[float],
    ) -> None:
        super().__init__()
        for name, values in (
            ("input_mean", input_mean),
            ("input_std", input_std),
            ("output_mean", output_mean),
            ("output_std", output_std),
            ("increment_std", increment_std),
        ):
            self.register_buffer(name, torch.tensor([float(v) for v in values], dtype=torch.float32))

    @classmethod
    def identity(cls, num_input_channels: int, num_output_channels: int) -> Self:
        """Zero mean and unit deviation: for fields that need no scaling."""
        ones = [1.0] * num_output_channels
        return cls([0.0] * num_input_channels, [1.0] * num_input_channels, [0.0] * num_output_channels, ones, ones)

    def normalize(self, frames: Tensor) -> Tensor:
        """Input frames in physical units to zero mean and unit deviation."""
        return (frames - self.input_mean) / self.input_std

    def denormalize(self, values: Tensor) -> Tensor:
        """Output values back to physical units."""
        return values * self.output_std + self.output_mean

    @property
    def deviation(self) -> Tensor:
        """Of the output channels; of a constant one its size or, where it is zero, 1."""
        level = self.output_mean.abs()
        return torch.where(self.output_std > 0, self.output_std, torch.where(level > 0, level, 1.0))

    def yardstick(self) -> tuple[Tensor, Tensor | None]:
        """Deviation and offset of the output channels for the loss (`factformer.metrics.grouped_relative_l2`).

        Of a temperature near 300 that varies by one, errors relative to 300 would teach nothing beside other fields.
        A mean that is `FAR` from zero is taken off, and what is left counts as one deviation at least; a field near
        zero counts as `WEAKEST` of one at least.
        """
        deviation, far = self.deviation / LEAST, self.output_mean.abs() > FAR * self.output_std
        if not bool(far.any()):
            return WEAKEST * deviation, None
        zero = torch.zeros_like(self.output_mean)
        return torch.where(far, deviation, WEAKEST * deviation), torch.where(far, self.output_mean, zero)

    def to_dict(self) -> dict[str, list[float]]:
        return {name: buffer.tolist() for name, buffer in self.named_buffers()}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        return cls(**values)
