"""What a training run is: its configuration, its options and the parts it is put together from.

Names are loaded when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from factformer._support.lazy import load_lazily

if TYPE_CHECKING:
    from factformer.training.experiment.config import DataConfig as DataConfig
    from factformer.training.experiment.config import TrainingConfig as TrainingConfig
    from factformer.training.experiment.definition import Experiment as Experiment
    from factformer.training.experiment.definition import parse_model as parse_model

__all__ = load_lazily(
    __name__,
    {
        "DataConfig": "factformer.training.experiment.config",
        "Experiment": "factformer.training.experiment.definition",
        "TrainingConfig": "factformer.training.experiment.config",
        "parse_model": "factformer.training.experiment.definition",
    },
)
