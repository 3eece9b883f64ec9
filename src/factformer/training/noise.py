"""Noise on the context frames of training windows: a model that has seen imperfect frames corrects its own."""

from __future__ import annotations

import hashlib

import torch

from factformer.data.normalization import Normalizer
from factformer.protocols import Window


class ContextNoise:
    """Gaussian noise of ``level`` standard deviations of each field, drawn from (seed, update, place) alone.

    The frames that a prediction is held against stay as they are.
    """

    def __init__(self, level: float, num_context_frames: int, normalizer: Normalizer, seed: int) -> None:
        self.level, self.num_context_frames, self.seed = level, num_context_frames, seed
        self.deviation = normalizer.output_std.clone()

    def __call__(self, window: Window, update: int, first_slot: int) -> Window:
        digest = hashlib.sha256(f"noise/{self.seed}/{update}/{first_slot}".encode()).digest()
        generator = torch.Generator(window.frames.device).manual_seed(int.from_bytes(digest[:8], "big") >> 1)
        self.deviation = self.deviation.to(window.frames.device)
        context, later = window.frames.tensor_split([self.num_context_frames], dim=1)
        noise = torch.randn(context.shape, generator=generator, device=context.device, dtype=context.dtype)
        return Window(torch.cat([context + self.level * self.deviation * noise, later], dim=1), window.inputs)
