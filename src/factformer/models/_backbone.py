"""What a model file offers: a `Config` and a `Backbone` from latent fields to latent fields.

The file ``models/<name>.py`` defines ``class Config(ModelConfig)`` and ``class Model(Backbone)``. Encoder,
latent marching and decoder around it are the same for every model (`factformer.surrogate`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Literal

from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from factformer.config import Config
from factformer.grid import Grid
from factformer.problem import Problem

Latent = Float[Tensor, "batch *grid dim"]


class ModelConfig(Config):
    """Options that every model understands; a model's own `Config` adds to them."""

    name: str
    dim: int = Field(128, ge=1, le=2**16)
    """Channels of the latent field."""
    depth: int = Field(4, ge=1, le=1024)
    """Number of layers (or blocks)."""
    residual: bool | Literal["auto"] = "auto"
    """Predict the increment to the last frame rather than the frame; ``auto``: where the model asks for it
    and the problem moves in time."""
    latent_expansion: float | None = Field(None, gt=0, le=64)
    """Width of the marching state over ``dim``; by default 2 in one and two dimensions, 1.5 above."""
    boundary_block: bool | Literal["auto"] = "auto"
    """Convolutions after the backbone that see the walls; ``auto``: where the model asks for them."""
    checkpointing: bool = False
    """Recompute each layer in the backward pass instead of storing its activations."""


class Backbone(nn.Module, ABC):
    """Latent field in, latent field out, on any grid with the problem's number of axes."""

    wants_boundary_block = False
    """Whether ``boundary_block="auto"`` adds the boundary convolutions on non-periodic problems."""
    wants_residual = False
    """Whether ``residual="auto"`` predicts increments in time-dependent problems."""
    one_axis_per_layer = False
    """Whether layers see the axes in turn, so that their number should be a multiple of that of the axes."""
    paper_optimizer: Literal["adam", "adamw"] = "adamw"
    """What the paper trains the model with: Adam from 5e-4 to 5e-6, or AdamW with a one-cycle schedule."""

    def __init__(self, config: ModelConfig, problem: Problem) -> None:
        super().__init__()
        self.checkpointing = config.checkpointing

    @abstractmethod
    def forward(self, z: Latent, grid: Grid) -> Latent: ...

    def run(self, layer: nn.Module, z: Latent, grid: Grid) -> Latent:
        """Apply one layer, with recomputation in the backward pass if the configuration says so."""
        if self.checkpointing and self.training:
            result: Any = checkpoint(layer, z, grid, use_reentrant=False)
        else:
            result = layer(z, grid)
        return result  # type: ignore[no-any-return]
