"""How good a surrogate is, what it costs, and what its attention looks like."""

from __future__ import annotations

from typing import TYPE_CHECKING

from factformer._support.lazy import load_lazily

if TYPE_CHECKING:
    from factformer.evaluation.accuracy import evaluate as evaluate
    from factformer.evaluation.attention import analyse_attention as analyse_attention
    from factformer.evaluation.cost import Case as Case
    from factformer.evaluation.cost import measure as measure
    from factformer.evaluation.results import Evaluation as Evaluation
    from factformer.evaluation.run import evaluate_run as evaluate_run

__all__ = load_lazily(
    __name__,
    {
        "Case": "factformer.evaluation.cost",
        "Evaluation": "factformer.evaluation.results",
        "analyse_attention": "factformer.evaluation.attention",
        "evaluate": "factformer.evaluation.accuracy",
        "evaluate_run": "factformer.evaluation.run",
        "measure": "factformer.evaluation.cost",
    },
)
