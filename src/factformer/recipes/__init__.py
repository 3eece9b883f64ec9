"""Recipes: one file per problem, each with a function that returns an `Experiment`.

The file ``recipes/<name>.py`` defines ``experiment(scale, model, protocol)``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from factformer import catalog
from factformer.models import find_model

if TYPE_CHECKING:
    from factformer.training.experiment.definition import Experiment


def build(recipe: str, scale: str = "small", assignments: Sequence[str] = ()) -> Experiment:
    """The experiment of a recipe with ``"section.key=value"`` assignments applied.

    ``model.name`` and ``protocol.name`` are told to the recipe first, so that it can give the settings that
    belong to them.
    """
    chosen = {}
    for assignment in assignments:
        key, _, value = assignment.partition("=")
        if key.strip() in ("model.name", "protocol.name"):
            chosen[key.strip().partition(".")[0]] = value.strip()
    if "model" in chosen:
        find_model(chosen["model"])
    if "protocol" in chosen:
        catalog.find("protocols", chosen["protocol"])
    experiment: Experiment = catalog.find("recipes", recipe).experiment(scale, **chosen)
    return experiment.override(assignments)
