"""Pieces of a result file: the command that trains the same, errors without curves, a thinned log, a headline."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from factformer import recipes
from factformer.training.experiment.definition import Experiment, differences, flat

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


def beyond(result: Mapping[str, Any]) -> dict[str, Any]:
    """What is kept of roll-outs that go on for longer than the problem asks: where do they lead?"""
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
