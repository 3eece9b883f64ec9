"""What a model is: a `Backbone` from latent fields to latent fields, and its `ModelConfig`.

The two know each other: the class names its configuration as ``config_class``, and an object of that configuration
finds the class again (`backbone_of`). The file ``models/<name>.py`` defines both, as ``Config`` and ``Model``; a
user's own may be defined anywhere. Encoder, latent marching and decoder around it are the same for every model
(`factformer.surrogate`).
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from factformer import catalog
from factformer.config import Config, fingerprint
from factformer.errors import UserError
from factformer.grid import Grid
from factformer.nn.conditions import UNCONDITIONED, Conditions, Modulation
from factformer.problem import Problem

Latent = Float[Tensor, "batch *grid dim"]
Layer = TypeVar("Layer", bound=nn.Module)
PatchSize = Annotated[int, Field(ge=1, le=256)]
UNUSED = (("patch", 1), ("levels", 1))
"""Options that the first edition did not have, with the value that leaves them out."""


class ModelConfig(Config):
    """Options that every model understands; a model's own configuration adds to them, and says its ``name``."""

    backbone_class: ClassVar[type[Backbone] | None] = None
    """The model that this configures, known once it is defined."""

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
    patch: PatchSize | tuple[PatchSize, ...] = 1
    """Neighbouring points along each axis, or along every one, that make one point of the latent field: a patch of 2
    leaves a quarter of the points in two dimensions."""
    checkpointing: bool = False
    """Recompute each layer in the backward pass instead of storing its activations."""

    @property
    def widest(self) -> int:
        """Channels of the widest layer."""
        return self.dim

    def fingerprint(self) -> str:
        """As `Config.fingerprint`; options that came later count where they are used, so older runs keep theirs."""
        values = self.model_dump(mode="json")
        return fingerprint({key: value for key, value in values.items() if (key, value) not in UNUSED})


class Backbone(nn.Module, ABC):
    """Latent field in, latent field out, on any grid with the problem's number of axes.

    A subclass sets ``config_class`` to a `ModelConfig` of its own, of which it takes its name.
    """

    config_class: ClassVar[type[ModelConfig]]
    """The model's configuration, with a default for ``name``."""
    name: ClassVar[str]
    """The name in that configuration: what bundles and the catalog call the model."""
    wants_boundary_block = False
    """Whether ``boundary_block="auto"`` adds the boundary convolutions on non-periodic problems."""
    wants_residual = False
    """Whether ``residual="auto"`` predicts increments in time-dependent problems."""
    one_axis_per_layer = False
    """Whether layers see the axes in turn, so that their number should be a multiple of that of the axes."""
    cuttable = False
    """Whether all layers take their sums and neighbours from the grid, so that it may be cut over processes."""
    cut_multiple = 2
    """Cuts lie at multiples of so many points of the latent grid; the boundary block takes every second one."""
    paper_optimizer: Literal["adam", "adamw"] = "adamw"
    """What the paper trains the model with: Adam from 5e-4 to 5e-6, or AdamW with a one-cycle schedule."""
    recipe_sizes: ClassVar[Mapping[str, Mapping[str, Any]] | None] = None
    """Sizes in a recipe of scale ``small`` or ``paper``, where those of the recipe, which are factformer's, do not
    apply; by default they do."""
    default_training: ClassVar[Mapping[str, Mapping[str, Any]]] = MappingProxyType({})
    """Keys of the ``training`` section that suit the model where nothing else is said: in a recipe of scale ``small``
    or ``paper``, and in `factformer.fit` for a ``short`` or ``long`` training."""
    default_sizes: ClassVar[Mapping[int, Mapping[str, Any]]] = MappingProxyType({})
    """Keys of the ``model`` section by number of axes that `factformer.fit` takes on a periodic grid where nothing else
    is said."""
    default_marching: ClassVar[Mapping[str, int]] = MappingProxyType({"marching_steps": 4, "pushforward": 1})
    """How far `factformer.fit` marches and pushes forward at most where nothing else is said."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        config = cls.__dict__.get("config_class")
        if config is None:
            return
        if not (isinstance(config, type) and issubclass(config, ModelConfig)):
            raise UserError(f"config_class of {cls.__name__} must be a subclass of ModelConfig, got {config!r}")
        name = config.model_fields["name"].default
        if not isinstance(name, str) or not name:
            raise UserError(f'the configuration of {cls.__name__} needs a name: name: Literal["mine"] = "mine"')
        other = config.__dict__.get("backbone_class")
        if other is not None and (other.__module__, other.__qualname__) != (cls.__module__, cls.__qualname__):
            raise UserError(f"{cls.__name__} and {other.__name__} share a configuration: give each one of its own")
        config.backbone_class = cls
        cls.name = name

    def __init__(self, config: ModelConfig, problem: Problem) -> None:
        super().__init__()
        self.checkpointing = config.checkpointing
        self._dim, self._has_parameters = config.dim, bool(problem.parameters)

    @abstractmethod
    def forward(self, z: Latent, grid: Grid, conditions: Conditions = UNCONDITIONED) -> Latent: ...

    @property
    def takes_conditions(self) -> bool:
        """Whether `forward` is written with the conditions as its third argument; a user's own need not be."""
        return len(inspect.signature(self.forward).parameters) > 2

    @property
    def is_modulated(self) -> bool:
        """Whether any of the layers sees the parameters."""
        return self.takes_conditions and any(isinstance(part, Modulation) for part in self.modules())

    def modulated(self, layer: Layer, dim: int | None = None) -> Layer:
        """``layer`` itself, which `run` lets see the problem's parameters, if it has any.

        ``dim`` is the width of the latent field that comes in, by default the model's. Without parameters, nothing
        is added to the layer.
        """
        if self._has_parameters:
            layer.add_module("modulation", Modulation(self._dim if dim is None else dim))
        return layer

    def run(self, layer: nn.Module, z: Latent, grid: Grid, conditions: Conditions = UNCONDITIONED) -> Latent:
        """Apply one layer, with recomputation in the backward pass if the configuration says so.

        A layer is called with the conditions where there are any, so a layer of a problem without needs not take them.
        If it is `modulated`, the parameters scale and shift its input first.
        """
        if self.checkpointing and self.training:
            result: Any = checkpoint(_applied, layer, z, grid, conditions, use_reentrant=False)
        else:
            result = _applied(layer, z, grid, conditions)
        return result  # type: ignore[no-any-return]

    def run_all(
        self, layers: Iterable[nn.Module], z: Latent, grid: Grid, conditions: Conditions = UNCONDITIONED
    ) -> Latent:
        """Apply ``layers`` one after the other (`run`)."""
        for layer in layers:
            z = self.run(layer, z, grid, conditions)
        return z


class Stack(Backbone):
    """Layers that are called one after the other."""

    def __init__(self, config: ModelConfig, problem: Problem) -> None:
        super().__init__(config, problem)
        self.layers = nn.ModuleList(self.modulated(self.layer(config, problem)) for _ in range(config.depth))

    @abstractmethod
    def layer(self, config: Any, problem: Problem) -> nn.Module:
        """A new one."""

    def forward(self, z: Latent, grid: Grid, conditions: Conditions = UNCONDITIONED) -> Latent:
        return self.run_all(self.layers, z, grid, conditions)


def _applied(layer: nn.Module, z: Latent, grid: Grid, conditions: Conditions) -> Any:
    modulation = getattr(layer, "modulation", None)
    if conditions.parameters is not None and isinstance(modulation, Modulation):
        z = modulation(z, conditions.parameters)
    return layer(z, grid) if conditions is UNCONDITIONED else layer(z, grid, conditions)


def find_model(name: str) -> type[Backbone]:
    """The model of the catalog with this name; an unknown one lists the choices."""
    return check_model(catalog.lookup("models", name))


def check_model(model: object) -> type[Backbone]:
    """``model`` itself, if it is a model class with a configuration of its own."""
    if not (isinstance(model, type) and issubclass(model, Backbone)):
        raise UserError(f"a model is a subclass of Backbone, got {model!r}")
    config: type[ModelConfig] | None = getattr(model, "config_class", None)
    if config is None or config.__dict__.get("backbone_class") != model:
        raise UserError(f"the model {model.__name__} needs a configuration of its own: set config_class in the class")
    return model


def backbone_of(config: ModelConfig) -> type[Backbone]:
    """The model that a configuration is of."""
    model: type[Backbone] | None = type(config).__dict__.get("backbone_class")
    if model is None:
        raise UserError(f"{type(config).__name__} is the configuration of no model: set it as config_class in one")
    if config.name != model.name:
        raise UserError(f"the model {model.__name__} is called {model.name!r}; its configuration says {config.name!r}")
    return check_model(model)
