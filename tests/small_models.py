"""Sizes with which every model of the catalog is quick, a problem with all parts, and weights that have moved."""

import torch

from factformer import Field, Grid, Problem
from factformer.models import Backbone, find_model

SMALL = {
    "dim": 16,
    "depth": 2,
    "heads": 2,
    "head_dim": 4,
    "kernel_dim": 8,
    "modes": 3,
    "norm_groups": 4,
    "multipliers": (1, 2),
    "width": 8,
    "num_halvings": 2,
    "num_levels": 2,
    "num_slices": 5,
    "window": 4,
    "skip_depth": 1,
    "layer_scale": 0.1,
}


VARIANTS = {"factformer_plus in levels": {"depth": 3, "levels": 2}}
"""Shapes of a model that differ so much from its usual one that they are tested beside it, by model and a word."""


def named(model: str | type[Backbone]) -> str | type[Backbone]:
    """The model of a variant."""
    return model.split()[0] if isinstance(model, str) else model


def small_sizes(model: str | type[Backbone], **others: object) -> dict[str, object]:
    """Those of the sizes that ``model`` has, with others in their place, and what makes a variant of it."""
    base = named(model)
    known = (find_model(base) if isinstance(base, str) else base).config_class.model_fields
    of_variant = VARIANTS.get(model, {}) if isinstance(model, str) else {}
    return {key: value for key, value in {**SMALL, **others, **of_variant}.items() if key in known}


def channel_on(grid: Grid) -> Problem:
    """A problem with every part that a batch can have."""
    return Problem(
        "channel",
        grid,
        (Field("u", 2), Field("p")),
        static=(Field("depth"),),
        forcing=(Field("inflow", 2),),
        parameters=("reynolds", "slope"),
        frame_dt=0.1,
        num_context_frames=2,
        horizon=3,
        masked=True,
    )


def moved(model: torch.nn.Module) -> torch.nn.Module:
    """The model after a small random step of all weights, so that none is zero."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model
