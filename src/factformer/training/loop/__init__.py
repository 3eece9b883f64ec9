"""The training loop: one update after the other, validation, roll-back and the end of a run.

Names are loaded when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from factformer._support.lazy import load_lazily

if TYPE_CHECKING:
    from factformer.training.loop.machine import Machine as Machine
    from factformer.training.loop.outcome import Outcome as Outcome
    from factformer.training.loop.train import train as train

__all__ = load_lazily(
    __name__,
    {
        "Machine": "factformer.training.loop.machine",
        "Outcome": "factformer.training.loop.outcome",
        "train": "factformer.training.loop.train",
    },
)
