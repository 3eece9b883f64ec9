"""Evaluating what lies on disk: a run folder or a bundle, against a stored dataset."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from numpy.typing import NDArray

from factformer.bundle import load
from factformer.data.normalization import Normalizer
from factformer.data.store import Dataset, StoredDataset, open_dataset
from factformer.errors import UserError
from factformer.evaluation.accuracy import (
    DEFAULT_STARTS,
    Progress,
    check_compatible,
    evaluate,
    predicted_batches,
    start_frames,
)
from factformer.evaluation.provenance import provenance, write_json
from factformer.evaluation.timing import resolve_device
from factformer.files import whole_file
from factformer.surrogate import Surrogate

EVALUATION_FILE = "evaluation.json"
ROLLOUTS_FILE = "rollouts.npz"
DRAWN = ("error-*.png", "spectrum-*.png", "rollout-*.png")
"""What is drawn of an evaluation, under ``figures/``."""
SAME_MEASUREMENT = ("dataset_fingerprint", "split", "num_frames", "num_windows", "grid", "precision")


def chosen_data(path: str | Path, data: str | Path | None, split: str | None) -> Dataset:
    """A split of ``data``, by default of what the run trained on (`open_held_out`)."""
    source = data if data is not None else trained_on(path)
    if data is None and not Path(source).exists():
        raise UserError(f"no data at {source}, where {path} trained: say where they are now with --data DIR")
    return open_held_out(source, split)


def open_held_out(source: str | Path, split: str | None = None) -> StoredDataset:
    """A split of ``source``: by default ``test`` of a folder, while a file has one of its own."""
    return open_dataset(source, split or (None if Path(source).is_file() else "test"))


def evaluate_run(
    path: str | Path,
    data: str | Path | None = None,
    *,
    split: str | None = None,
    out: str | Path | None = None,
    num_frames: int | None = None,
    num_starts: int = DEFAULT_STARTS,
    batch_size: int | None = None,
    device: torch.device | str | None = None,
    precision: str = "32-true",
    num_samples: int = 4,
    timing: bool = True,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """`evaluate` of a run folder or bundle, with its provenance.

    Writes ``evaluation.json`` and, of ``num_samples`` trajectories, ``rollouts.npz`` into ``out``, by default the
    run folder; a bundle without a run folder is left as it is. ``data`` defaults to the test split of the folder that
    the run trained on; the windows of a single file that it trained on are evaluated only if ``data`` or ``split``
    asks for them. An evaluation on other data or settings is replaced, with what was drawn of it, only with
    ``overwrite``.
    """
    began = time.perf_counter()
    surrogate = load(path)
    folder = Path(out) if out is not None else run_folder(path)
    if folder is not None:
        check_writable(folder)
    dataset = chosen_data(path, data, split)
    if data is None and split is None and Path(file := trained_on(path)).is_file():
        raise UserError(
            f"{path} trained on the one file {file}: name the data to evaluate on with --data, "
            f"or pass --split {dataset.split} to evaluate on what it trained on"
        )
    if folder is not None and not overwrite:
        frames = num_frames or surrogate.problem.horizon
        check_compatible(surrogate, dataset, frames)
        check_replaceable(
            folder / EVALUATION_FILE,
            {
                "dataset_fingerprint": dataset.fingerprint,
                "split": dataset.split,
                "num_frames": frames,
                "num_windows": dataset.num_trajectories * len(start_frames(surrogate, dataset, frames, num_starts)),
                "grid": list(dataset.problem.grid.shape),
                "precision": precision,
            },
        )
    result = evaluate(
        surrogate,
        dataset,
        num_frames=num_frames,
        num_starts=num_starts,
        batch_size=batch_size,
        device=device,
        precision=precision,
        timing=timing,
        progress=progress,
    )
    device = resolve_device(device)
    seed = surrogate.provenance.get("seed")
    result |= provenance(seed=seed, seconds=time.perf_counter() - began, device=device)
    if folder is not None:
        if (folder / EVALUATION_FILE).exists():
            remove_drawn(folder)
        if num_samples:
            save_samples(folder / ROLLOUTS_FILE, surrogate, dataset, result["num_frames"], num_samples, precision)
        write_json(folder / EVALUATION_FILE, result)
    return result


def _fits_half(normalizer: Normalizer) -> bool:
    """Whether half precision shows fields of such means and deviations: neither overflow nor a staircase."""
    level, spread = normalizer.state_mean.abs(), normalizer.deviation
    return bool(((level + 20 * spread < 6e4) & (spread > 1e-3) & (level < 100 * spread)).all())


def save_samples(
    path: Path, surrogate: Surrogate, dataset: Dataset, num_frames: int, num_samples: int, precision: str
) -> None:
    """Write truth and prediction ``(sample, frame, *grid, channel)`` of trajectories spread over the split.

    Three-dimensional fields are stored in half precision where it can hold them: the file is there to look at.
    """
    check_compatible(surrogate, dataset, num_frames)
    count = min(num_samples, dataset.num_trajectories)
    chosen = [round(i * (dataset.num_trajectories - 1) / max(count - 1, 1)) for i in range(count)]
    device = next(surrogate.parameters()).device
    starts = start_frames(surrogate, dataset, num_frames, 1)
    batches = list(predicted_batches(surrogate, dataset, num_frames, starts, 1, device, precision, chosen))
    found = {
        "context": [one.batch.seen for one in batches],
        "truth": [one.truth for one in batches],
        "prediction": [one.prediction for one in batches],
    }
    arrays: dict[str, NDArray[Any]] = {name: torch.cat(parts).float().cpu().numpy() for name, parts in found.items()}
    if dataset.problem.grid.num_axes > 2 and _fits_half(surrogate.normalizer):
        with np.errstate(over="ignore"):  # a prediction that left all bounds is infinite then
            arrays = {name: values.astype(np.float16) for name, values in arrays.items()}
    fields = json.dumps([[item.name, item.num_channels] for item in surrogate.problem.state])
    arrays |= {
        "fields": np.array(fields),
        "frame_dt": np.array(surrogate.problem.frame_dt),
        "trajectories": np.array(chosen),
        "grid": np.array(json.dumps(dataset.problem.grid.to_dict())),
    }
    with whole_file(path) as partial:
        np.savez_compressed(partial, allow_pickle=False, **arrays)


def remove_drawn(folder: Path) -> None:
    """Remove the roll-outs and figures of an earlier evaluation: beside new numbers they would pass for theirs."""
    for path in (folder / ROLLOUTS_FILE, *(path for name in DRAWN for path in (folder / "figures").glob(name))):
        path.unlink(missing_ok=True)


def run_folder(path: str | Path) -> Path | None:
    """The run folder that ``path`` is, or that its bundle lies in; none for a bundle on its own."""
    for folder in (Path(path), Path(path).parent):
        if (folder / "config.yaml").is_file() and (folder / "bundle").is_dir():
            return folder
    return None


def trained_on(path: str | Path) -> str:
    """The dataset that a run was trained on, from its configuration."""
    folder = run_folder(path)
    if folder is not None:
        config = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
        data = config.get("data", {}).get("path") if isinstance(config, dict) else None
        if data:
            return str(data)
    raise UserError(f"{path} does not say what it was trained on: name the dataset with --data DIR")


def check_writable(folder: Path) -> None:
    """Raise where results cannot be written into ``folder``: better before they are computed than after."""
    there = next(path for path in (folder, *folder.parents) if path.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise UserError(f"cannot write results into {folder}: name another folder for them with --out DIR")


def check_replaceable(path: Path, result: dict[str, Any]) -> None:
    """Raise unless ``path`` is free or holds the same measurement, made again."""
    if not path.is_file():
        return
    try:
        old = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        return
    changed = [key for key in SAME_MEASUREMENT if old.get(key) != result[key]]
    if changed:
        raise UserError(
            f"{path} holds another evaluation (its {changed[0]} is {old.get(changed[0])!r}): "
            "pass --overwrite to replace it or --out DIR to keep both"
        )
