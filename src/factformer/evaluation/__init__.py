"""How good a surrogate is, what it costs, and what its attention looks like."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from factformer.evaluation.accuracy import evaluate as evaluate
    from factformer.evaluation.attention import analyse_attention as analyse_attention
    from factformer.evaluation.cost import Case as Case
    from factformer.evaluation.cost import measure as measure
    from factformer.evaluation.run import evaluate_run as evaluate_run

_HOMES = {
    "evaluate": "accuracy",
    "evaluate_run": "run",
    "analyse_attention": "attention",
    "Case": "cost",
    "measure": "cost",
}

__all__ = ["Case", "analyse_attention", "evaluate", "evaluate_run", "measure"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'factformer.evaluation' has no attribute {name!r}")
    return getattr(importlib.import_module(f"factformer.evaluation.{_HOMES[name]}"), name)
