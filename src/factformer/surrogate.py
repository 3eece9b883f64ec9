"""The surrogate: frame encoder → backbone → optional boundary block → latent marching → decoder.

Everything but the backbone is the same for every model, so that models can be compared on equal terms. A
surrogate takes and gives physical units; the normaliser is inside. With ``patch`` in the model's configuration, all
of it works on a coarser grid whose points are patches of the problem's.
"""

from __future__ import annotations

import logging
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from factformer._support.axes import per_axis
from factformer._support.limits import require_memory
from factformer.arrays import require_finite
from factformer.batch import Batch
from factformer.data.normalization import Normalizer
from factformer.errors import UserError
from factformer.grid import Grid
from factformer.models._backbone import Backbone, ModelConfig, backbone_of, check_model, find_model
from factformer.nn.boundary_block import BoundaryBlock
from factformer.nn.conditions import UNCONDITIONED, Conditions, Modulation, ParameterEmbedding
from factformer.nn.decoder import Decoder
from factformer.nn.encoded_parts import as_frames, parts_of_frames, statistics_of, still_parts
from factformer.nn.frame_encoder import FrameEncoder
from factformer.nn.marching import LatentMarching
from factformer.nn.masks import WallCloseness
from factformer.nn.patches import Patches
from factformer.nn.stage import Network
from factformer.problem import STEP, Problem

DEFAULT_MARCHING_STEPS = 4
log = logging.getLogger(__name__)

MANY_WARNINGS = 50
"""So many different warnings about parameters a surrogate gives, and no more."""


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
        self._warned: set[str] = set()
        self.part: Grid | None = None
        """What this process holds of the grid, where that is cut over several (`factformer.parallel`)."""
        self.normalizer = normalizer or Normalizer.identity(problem)
        self.normalizer.require(problem)
        if config.residual is True and steady:
            raise UserError("residual=True predicts increments in time; a steady problem has none")

        patch = per_axis("model.patch", config.patch, problem.grid.num_axes)
        self.patches = Patches(patch, problem.grid) if max(patch) > 1 else None
        points = 1 if self.patches is None else self.patches.size
        home = self.latent_grid(problem.grid)
        self.walls = WallCloseness(problem.grid) if problem.masked else None
        self.encoder = FrameEncoder(max(1, problem.num_context_frames), self.encoder_statistics().shape[1], config.dim)
        self.still_encoder: FrameEncoder | None = None
        if still := still_parts(problem):
            self.still_encoder = FrameEncoder(1, self.encoder_statistics(still).shape[1], config.dim, bias=False)
        """Of what no frame changes."""
        self.backbone: Backbone = backbone_of(config)(config, problem.with_grid(home))
        self.conditioned = self.backbone.takes_conditions
        self.residual = config.residual
        if self.residual == "auto":
            self.residual = self.backbone.wants_residual and not steady
        wanted = config.boundary_block
        if wanted == "auto":
            wanted = self.backbone.wants_boundary_block and problem.boundary != "periodic"
        self.boundary_block = BoundaryBlock(home.num_axes, config.dim, home) if wanted else None
        width = config.dim if self.boundary_block is None else self.boundary_block.dim_out
        expansion = config.latent_expansion or (2.0 if problem.grid.num_axes <= 2 else 1.5)
        dim_latent = Decoder.num_groups * max(1, round(expansion * config.dim / Decoder.num_groups))
        self.marching = LatentMarching(
            width, config.dim, dim_latent, marching_steps, points * problem.num_forcing_channels
        )
        self.decoder = Decoder(dim_latent, config.dim, points * problem.num_state_channels)
        # Last, so that the same seed gives the other weights the values that they have without parameters.
        self.embedding = ParameterEmbedding(len(problem.parameters)) if problem.parameters else None
        self.around: nn.ModuleList | None = None
        if problem.parameters and not self.backbone.is_modulated:  # a parameter is never left out silently
            self.around = nn.ModuleList(Modulation(config.dim) for _ in ("before the backbone", "after it"))

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
        batch = batch.until(self.problem.num_context_frames + steps).to(self.normalizer.state_mean.dtype)
        prediction: Tensor = self.execute(batch, steps, grid)
        return prediction

    def predict(self, batch: Batch, num_steps: int, grid: Grid) -> Tensor:
        """`forward` without its checks: tensors in, tensors out."""
        batch = self.inside(batch)
        forcing, mask = self.marching_forcing(batch, num_steps, grid), self.latent_mask(batch, grid)
        values = self.decode(self.encode(batch, grid), num_steps, self.latent_grid(grid), forcing, mask, fine=grid)
        if not self.residual:
            predicted = self.normalizer.denormalize(values)
        else:
            assert batch.context is not None
            predicted = batch.context[:, -1:] + values * self.increment_scale(batch)
        return predicted if batch.mask is None else predicted.masked_fill(~spread(batch.mask, "context"), 0.0)

    plain = predict

    def latent_grid(self, grid: Grid) -> Grid:
        """The grid of the latent field for frames on ``grid``: that itself, or the grid of its patches."""
        return grid if self.patches is None else self.patches.grid(grid)

    def latent_mask(self, batch: Batch, grid: Grid) -> Bool[Tensor, "batch *coarse"] | None:
        """Where the latent field lies inside the domain: patches do where any of their points does."""
        inside = batch.mask
        return inside if inside is None or self.patches is None else self.patches.inside(inside, grid)

    def encode(self, batch: Batch, grid: Grid) -> Float[Tensor, "batch *coarse width"]:
        """The latent field of what is known, before the marching: encoder, backbone and boundary block."""
        inner, conditions = self.latent_grid(grid), self.conditions(batch, grid)
        z = self.processed(self.lifted(batch, grid), inner, conditions)
        return z if self.boundary_block is None else self.boundary_block(z, inner, conditions.mask)

    def lifted(self, batch: Batch, grid: Grid) -> Float[Tensor, "batch *coarse width"]:
        """The latent field before the backbone: what the frames say of a point, and what does not change with them."""
        problem = self.problem
        z = self._encoded(self.encoder, parts_of_frames(problem), batch, grid)
        return (
            z if self.still_encoder is None else self._encoded(self.still_encoder, still_parts(problem), batch, grid, z)
        )

    def _encoded(
        self, encoder: FrameEncoder, parts: tuple[str, ...], batch: Batch, grid: Grid, onto: Tensor | None = None
    ) -> Tensor:
        frames = as_frames(parts, batch, encoder.num_frames, self.walls, grid)
        statistics = None if parts == ("walls",) else self.encoder_statistics(parts)
        latent: Tensor = encoder(frames, statistics, self.patches, grid, onto)
        return latent

    def encoder_statistics(self, parts: tuple[str, ...] | None = None) -> Float[Tensor, "2 channel"]:
        """Mean and deviation of the channels of a frame, or of other parts, for each point of a patch."""
        statistics = statistics_of(parts_of_frames(self.problem) if parts is None else parts, self.normalizer)
        return statistics if self.patches is None else statistics.repeat(1, self.patches.size)

    def conditions(self, batch: Batch, grid: Grid) -> Conditions:
        """What the layers of the backbone know beside the field, on the latent grid of ``grid``."""
        mask = self.latent_mask(batch, grid)
        if self.embedding is None or batch.parameters is None:
            return UNCONDITIONED if mask is None else Conditions(mask=mask)
        return Conditions(self.embedding(self.normalizer.normalize_parameters(batch.parameters)), mask)

    def processed(self, z: Tensor, grid: Grid, conditions: Conditions) -> Tensor:
        """The latent field after the backbone; if its layers do not see the parameters, they act before and after."""
        backbone, parameters = self.backbone, conditions.parameters
        if self.around is not None:
            z = self.around[0](z, parameters)
        unconditioned = conditions is UNCONDITIONED or not self.conditioned
        shape = z.shape
        z = backbone(z, grid) if unconditioned else backbone(z, grid, conditions)
        if z.shape != shape:
            raise UserError(
                f"the backbone {self.config.name!r} was given a latent field of shape {tuple(shape)} and returned "
                f"{tuple(z.shape)}; a backbone returns the shape it is given"
            )
        return z if self.around is None else self.around[1](z, parameters)

    def marching_forcing(self, batch: Batch, num_steps: int, grid: Grid) -> Tensor | None:
        """The normalised forcing of the frames that are predicted, if there is any, on the latent grid."""
        if batch.forcing is None:
            return None
        first = self.problem.num_context_frames
        normalized = self.normalizer.normalize_forcing(batch.forcing[:, first : first + num_steps])
        return normalized if self.patches is None else self.patches.split(normalized, grid)

    def increment_scale(self, batch: Batch) -> Tensor:
        """The size of increments; that of a surrogate for several time steps grows with the root of the step."""
        scale = self.normalizer.increment_std
        if STEP not in self.problem.parameters:
            return scale
        assert batch.parameters is not None
        step = batch.parameters[:, self.problem.parameters.index(STEP)] / self.problem.frame_dt
        return scale * step.sqrt().reshape(-1, *[1] * (self.problem.grid.num_axes + 2))

    def inside(self, batch: Batch) -> Batch:
        """The batch with the mean of each field outside the domain, which the encoder sees as zero."""
        if batch.mask is None:
            return batch
        filled = {}
        for kind in ("context", "static", "forcing"):
            part: Tensor | None = getattr(batch, kind)
            if part is None:
                continue
            mean = getattr(self.normalizer, f"{kind}_mean").to(part.dtype)
            filled[kind] = torch.where(spread(batch.mask, kind), part, mean)
        return batch._replace(**filled)

    def decode(
        self,
        z: Tensor,
        num_steps: int,
        grid: Grid,
        forcing: Tensor | None = None,
        mask: Tensor | None = None,
        fine: Grid | None = None,
    ) -> Tensor:
        """Marching and decoder: normalised values ``(batch, step, *grid, channel)`` of a latent field on ``grid``.

        With ``fine``, on that grid, whose patches are the points of ``grid``.
        """
        patches = None if fine is None else self.patches
        return self.marching.decoded(z, num_steps, self.decoder, grid, forcing, mask, patches, fine)

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
        grid = grid or self.part or problem.grid
        if shape != grid.shape:
            grid = grid.resample(shape)
        self.latent_grid(grid)  # refuses what cannot be cut into patches
        for name, part in zip(batch.names, batch.tensors, strict=True):
            if batch.mask is not None and name in ("context", "static", "forcing"):
                part = part.masked_fill(~spread(batch.mask, name), 0.0)
            if self.looks_at(part):
                require_finite(part, problem, name)
        if batch.mask is not None and self.looks_at(batch.mask):
            empty = ~batch.mask.flatten(1).any(1)
            if bool(empty.any()):
                raise UserError(f"the mask of sample {int(empty.nonzero()[0])} has no point inside the domain")
        if batch.parameters is not None and self.looks_at(batch.parameters):
            self.normalizer.require_positive(batch.parameters, problem)
        return grid

    def warn_outside_range(self, batch: Batch) -> None:
        """Say once, in one line, which parameters lie outside the range of the training data."""
        if batch.parameters is None or not self.looks_at(batch.parameters):
            return
        self.normalizer.require_positive(batch.parameters, self.problem)
        outside = self.normalizer.outside_range(batch.parameters, self.problem)
        if outside and outside not in self._warned and len(self._warned) < MANY_WARNINGS:
            self._warned.add(outside)
            log.warning(f"{self.problem.name}: {outside}, the range that the surrogate was trained on")

    def looks_at(self, values: Tensor) -> bool:
        """Whether a check looks at values: on a GPU only outside of training and captured graphs, as that waits."""
        if isinstance(values, FakeTensor):  # counted, not run: it has no values
            return False
        waits = values.is_cuda and (self.training or torch.cuda.is_current_stream_capturing())
        return not waits and not torch.compiler.is_compiling()


def _is_large(config: ModelConfig, num_axes: int) -> bool:
    """Whether a model may take a gigabyte: a rough count from its options, as a closer look takes a second."""
    options = config.model_dump()
    sizes = [value for value in options.values() if isinstance(value, int) and not isinstance(value, bool)]
    modes = int(options.get("modes") or 1)
    return bool(max(*sizes, config.widest) ** 2 * config.depth * modes**num_axes > 2**24)


def spread(mask: Bool[Tensor, "batch *grid"], part: str) -> Tensor:
    """A mask that broadcasts over the channels, and the frames if there are any, of a part of a batch."""
    return mask.unsqueeze(-1) if part == "static" else mask.unsqueeze(1).unsqueeze(-1)


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
