"""What the recipes share: how the paper trains each kind of model, and how a recipe meets another model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from factformer.errors import UserError
from factformer.models import find_model
from factformer.pdes import find_pde
from factformer.protocols import config_class
from factformer.training.experiment.definition import Experiment, parse_model

Scale = Literal["small", "paper"]
PAPER_UPDATES = {"latent_marching": 100_000, "autoregressive": 64_000, "steady": 100_000}

SIZES = ("dim", "depth", "heads", "head_dim", "kernel_dim")
"""Keys of a recipe's model that are sizes of factformer."""

SCALES = {"small": {"log_every": 10}, "paper": {"log_every": 50, "validate_every": 1000, "checkpoint_every": 1000}}
"""What the recipes of a scale share in training: how often something is written."""


@dataclass(frozen=True)
class Settings:
    """What a recipe chose for factformer, and for others where that does not suit them."""

    sizes: Mapping[str, Mapping[str, Any]]
    """Keys of the ``model`` section by scale."""
    training: Mapping[str, Mapping[str, Any]]
    """Keys of the ``training`` section by scale."""
    baseline: Mapping[str, Any] | None = None
    """What the paper chose for this problem's baselines."""
    own: Mapping[str, Mapping[str, Mapping[str, Mapping[str, Any]]]] = field(default_factory=dict)
    """By model and scale what we found to suit it better on this problem, by section."""


def marching_plan(protocol: str, marching_steps: int, **others: Any) -> dict[str, Any]:
    """The settings of a protocol in time that the recipes share, but for ``others``.

    The released runs push forward twice; the text describes one gradient-free call (``pushforward=1``).
    """
    return {
        "name": protocol,
        "marching_steps": marching_steps,
        "curriculum": 0.06,
        "pushforward": 2,
        "pushforward_from": 0.08,
        "pushforward_every": 3,
        "unroll": 2,
        **others,
    }


def assemble(
    recipe: str,
    problem: str,
    scale: str,
    model: str,
    protocol: Mapping[str, Any],
    settings: Settings,
    presets: Mapping[str, str] | None = None,
) -> Experiment:
    """The experiment of a recipe; ``presets`` names by scale what makes the data, where it is not the scale itself."""
    check_scale(scale)
    preset = (presets or {}).get(scale, scale)
    better = settings.own.get(model, {}).get(scale, {})
    sizes = {**settings.sizes[scale], **better.get("model", {})}
    chosen = {
        **find_model(model).default_training.get(scale, {}),
        **better.get("training", {}),
    }
    updates = {"updates": PAPER_UPDATES[protocol["name"]]} if scale == "paper" else {}
    return Experiment.parse(
        {
            "problem": problem,
            "recipe": recipe,
            "scale": scale,
            "model": model_section(model, scale, sizes, settings.baseline, num_axes=num_axes(problem, preset)),
            "data": {
                "path": f"data/{recipe if presets else problem}",
                "preset": preset,
                "resolution": resolution(problem, preset),
            },
            "protocol": protocol_section({**protocol, **better.get("protocol", {})}),
            "training": optimizer_section(model, {**SCALES[scale], **updates, **settings.training[scale], **chosen}),
        }
    )


def check_scale(scale: str) -> None:
    if scale not in ("small", "paper"):
        raise UserError(f"unknown scale {scale!r}. Choices: paper, small")


def resolution(problem: str, preset: str) -> int:
    """Points per axis of the dataset that ``factformer generate PROBLEM --preset PRESET`` makes."""
    return int(find_pde(problem).presets[preset].resolution)


def num_axes(problem: str, preset: str) -> int:
    """Axes of that dataset."""
    equation = find_pde(problem)
    return len(equation.shape_in(equation.presets[preset]))


def model_section(
    model: str,
    scale: str,
    values: Mapping[str, Any],
    baseline: Mapping[str, Any] | None = None,
    *,
    num_axes: int = 1,
) -> dict[str, Any]:
    """``values``, written for factformer, as far as ``model`` understands them.

    At the paper's scale the baselines that are not Transformers keep the sizes of their own, which are the
    paper's, but for those that the paper chose for this problem (``baseline``); the Transformers take those of the
    recipe, as in the paper. A model that the paper does not know says its sizes itself. Where layers see ``num_axes``
    in turn, all of these get the same number of layers.
    """
    found = find_model(model)
    if scale == "paper" and found.paper_optimizer == "adam":
        values = baseline or {}
    if found.recipe_sizes is not None:
        values = {**{key: value for key, value in values.items() if key not in SIZES}, **found.recipe_sizes[scale]}
    known = found.config_class.model_fields
    section = {"name": model, **{key: value for key, value in values.items() if key in known}}
    if found.one_axis_per_layer and "depth" in section:
        section["depth"] = -(-section["depth"] // num_axes) * num_axes
    parse_model(section)
    return section


def protocol_section(values: Mapping[str, Any]) -> dict[str, Any]:
    """Those of ``values``, written for every protocol, that the one they name reads."""
    known = config_class(values["name"]).model_fields
    return {key: value for key, value in values.items() if key in known}


def optimizer_section(model: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """The paper's appendix: AdamW and one cycle for Transformers, Adam from 5e-4 to 5e-6 for the others."""
    if find_model(model).paper_optimizer == "adamw":
        return {"optimizer": "adamw", "weight_decay": 1e-4, "schedule": "one_cycle", "warmup": 0.2, **values}
    adam = {
        "optimizer": "adam",
        "weight_decay": 0.0,
        "learning_rate": 5e-4,
        "schedule": "cosine",
        "warmup": 0.0,
        "final_fraction": 0.01,
    }
    return {**values, **adam}
