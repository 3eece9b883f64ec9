"""factformer: fast surrogates of partial differential equations on grids.

The public names below are loaded when first used, so that ``import factformer`` stays quick.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from factformer._support.lazy import load_lazily

if TYPE_CHECKING:
    from factformer.batch import Batch as Batch
    from factformer.bundle import load as load
    from factformer.export.exporting import export as export
    from factformer.grid import Grid as Grid
    from factformer.pdes import simulate as simulate
    from factformer.problem import Field as Field
    from factformer.problem import Problem as Problem
    from factformer.rollout import rollout as rollout
    from factformer.studies.running import study as study
    from factformer.surrogate import Surrogate as Surrogate
    from factformer.surrogate import build_surrogate as build_surrogate
    from factformer.training import fit as fit

__version__ = "0.1.0"
__all__ = load_lazily(
    __name__,
    {
        "Batch": "factformer.batch",
        "Grid": "factformer.grid",
        "Field": "factformer.problem",
        "Problem": "factformer.problem",
        "Surrogate": "factformer.surrogate",
        "build_surrogate": "factformer.surrogate",
        "load": "factformer.bundle",
        "rollout": "factformer.rollout",
        "simulate": "factformer.pdes",
        "fit": "factformer.training",
        "export": "factformer.export.exporting",
        "study": "factformer.studies.running",
    },
)
