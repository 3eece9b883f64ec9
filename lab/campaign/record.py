"""Pieces of a result file: the command that trains the same, errors without curves, a thinned log, a headline."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from factformer import recipes
from factformer.data.dataset import Dataset
from factformer.problem import STEP, Problem
from factformer.studies.scales import DATA_SEED
from factformer.surrogate import Surrogate
from factformer.training.experiment.definition import Experiment, differences, flat
from lab.campaign.datasets import Data
from lab.campaign.entries import Entry

MAX_LOG_LINES = 40


def train_command(experiment: Experiment) -> str:
    """What to type to train the same: the recipe and every value in which the experiment differs from it."""
    name, protocol = experiment.model.name, experiment.protocol.name
    scale = experiment.scale
    base = recipes.build(experiment.recipe, scale, [f"model.name={name}", f"protocol.name={protocol}"])
    values = flat(experiment.model_dump(mode="json"))
    changed = [item.split(" ", 1)[0] for item in differences(base, experiment)]
    words = [f"--set {key}={text(values[key])}" for key in ("model.name", "protocol.name")]
    words += [f"--set {key}={text(values[key])}" for key in changed if not key.startswith("data.path")]
    return " ".join([f"factformer train {experiment.recipe} --scale {scale} --data {experiment.data.path}", *words])


def generate_command(entry: Entry, data: Data, problem: Problem, split: str, count: int) -> str:
    """What to type to make a split on a GPU: the preset of the recipe, and in what this dataset differs from it."""
    size, preset = problem.grid.shape[-1], recipes.build(entry.run.recipe, "paper").data.preset
    changes = {key: value for key, value in data.changes.items() if key != "parameters"}
    changes |= {f"parameters.{key}": value for key, value in data.changes.get("parameters", {}).items()}
    words = [f"factformer generate {problem.name} --preset {preset} --resolution {size}"]
    words += [f"--set {key}={value}" for key, value in changes.items()]
    words += [f"--split {split} --trajectories {count} --out data/{entry.data_name}-{size}"]
    return " ".join([*words, f"--seed {DATA_SEED} --device cuda"])


def text(value: Any) -> str:
    return json.dumps(value) if isinstance(value, (bool, list)) or value is None else str(value)


def short(result: Mapping[str, Any]) -> dict[str, Any]:
    """Errors of an evaluation without its curves."""
    keys = ("relative_l2", "relative_l2_final", "standard_error")
    return {
        "fields": {name: {key: field[key] for key in keys} for name, field in result["fields"].items()},
        "grid": result["grid"],
        "dataset_fingerprint": result["dataset_fingerprint"],
        "num_windows": result["num_windows"],
    }


def with_curve(result: Mapping[str, Any]) -> dict[str, Any]:
    """Errors of an evaluation with those of each frame, and how far apart the frames are."""
    found = short(result)
    for name, field in found["fields"].items():
        field["relative_l2_per_frame"] = result["fields"][name]["relative_l2_per_frame"]
    return {**found, "frame_dt": result["frame_dt"], "num_frames": result["num_frames"]}


def frames_on(surrogate: Surrogate, dataset: Dataset) -> int:
    """How many frames of a dataset are the time that the surrogate's problem asks for."""
    problem = surrogate.problem
    step = dataset.problem.frame_dt if STEP in problem.parameters else problem.frame_dt
    return max(1, int(problem.horizon * problem.frame_dt / step + 1e-6))


def beyond(result: Mapping[str, Any]) -> dict[str, Any]:
    """What is kept of roll-outs that are longer than the problem asks for."""
    keys = ("relative_l2_final", "standard_error_final", "relative_l2_per_frame", "correlation_time", "spectrum_error")
    kept = {name: {key: field[key] for key in keys if key in field} for name, field in result["fields"].items()}
    numbers = {key: result[key] for key in ("num_frames", "num_windows", "num_diverged", "dataset_fingerprint")}
    return {**numbers, "fields": kept}


def log_lines(path: Path) -> list[dict[str, Any]]:
    """Lines of the log, spread evenly where there are many; the last one is always there."""
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    step = -(-len(lines) // MAX_LOG_LINES) if lines else 1
    return lines[::-1][::step][::-1]


def headline(result: Mapping[str, Any]) -> str:
    """Errors and updates in one line."""
    errors = ", ".join(
        f"{name} {field['relative_l2']:.4f} ± {field['standard_error']:.4f} (last {field['relative_l2_final']:.4f})"
        for name, field in result["fields"].items()
    )
    return f"{errors}, {result['training']['updates']} updates"
