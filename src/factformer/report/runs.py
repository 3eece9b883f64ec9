"""What a report is made of: finished runs with their numbers and a few roll-outs, from memory or disk."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import yaml

from factformer.errors import UserError
from factformer.problem import Field, Problem
from factformer.report.planes import Array
from factformer.report.style import PROTOCOL_LABELS

ROLLOUTS_FILE = "rollouts.npz"


@dataclass(frozen=True)
class Rollout:
    """One sample: true and predicted frames ``(frame, *grid, channel)`` in physical units."""

    truth: Array
    prediction: Array

    def __post_init__(self) -> None:
        if self.truth.shape != self.prediction.shape or self.truth.ndim < 3:
            raise UserError(
                "a roll-out needs truth and prediction of one shape (frame, *grid, channel), got "
                f"{self.truth.shape} and {self.prediction.shape}"
            )


@dataclass(frozen=True)
class ReportRun:
    """One model in a report.

    ``evaluation`` is what ``factformer evaluate --json`` prints; ``fields`` names the channels of the
    roll-outs; ``kernels`` maps captions to square kernel matrices to show.
    """

    name: str
    evaluation: Mapping[str, Any]
    rollouts: Sequence[Rollout] = ()
    fields: Sequence[Field] = ()
    config: Mapping[str, Any] = field(default_factory=dict)
    command: str = ""
    protocol: str = ""
    problem: Problem | None = None
    kernels: Mapping[str, Array] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if "fields" not in self.evaluation:
            raise UserError(
                f"the evaluation of {self.name!r} has no 'fields'; run `factformer evaluate` again"
            )
        if not self.fields and self.problem is not None:
            object.__setattr__(self, "fields", self.problem.outputs)
        channels = sum(f.num_channels for f in self.fields)
        for rollout in self.rollouts:
            if rollout.truth.shape[-1] != channels:
                raise UserError(
                    f"{self.name!r}: fields name {channels} channels, the roll-outs hold "
                    f"{rollout.truth.shape[-1]}"
                )

    @property
    def label(self) -> str:
        """The name with the protocol's short form, such as ``factformer (LM)``."""
        short = PROTOCOL_LABELS.get(self.protocol, self.protocol)
        return f"{self.name} ({short})" if short and short != "steady" else self.name


def load_run(folder: str | Path) -> ReportRun:
    """A run folder that `factformer evaluate` has been over: numbers, roll-outs, config and problem."""
    path = Path(folder)
    if not path.is_dir():
        raise UserError(f"{path} is not a run folder; give the --out folder of `factformer train`")
    evaluation_file = path / "evaluation.json"
    if not evaluation_file.exists():
        raise UserError(f"{path} has no evaluation.json; run `factformer evaluate {path} --data DIR` first")
    evaluation = _read_json(evaluation_file)
    config = _read_yaml(path / "config.yaml")
    problem = _read_problem(path / "bundle" / "bundle.json")
    rollouts, fields = _read_rollouts(path / ROLLOUTS_FILE, problem)
    model = config.get("model") or {}
    protocol = config.get("protocol") or {}
    return ReportRun(
        name=str(model.get("name") or path.name),
        evaluation=evaluation,
        rollouts=rollouts,
        fields=fields,
        config=config,
        command=str(evaluation.get("command") or _repeat_command(config, path)),
        protocol=str(protocol.get("name") or ""),
        problem=problem,
    )


def unique_names(runs: Sequence[ReportRun]) -> list[str]:
    """A label for each run; those that would read the same are numbered."""
    labels = [run.label for run in runs]
    return [
        f"{text} #{labels[: i + 1].count(text)}" if labels.count(text) > 1 else text
        for i, text in enumerate(labels)
    ]


def save_rollouts(path: str | Path, truth: Array, prediction: Array, fields: Sequence[Field]) -> None:
    """Write samples ``(sample, frame, *grid, channel)`` as the file that `load_run` reads."""
    names = json.dumps([[f.name, f.num_channels] for f in fields])
    np.savez_compressed(path, truth=truth, prediction=prediction, fields=np.array(names))


def _read_rollouts(path: Path, problem: Problem | None) -> tuple[list[Rollout], tuple[Field, ...]]:
    known = problem.outputs if problem is not None else ()
    if not path.exists():
        return [], known
    try:
        with np.load(path, allow_pickle=False) as file:
            truth, prediction = (file[name].astype(np.float32) for name in ("truth", "prediction"))
            described = json.loads(str(file["fields"])) if "fields" in file else None
    except (OSError, ValueError, KeyError, BadZipFile) as error:
        raise UserError(f"{path} is not readable ({error}); run `factformer evaluate` again") from None
    fields = _parse_fields(described, truth.shape[-1]) if described is not None else known
    return [Rollout(t, p) for t, p in zip(truth, prediction, strict=True)], fields


def _parse_fields(described: Any, num_channels: int) -> tuple[Field, ...]:
    """``[["velocity", 3]]``, ``{"velocity": 3}`` or plain names of one channel each."""
    items = list(described.items()) if isinstance(described, dict) else list(described)
    fields = tuple(
        Field(item) if isinstance(item, str) else Field(str(item[0]), int(item[1])) for item in items
    )
    if sum(f.num_channels for f in fields) != num_channels:
        raise UserError(f"the roll-outs hold {num_channels} channels but their fields read {described}")
    return fields


def _read_problem(path: Path) -> Problem | None:
    if not path.exists():
        return None
    values = _read_json(path).get("problem")
    return Problem.from_dict(values) if isinstance(values, dict) else None


def _read_json(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise UserError(f"{path} is not readable ({error}); make it again") from None
    if not isinstance(values, dict):
        raise UserError(f"{path} should hold a JSON object; make it again")
    return values


def _read_yaml(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        values = yaml.safe_load(path.read_text())
    except yaml.YAMLError as error:
        raise UserError(f"{path} is not valid YAML ({str(error).splitlines()[0]})") from None
    return values if isinstance(values, dict) else {}


def _repeat_command(config: Mapping[str, Any], path: Path) -> str:
    recipe = str(config.get("recipe") or config.get("name") or "RECIPE")
    return f"factformer train {shlex.quote(recipe)} --config {shlex.quote(str(path / 'config.yaml'))}"
