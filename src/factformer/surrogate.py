"""The surrogate: frame encoder → backbone → optional boundary block → latent marching → decoder.

Everything but the backbone is the same for every model, so that models can be compared on equal terms. A
surrogate takes and gives physical units; the normaliser is inside.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from factformer import catalog
from factformer.data.normalization import Normalizer
from factformer.errors import UserError
from factformer.grid import Grid
from factformer.models._backbone import Backbone, ModelConfig
from factformer.nn.boundary_block import BoundaryBlock
from factformer.nn.decoder import Decoder
from factformer.nn.frame_encoder import FrameEncoder
from factformer.nn.marching import LatentMarching
from factformer.nn.stage import Network
from factformer.problem import Problem

DEFAULT_MARCHING_STEPS = 4


class Surrogate(Network):
    """Predicts the next frames of ``problem`` from its context frames.

    ``marching_steps`` is the largest number of frames one call can predict; any smaller number can be asked
    for. ``provenance`` says where the weights came from.
    """

    def __init__(
        self, problem: Problem, config: ModelConfig, marching_steps: int, normalizer: Normalizer | None = None
    ) -> None:
        super().__init__()
        if marching_steps < 1 or (problem.steady and marching_steps != 1):
            raise UserError(f"marching_steps must be at least 1, and 1 for a steady problem; got {marching_steps}")
        self.problem = problem
        self.config = config
        self.marching_steps = marching_steps
        self.provenance: dict[str, Any] = {}
        channels_in, channels_out = problem.num_input_channels, problem.num_output_channels
        self.normalizer = normalizer or Normalizer.identity(channels_in, channels_out)
        for name, buffer in self.normalizer.named_buffers():
            channels = channels_in if name.startswith("input") else channels_out
            if len(buffer) != channels:
                raise UserError(f"the normaliser's {name} has {len(buffer)} channels, the problem {channels}")
        if config.residual is True and problem.steady:
            raise UserError("residual=True predicts increments in time; a steady problem has none")

        self.encoder = FrameEncoder(problem.num_context_frames, channels_in, config.dim)
        self.backbone: Backbone = catalog.find("models", config.name).Model(config, problem)
        self.residual = config.residual
        if self.residual == "auto":
            self.residual = self.backbone.wants_residual and not problem.steady
        wanted = config.boundary_block
        if wanted == "auto":
            wanted = self.backbone.wants_boundary_block and problem.boundary != "periodic"
        self.boundary_block = BoundaryBlock(problem.grid.num_axes, config.dim, problem.grid) if wanted else None
        width = config.dim if self.boundary_block is None else self.boundary_block.dim_out
        expansion = config.latent_expansion or (2.0 if problem.grid.num_axes <= 2 else 1.5)
        dim_latent = Decoder.num_groups * max(1, round(expansion * config.dim / Decoder.num_groups))
        self.marching = LatentMarching(width, config.dim, dim_latent, marching_steps)
        self.decoder = Decoder(dim_latent, config.dim, channels_out)

    @property
    def num_parameters(self) -> int:
        """Trainable parameters; complex weights are stored as pairs of reals and count twice."""
        return sum(p.numel() for p in self.parameters() if p.requires_grad)

    def forward(
        self,
        frames: Float[Tensor, "batch context *grid channel_in"],
        num_steps: int | None = None,
        grid: Grid | None = None,
    ) -> Float[Tensor, "batch step *grid channel"]:
        """The ``num_steps`` frames after the context, in physical units.

        By default as many as one call can give, on the problem's grid at the resolution of ``frames``.
        """
        steps = self.marching_steps if num_steps is None else num_steps
        grid = self.check(frames, steps, grid)
        frames = frames.to(self.normalizer.input_mean.dtype)
        prediction: Tensor = self.execute(frames, steps, grid)
        return prediction

    def predict(self, frames: Tensor, num_steps: int, grid: Grid) -> Tensor:
        """`forward` without its checks: tensors in, tensors out."""
        statistics = torch.stack([self.normalizer.input_mean, self.normalizer.input_std])
        z = self.backbone(self.encoder(frames, statistics), grid)
        if self.boundary_block is not None:
            z = self.boundary_block(z, grid)
        values = self.decode(z, num_steps, grid)
        if not self.residual:
            return self.normalizer.denormalize(values)
        return frames[:, -1:] + values * self.normalizer.increment_std

    plain = predict

    def decode(self, z: Tensor, num_steps: int, grid: Grid) -> Tensor:
        """Marching and decoder: normalised fields ``(batch, step, *grid, channel)`` of the latent field."""
        return self.marching.decoded(z, num_steps, self.decoder, grid)

    def check(self, frames: Tensor, num_steps: int, grid: Grid | None) -> Grid:
        """The grid to predict on; raises where the input does not fit the problem."""
        problem = self.problem
        num_axes = problem.grid.num_axes
        if grid is not None and grid.num_axes != num_axes:
            raise UserError(f"the surrogate was built for {num_axes} axes, got a grid of {grid.num_axes}: {grid.shape}")
        if frames.ndim != num_axes + 3:
            raise UserError(
                f"expected frames (batch, frame, {', '.join(f'axis {m}' for m in range(num_axes))}, channel), "
                f"got a tensor of shape {tuple(frames.shape)}"
            )
        if frames.shape[-1] != problem.num_input_channels:
            names = ", ".join(f"{f.name} ({f.num_channels})" for f in problem.inputs)
            raise UserError(f"expected {problem.num_input_channels} channels: {names}; got {frames.shape[-1]}")
        if frames.shape[1] != problem.num_context_frames:
            raise UserError(f"expected {problem.num_context_frames} context frames, got {frames.shape[1]}")
        if not 1 <= num_steps <= self.marching_steps:
            raise UserError(
                f"asked for {num_steps} frames in one call; this surrogate was built for 1 to {self.marching_steps} "
                "(use factformer.rollout for longer predictions)"
            )
        shape = tuple(frames.shape[2:-1])
        grid = grid or problem.grid
        if shape != grid.shape:
            grid = grid.resample(shape)
        self.check_finite(frames)
        return grid

    def check_finite(self, frames: Tensor) -> None:
        # The answer needs a round trip to a GPU, so there only outside of training and captured graphs.
        if frames.is_cuda and (self.training or torch.cuda.is_current_stream_capturing()):
            return
        if torch.compiler.is_compiling() or not frames.is_floating_point():
            return
        if not bool(torch.isfinite(frames).all()):
            bad = (~torch.isfinite(frames)).flatten(1).any(1).nonzero().flatten().tolist()
            raise UserError(f"the input holds NaN or infinite values (samples {bad[:8]})")


def model_config(model: str, **overrides: Any) -> ModelConfig:
    """The validated configuration of a model of the catalog."""
    config: ModelConfig = catalog.find("models", model).Config.parse({"name": model, **overrides}, where="model")
    return config


def build_surrogate(
    problem: Problem,
    model: str | ModelConfig = "factformer",
    *,
    marching_steps: int | None = None,
    normalizer: Normalizer | None = None,
    **overrides: Any,
) -> Surrogate:
    """A fresh surrogate of ``problem`` with a model of the catalog.

    ``overrides`` are options of the model, such as ``dim``, ``depth`` or ``heads``. ``marching_steps`` is the
    number of frames one call predicts (4 by default, 1 for a steady problem).
    """
    if isinstance(model, ModelConfig):
        config = model.replace(**overrides) if overrides else model
    else:
        config = model_config(model, **overrides)
    if marching_steps is None:
        marching_steps = 1 if problem.steady else DEFAULT_MARCHING_STEPS
    return Surrogate(problem, config, marching_steps, normalizer)
