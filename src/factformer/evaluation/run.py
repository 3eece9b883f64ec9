"""Evaluating what lies on disk: a run folder or a bundle, against a stored dataset."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile

import numpy as np
import torch
from numpy.typing import NDArray

from factformer._support.documents import json_text, read_json, read_yaml
from factformer._support.files import clean_leftovers, regular_file, whole_file, write_together
from factformer._support.run_names import BUNDLE, CONFIG, EVALUATION, ROLLOUTS
from factformer.bundle import load
from factformer.data.dataset import Dataset
from factformer.data.normalization import Normalizer
from factformer.data.store import StoredDataset, open_dataset, parts_for
from factformer.errors import UserError
from factformer.evaluation.accuracy import (
    DEFAULT_STARTS,
    Progress,
    check_compatible,
    evaluate,
    predicted_batches,
    start_frames,
)
from factformer.evaluation.memory import memory_explained
from factformer.evaluation.own_metrics import Metric
from factformer.evaluation.provenance import provenance
from factformer.evaluation.results import Evaluation
from factformer.evaluation.timing import resolve_device
from factformer.problem import STEP, Problem
from factformer.surrogate import Surrogate
from factformer.training.cut_predictions import Sharing
from factformer.training.feed.steps import SteppedDataset

DRAWN = ("error-*.png", "spectrum-*.png", "rollout-*.png", "reduction-*.png", "parameter-*.png")
"""What is drawn of an evaluation, under ``figures/``."""
FIGURE_MARK = b"Software\0factformer"
"""What our figures hold near their beginning, by which they are known from others of the same name."""
SAMPLES = {"truth", "prediction", "context", "fields", "frame_dt", "trajectories", "grid"}
"""The arrays of `rollouts.npz`; those of a masked problem have a ``mask`` as well."""
SAME_MEASUREMENT = ("dataset_fingerprint", "split", "num_frames", "num_windows", "grid", "precision")


def chosen_data(path: str | Path, data: str | Path | None, split: str | None, problem: Problem) -> Dataset:
    """A split of ``data``, by default of what the run trained on (`open_held_out`), with what ``problem`` needs."""
    source = data if data is not None else trained_on(path)
    if data is None and not Path(source).exists():
        raise UserError(f"no data at {source}, where {path} trained: say where they are now with --data DIR")
    return open_held_out(source, problem, split)


def open_held_out(source: str | Path, problem: Problem, split: str | None = None) -> StoredDataset:
    """A split of ``source`` with what ``problem`` needs: by default ``test`` of a folder; a file has one of its own."""
    split = split or (None if Path(source).is_file() else "test")
    found = open_dataset(source, split)
    changes = parts_for(found, problem)
    return open_dataset(source, split, **changes) if changes else found


def evaluate_run(
    path: str | Path,
    data: str | Path | None = None,
    *,
    split: str | None = None,
    out: str | Path | None = None,
    num_frames: int | None = None,
    num_starts: int = DEFAULT_STARTS,
    stride: int | None = None,
    batch_size: int | None = None,
    device: torch.device | str | None = None,
    precision: str = "32-true",
    num_samples: int = 4,
    timing: bool = True,
    sharing: Sharing = Sharing(),  # noqa: B008 - immutable
    overwrite: bool = False,
    progress: Progress | None = None,
    metrics: Mapping[str, Metric] | None = None,
) -> Evaluation:
    """`evaluate` of a run folder or bundle, with its provenance.

    Writes ``evaluation.json`` and, of ``num_samples`` trajectories, ``rollouts.npz`` into ``out``, by default the
    run folder; a bundle without a run folder is left as it is. ``data`` defaults to the test split of the folder that
    the run trained on; the windows of a single file that it trained on are evaluated only if ``data`` or ``split``
    asks for them. A surrogate for several time steps is evaluated on every ``stride``-th frame. ``sharing`` says over
    how many processes its grid is cut. An evaluation on other data or settings is replaced, with what was drawn of it,
    only with ``overwrite``; files that no evaluation wrote are never replaced.
    """
    began = time.perf_counter()
    surrogate = load(path)
    sharing.join(surrogate)
    folder = Path(out) if out is not None else run_folder(path)
    if folder is not None:
        check_writable(folder)
        check_ours(folder)
        clean_leftovers(folder)
        clean_leftovers(folder / "figures")
    dataset: Dataset = chosen_data(path, data, split, surrogate.problem)
    if stride is not None:
        if STEP not in surrogate.problem.parameters:
            raise UserError(f"{path} is for one time step: leave out --stride, which is for surrogates of several")
        dataset = SteppedDataset(dataset, stride)
    if data is None and split is None and Path(file := trained_on(path)).is_file():
        raise UserError(
            f"{path} trained on the one file {file}: name the data to evaluate on with --data, "
            f"or pass --split {dataset.split} to evaluate on what it trained on"
        )
    if folder is not None and not overwrite:
        frames = num_frames or surrogate.problem.horizon
        check_compatible(surrogate, dataset, frames)
        check_replaceable(
            folder / EVALUATION,
            {
                "dataset_fingerprint": dataset.fingerprint,
                "split": dataset.split,
                "num_frames": frames,
                "num_windows": dataset.num_trajectories * len(start_frames(surrogate, dataset, frames, num_starts)),
                "grid": list(dataset.problem.grid.shape),
                "precision": precision,
            },
        )
    with memory_explained("pass a smaller --batch-size or fewer --frames"), sharing.applied(surrogate):
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
            metrics=metrics,
        )
        arrays = None
        if folder is not None and num_samples:
            arrays = sample_arrays(surrogate, dataset, result.num_frames, num_samples, precision)
    device, seed = resolve_device(device), surrogate.provenance.get("seed")
    seed = seed if isinstance(seed, int) and seed >= 0 else None
    if result.trajectories is not None and num_samples:
        shown = replace(result.trajectories, shown=shown_trajectories(dataset, num_samples))
        result = replace(result, trajectories=shown)
    result = replace(result, **provenance(seed=seed, seconds=time.perf_counter() - began, device=device))
    if folder is not None:
        text, writers = json_text(result.to_dict()), dict[Path, Callable[[Path], object]]()
        if arrays is not None:
            writers[folder / ROLLOUTS] = lambda path: _save_arrays(path, arrays)
        writers[folder / EVALUATION] = lambda path: path.write_text(text, encoding="utf-8")
        # The old numbers go first and the new ones come last: beside roll-outs and figures of others they never are.
        write_together(writers, retired=[folder / EVALUATION, *drawn_files(folder)])
    return result


def _fits_half(normalizer: Normalizer) -> bool:
    """Whether half precision shows fields of such means and deviations: neither overflow nor a staircase."""
    level, spread = normalizer.state_mean.abs(), normalizer.deviation
    return bool(((level + 20 * spread < 6e4) & (spread > 1e-3) & (level < 100 * spread)).all())


def save_samples(
    path: Path, surrogate: Surrogate, dataset: Dataset, num_frames: int, num_samples: int, precision: str
) -> None:
    """Write `sample_arrays` to ``path``."""
    with whole_file(path) as partial:
        _save_arrays(partial, sample_arrays(surrogate, dataset, num_frames, num_samples, precision))


def _save_arrays(path: Path, arrays: dict[str, NDArray[Any]]) -> None:
    np.savez_compressed(path, allow_pickle=False, **arrays)


def sample_arrays(
    surrogate: Surrogate, dataset: Dataset, num_frames: int, num_samples: int, precision: str
) -> dict[str, NDArray[Any]]:
    """Truth and prediction ``(sample, frame, *grid, channel)`` of trajectories spread over the split.

    Three-dimensional fields are stored in half precision where it can hold them: the file is there to look at.
    """
    check_compatible(surrogate, dataset, num_frames)
    chosen = shown_trajectories(dataset, num_samples)
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
    masks = [one.batch.mask for one in batches if one.batch.mask is not None]
    if masks:
        arrays["mask"] = torch.cat(masks).cpu().numpy()
    fields = json.dumps([[item.name, item.num_channels] for item in surrogate.problem.state])
    return arrays | {
        "fields": np.array(fields),
        "frame_dt": np.array(batches[0].batch.frame_dt(surrogate.problem)),
        "trajectories": np.array(chosen),
        "grid": np.array(json.dumps(dataset.problem.grid.to_dict())),
    }


def shown_trajectories(dataset: Dataset, num_samples: int) -> list[int]:
    """Trajectories spread evenly over the split or, where they have parameters, in the order of the first of these."""
    total = dataset.num_trajectories
    order = list(range(total))
    if dataset.problem.parameters:
        order = dataset.read(slice(None), part="parameters")[:, 0].argsort(stable=True).tolist()
    count = min(num_samples, total)
    return [order[round(i * (total - 1) / max(count - 1, 1))] for i in range(count)]


def drawn_files(folder: Path) -> list[Path]:
    """Roll-outs and figures of an earlier evaluation: beside new numbers they would pass for theirs."""
    figures = [path for name in DRAWN for path in sorted((folder / "figures").glob(name)) if is_our_figure(path)]
    return [folder / ROLLOUTS, *figures]


def is_our_figure(path: Path) -> bool:
    """Whether a figure was drawn by this package."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return FIGURE_MARK in file.read(4096)


def run_folder(path: str | Path) -> Path | None:
    """The run folder that ``path`` is, or that its bundle lies in; none for a bundle on its own."""
    for folder in (Path(path), Path(path).parent):
        if (folder / CONFIG).is_file() and (folder / BUNDLE).is_dir():
            return folder
    return None


def trained_on(path: str | Path) -> str:
    """The dataset that a run was trained on, from its configuration."""
    folder = run_folder(path)
    if folder is not None:
        section = read_yaml(folder / CONFIG).get("data")
        if isinstance(section, dict) and isinstance(section.get("path"), str) and section["path"]:
            return str(section["path"])
    raise UserError(f"{path} does not say what it was trained on: name the dataset with --data DIR")


def check_writable(folder: Path) -> None:
    """Raise where results cannot be written into ``folder``: better before they are computed than after."""
    there = next(path for path in (folder, *folder.parents) if path.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise UserError(f"cannot write results into {folder}: name another folder for them with --out DIR")


def check_ours(folder: Path) -> None:
    """Raise where a file that `evaluate_run` would write is there already and is not of an evaluation."""
    require_ours(
        {
            folder / EVALUATION: lambda path: set(SAME_MEASUREMENT) <= set(read_json(path)),
            folder / ROLLOUTS: lambda path: archive_members(path) - {"mask"} == SAMPLES,
        },
        "an evaluation",
    )


def require_ours(files: Mapping[Path, Callable[[Path], bool]], what: str) -> None:
    """Raise where one of the files is there and its test says that it is not of ``what``."""
    for path, is_ours in files.items():
        if path.exists() and not is_ours(path):
            raise UserError(
                f"{path} is not of {what} and is not replaced: move it away or name another folder with --out DIR"
            )


def archive_members(path: Path) -> set[str]:
    """Names of the arrays in an npz file; none where it is no such file."""
    try:
        with ZipFile(regular_file(path)) as file:
            return {name.removesuffix(".npy") for name in file.namelist()}
    except (BadZipFile, OSError, NotImplementedError):
        return set()


def check_replaceable(path: Path, result: dict[str, Any]) -> None:
    """Raise unless ``path`` is free or holds the same measurement, made again."""
    if not path.is_file():
        return
    old = read_json(path)
    changed = [key for key in SAME_MEASUREMENT if old.get(key) != result[key]]
    if changed:
        raise UserError(
            f"{path} holds another evaluation (its {changed[0]} is {old.get(changed[0])!r}): "
            "pass --overwrite to replace it or --out DIR to keep both"
        )
