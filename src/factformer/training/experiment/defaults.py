"""An experiment for any data, without a recipe: what the model declares, as far as the trajectories allow.

`factformer.fit` and ``factformer train --data DIR`` are made of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from factformer.config import assignment
from factformer.data.dataset import Dataset
from factformer.data.store import open_dataset
from factformer.errors import UserError
from factformer.models._backbone import Backbone, ModelConfig, backbone_of
from factformer.surrogate import model_config
from factformer.training.experiment.definition import Experiment, assigned
from factformer.training.experiment.spacing import choose_spacing

OURS = "factformer_plus"
UPDATES = 1000
LONG = 3000
"""Updates from which on a model's defaults for long training are taken."""


def default_experiment(
    dataset: Dataset,
    model: str | ModelConfig | type[Backbone],
    updates: int,
    assignments: Sequence[str] = (),
    say: Callable[[str], None] = lambda line: None,
) -> Experiment:
    """Defaults that suit the data and the model, with ``"section.key=value"`` assignments on top.

    ``say`` hears which patch and stride were chosen from the data, where that is more than 1.
    """
    spacing = choose_spacing(dataset, model_config(model), assignments)
    if spacing.line:
        say(spacing.line)
    assignments = [*spacing.assignments, *assignments]
    strides = _defaults(dataset, model, updates, 1).override(assignments).protocol.strides
    return _defaults(dataset, model, updates, strides[-1]).override(assignments)


def _defaults(dataset: Dataset, model: str | ModelConfig | type[Backbone], updates: int, stride: int) -> Experiment:
    """What the model declares, as far as every ``stride``-th frame allows."""
    problem, config = dataset.problem, model_config(model)
    room = -(-dataset.num_frames // stride) - problem.num_context_frames
    backbone = backbone_of(config)
    training = {"learning_rate": 1e-3, **backbone.default_training.get("short" if updates < LONG else "long", {})}
    if not problem.num_context_frames:
        training.pop("noise", None)  # it is for context frames
    steps = min(backbone.default_marching["marching_steps"], max(1, room // 2))
    chosen = {**config.model_dump(exclude_unset=True), "name": config.name}
    protocol: dict[str, Any] = {"name": "steady"}
    if problem.num_context_frames:
        pushed = max(0, min(backbone.default_marching["pushforward"], room // steps - 1))
        protocol = {"name": "latent_marching", "marching_steps": steps, "pushforward": pushed}
    every = max(1, updates // 10)
    in_time = {"residual": True} if problem.num_context_frames else {}
    sizes = backbone.default_sizes.get(problem.grid.num_axes, {}) if all(problem.grid.periodic) else {}
    return Experiment.parse(
        {
            "problem": problem.name,
            "model": {**in_time, **sizes, **chosen},
            "protocol": protocol,
            "training": {
                "updates": updates,
                "checkpoint_every": every,
                "validate_every": every,
                "log_every": max(1, updates // 100),
                **training,
            },
        }
    )


def prolonged(
    saved: Experiment,
    dataset: Dataset,
    model: str | ModelConfig | type[Backbone],
    updates: int,
    assignments: Sequence[str],
) -> Experiment:
    """The experiment of a run to resume for perhaps more updates: what followed from their number stays as it was."""
    declared = backbone_of(model_config(model)).default_training.values()
    keys = {
        "learning_rate",
        "log_every",
        "validate_every",
        "checkpoint_every",
        *(key for part in declared for key in part),
    }
    kept = [assignment(f"training.{key}", getattr(saved.training, key)) for key in sorted(keys)]
    kept += [assignment("model.patch", saved.model.patch), assignment("protocol.stride", saved.protocol.stride)]
    return default_experiment(dataset, model, updates, [*kept, *assignments])


def experiment_of_data(assignments: Sequence[str], say: Callable[[str], None] = lambda line: None) -> Experiment:
    """The experiment of the dataset that the assignments name as ``data.path``."""
    path, context, updates, model = (
        assigned(key, assignments) for key in ("data.path", "data.num_context_frames", "training.updates", "model.name")
    )
    if not path or not Path(str(path)).exists():
        raise UserError(f"there is no data at {path}; make it with `factformer generate` or `factformer convert`")
    dataset = open_dataset(str(path), "train", **({} if context is None else {"num_context_frames": context}))
    whole = type(updates) is int and updates > 0  # another value is refused by its name, below
    return default_experiment(dataset, model or OURS, updates if whole else UPDATES, assignments, say)
