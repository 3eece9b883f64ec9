"""Making datasets: what they will hold, the solver's loop, and where the frames go.

Names are loaded when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from factformer._support.lazy import load_lazily

if TYPE_CHECKING:
    from factformer.data.generate.plan import trajectory_seed as trajectory_seed
    from factformer.data.generate.run import generate as generate

__all__ = load_lazily(
    __name__,
    {
        "generate": "factformer.data.generate.run",
        "trajectory_seed": "factformer.data.generate.plan",
    },
)
