"""The surrogate: frame encoder → backbone → optional boundary block → latent marching → decoder.

Everything but the backbone is the same for every model, so that models can be compared on equal terms. A
surrogate takes and gives physical units; the normaliser is inside.
"""

from __future__ import annotations

import functools
import logging
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from factformer._support.limits import require_memory
from factformer.batch import Batch
from factformer.data.normalization import Normalizer
from factformer.errors import NonFinite, UserError
from factformer.grid import Grid
from factformer.models._backbone import Backbone, ModelConfig, backbone_of, check_model, find_model
from factformer.nn.boundary_block import BoundaryBlock
from factformer.nn.decoder import Decoder
from factformer.nn.frame_encoder import FrameEncoder
from factformer.nn.marching import LatentMarching
from factformer.nn.stage import Network
from factformer.problem import Problem

DEFAULT_MARCHING_STEPS = 4
log = logging.getLogger(__name__)


class Surrogate(Network):
    """Predicts the next frames of ``problem`` from its context frames.

    ``marching_steps`` is the largest number of frames one call can predict; any smaller number can be asked
    for. ``provenance`` says where the weights came from.
    """

    def __init__(
        self, problem: Problem, config: ModelConfig, marching_steps: int, normalizer: Normalizer | None = None
    ) -> None:
        super().__init__()
        steady = problem.steady
        if marching_steps < 1 or (steady and marching_steps != 1):
            raise UserError(f"marching_steps must be at least 1, and 1 for a steady problem; got {marching_steps}")
        if _is_large(config, problem.grid.num_axes) and torch.get_default_device().type != "meta":
            with torch.device("meta"):  # shapes alone, no memory
                blank = type(self)(problem, config, marching_steps)
            require_memory(
                4 * blank.num_parameters,
                f"a {config.name} of {blank.num_parameters:,} parameters",
                "lower model.dim, model.depth or the other sizes of the model",
            )
        self.problem = problem
        self.config = config
        self.marching_steps = marching_steps
        self.provenance: dict[str, Any] = {}
        self.normalizer = normalizer or Normalizer.identity(problem)
        self.normalizer.require(problem)
        if config.residual is True and steady:
            raise UserError("residual=True predicts increments in time; a steady problem has none")
        warn_unused(problem)

        channels_in = sum(len(getattr(self.normalizer, f"{kind}_mean")) for kind in self._encoded())
        self.encoder = FrameEncoder(max(1, problem.num_context_frames), channels_in, config.dim)
        self.backbone: Backbone = backbone_of(config)(config, problem)
        self.residual = config.residual
        if self.residual == "auto":
            self.residual = self.backbone.wants_residual and not steady
        wanted = config.boundary_block
        if wanted == "auto":
            wanted = self.backbone.wants_boundary_block and problem.boundary != "periodic"
        self.boundary_block = BoundaryBlock(problem.grid.num_axes, config.dim, problem.grid) if wanted else None
        width = config.dim if self.boundary_block is None else self.boundary_block.dim_out
        expansion = config.latent_expansion or (2.0 if problem.grid.num_axes <= 2 else 1.5)
        dim_latent = Decoder.num_groups * max(1, round(expansion * config.dim / Decoder.num_groups))
        self.marching = LatentMarching(width, config.dim, dim_latent, marching_steps)
        self.decoder = Decoder(dim_latent, config.dim, problem.num_state_channels)

    @property
    def num_parameters(self) -> int:
        """Trainable parameters; complex weights are stored as pairs of reals and count twice."""
        return sum(p.numel() for p in self.parameters() if p.requires_grad)

    def forward(
        self,
        batch: Batch | Float[Tensor, "batch context *grid channel_in"],
        num_steps: int | None = None,
        grid: Grid | None = None,
    ) -> Float[Tensor, "batch step *grid channel"]:
        """The ``num_steps`` frames after the context, in physical units.

        By default as many as one call can give, on the problem's grid at the resolution of the batch. A bare tensor
        is the context or, for a steady problem, the static fields.
        """
        steps = self.marching_steps if num_steps is None else num_steps
        batch = Batch.of(self.problem, batch)
        grid = self.check(batch, steps, grid)
        prediction: Tensor = self.execute(batch.to(self.normalizer.state_mean.dtype), steps, grid)
        return prediction

    def predict(self, batch: Batch, num_steps: int, grid: Grid) -> Tensor:
        """`forward` without its checks: tensors in, tensors out."""
        z = self.encoder(self.encoded_frames(batch), self.encoder_statistics())
        z = self.backbone(z, grid)
        if self.boundary_block is not None:
            z = self.boundary_block(z, grid)
        values = self.decode(z, num_steps, grid)
        if not self.residual:
            return self.normalizer.denormalize(values)
        assert batch.context is not None
        return batch.context[:, -1:] + values * self.normalizer.increment_std

    plain = predict

    def _encoded(self) -> tuple[str, ...]:
        """The parts of a batch that the frame encoder reads, in the order of their channels."""
        problem = self.problem
        parts = (("context", problem.num_context_frames), ("static", problem.static), ("forcing", problem.forcing))
        return tuple(kind for kind, there in parts if there)

    def encoded_frames(self, batch: Batch) -> Float[Tensor, "batch frame *grid channel_in"]:
        """What the frame encoder reads: context frames with static fields and forcing beside them in the channels.

        The static fields of a steady problem are its one frame.
        """
        frames = batch.seen
        if self._encoded() in (("context",), ("static",)):
            return frames
        beside = [frames]
        if batch.static is not None:
            beside.append(batch.static.unsqueeze(1).expand(-1, frames.shape[1], *batch.static.shape[1:]))
        if batch.forcing is not None:
            beside.append(batch.forcing[:, : frames.shape[1]])
        return torch.cat(beside, dim=-1)

    def encoder_statistics(self) -> Float[Tensor, "2 channel_in"]:
        """Mean and deviation of the channels of `encoded_frames`."""
        moments = []
        for moment in ("mean", "std"):
            parts = [getattr(self.normalizer, f"{kind}_{moment}") for kind in self._encoded()]
            moments.append(parts[0] if len(parts) == 1 else torch.cat(parts))
        return torch.stack(moments)

    def decode(self, z: Tensor, num_steps: int, grid: Grid) -> Tensor:
        """Marching and decoder: normalised fields ``(batch, step, *grid, channel)`` of the latent field."""
        return self.marching.decoded(z, num_steps, self.decoder, grid)

    def check(self, batch: Batch, num_steps: int, grid: Grid | None) -> Grid:
        """The grid to predict on; raises where the batch does not fit the problem."""
        problem = self.problem
        num_axes = problem.grid.num_axes
        if grid is not None and grid.num_axes != num_axes:
            raise UserError(f"the surrogate was built for {num_axes} axes, got a grid of {grid.num_axes}: {grid.shape}")
        shape = batch.require(problem, num_steps)
        if not 1 <= num_steps <= self.marching_steps:
            raise UserError(
                f"asked for {num_steps} frames in one call; this surrogate was built for 1 to {self.marching_steps} "
                "(use factformer.rollout for longer predictions)"
            )
        grid = grid or problem.grid
        if shape != grid.shape:
            grid = grid.resample(shape)
        for part in batch.tensors:
            self.check_finite(part)
        return grid

    def check_finite(self, frames: Tensor) -> None:
        # The answer needs a round trip to a GPU, so there only outside of training and captured graphs.
        if frames.is_cuda and (self.training or torch.cuda.is_current_stream_capturing()):
            return
        if torch.compiler.is_compiling() or not frames.is_floating_point():
            return
        if not bool(torch.isfinite(frames).all()):
            bad = (~torch.isfinite(frames)).flatten(1).any(1).nonzero().flatten().tolist()
            raise NonFinite(0, bad)


def _is_large(config: ModelConfig, num_axes: int) -> bool:
    """Whether a model may take a gigabyte: a rough count from its options, as a closer look takes a second."""
    options = config.model_dump()
    sizes = [value for value in options.values() if isinstance(value, int) and not isinstance(value, bool)]
    modes = int(options.get("modes") or 1)
    return bool(max(*sizes, config.widest) ** 2 * config.depth * modes**num_axes > 2**24)


def warn_unused(problem: Problem) -> None:
    """Say once which parts of a problem travel with it but are not used by the models yet."""
    parts = {"forcing after the context": problem.forcing, "parameters": problem.parameters, "the mask": problem.masked}
    unused = [name for name, there in parts.items() if there]
    if unused:
        say_once(
            f"a surrogate of {problem.name!r} does not use {', '.join(unused)} yet: they are only stored and checked"
        )


@functools.cache
def say_once(message: str) -> None:
    """A warning; the same one is not repeated."""
    log.warning(message)


def model_config(model: str | ModelConfig | type[Backbone], **overrides: Any) -> ModelConfig:
    """The validated configuration of a model: by its name in the catalog, by its class, or changed from another."""
    if isinstance(model, ModelConfig):
        return model.replace(**overrides) if overrides else model
    found = find_model(model) if isinstance(model, str) else check_model(model)
    return found.config_class.parse({"name": found.name, **overrides}, where="model")


def build_surrogate(
    problem: Problem,
    model: str | ModelConfig | type[Backbone] = "factformer",
    *,
    marching_steps: int | None = None,
    normalizer: Normalizer | None = None,
    **overrides: Any,
) -> Surrogate:
    """A fresh surrogate of ``problem`` with a model of the catalog, or with a `Backbone` class of one's own.

    ``overrides`` are options of the model, such as ``dim``, ``depth`` or ``heads``. ``marching_steps`` is the
    number of frames one call predicts (4 by default, 1 for a steady problem).
    """
    config = model_config(model, **overrides)
    if marching_steps is None:
        marching_steps = DEFAULT_MARCHING_STEPS if problem.num_context_frames else 1
    return Surrogate(problem, config, marching_steps, normalizer)
