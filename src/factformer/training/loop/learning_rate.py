"""The learning rate of an update: the schedule, and half of it after each roll-back."""

from __future__ import annotations

from factformer.training.experiment.config import TrainingConfig
from factformer.training.loop.optimizer.schedule import learning_rate_factor
from factformer.training.loop.state import Counters

UPDATES_TO_RISE_ANEW = 100
"""After a roll-back the learning rate rises over this many updates to where the schedule is, or a fifth of those that
are left: the optimiser may have to begin without momenta while the schedule, which may go by the clock, is at its
highest."""


def learning_rate_at(progress: float, config: TrainingConfig, counters: Counters) -> float:
    """That of the update after those that ``counters`` count, which begins at ``progress``."""
    factor = learning_rate_factor(
        config.schedule,
        progress,
        warmup=config.warmup,
        initial=config.initial_fraction,
        final=config.final_fraction,
    )
    if counters.attempt:
        rise = UPDATES_TO_RISE_ANEW
        if config.budget_minutes is None:
            rise = max(1, min(rise, (config.updates - counters.attempt_began) // 5))
        factor *= min(1.0, (counters.update + 1 - counters.attempt_began) / rise)
    return config.learning_rate * factor * 0.5**counters.attempt
