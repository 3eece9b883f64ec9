"""Sizes with which every model of the catalog is quick."""

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


def small_sizes(model: str | type[Backbone], **others: object) -> dict[str, object]:
    """Those of the sizes that ``model`` has, with others in their place."""
    known = (find_model(model) if isinstance(model, str) else model).config_class.model_fields
    return {key: value for key, value in {**SMALL, **others}.items() if key in known}
