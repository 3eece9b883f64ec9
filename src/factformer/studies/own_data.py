"""Runs of a study on a user's own data, without a recipe: each does what ``factformer train --data DIR`` does."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from factformer.config import assignment, fingerprint
from factformer.data.store import open_dataset
from factformer.errors import UserError
from factformer.studies.cells import Training
from factformer.training.experiment.defaults import experiment_of_data
from factformer.training.experiment.definition import Experiment

HELD_OUT = ("test", "valid")


def held_out_split(folder: str | Path) -> str:
    """The split that runs are judged on: ``test``, or ``valid`` where there is no other."""
    path = Path(folder)
    if not path.is_dir():
        raise UserError(f"there is no folder {path}: --data names a folder with train.hdf5 and test.hdf5")
    for split in HELD_OUT:
        if any([*path.glob(f"{split}.*"), *path.glob(f"{split}/*"), *path.glob(f"data/{split}/*")]):
            return split
    raise UserError(f"{path} has no test.hdf5 and no valid.hdf5 to judge the runs by; add one of them")


def own_data_name(folder: str | Path) -> str:
    """What the data are, not where they lie: their name and a hash of the splits that a run sees."""
    prints = {split: open_dataset(folder, split).fingerprint for split in ("train", held_out_split(folder))}
    return f"{Path(folder).name}-{fingerprint(prints)[:8]}"


def own_experiment(run: Training, *, minutes: float | None, assignments: Sequence[str] = ()) -> Experiment:
    """The experiment of a run on the folder ``run.data``; ``minutes`` of training, if given, replace its updates."""
    changes = [assignment("data.path", str(run.data))]
    changes += [f"model.name={run.model}"] if run.model else []
    changes += [f"protocol.name={run.protocol}"] if run.protocol else []
    changes += [] if minutes is None else [f"training.budget_minutes={minutes}"]
    return experiment_of_data([*changes, *run.settings, *assignments])
