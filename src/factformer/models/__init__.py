"""The models, one file each. A new one is a `Backbone` and its `ModelConfig`: docs/how-to/add-a-model.md.

Names are loaded when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from factformer._support.lazy import load_lazily

if TYPE_CHECKING:
    from factformer.models._backbone import Backbone as Backbone
    from factformer.models._backbone import ModelConfig as ModelConfig
    from factformer.models._backbone import find_model as find_model

__all__ = load_lazily(
    __name__,
    {
        "Backbone": "factformer.models._backbone",
        "ModelConfig": "factformer.models._backbone",
        "find_model": "factformer.models._backbone",
    },
)
