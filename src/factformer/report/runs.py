"""What a report is made of: finished runs with their numbers and a few roll-outs, from memory or disk."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import yaml

from factformer import catalog
from factformer.errors import UserError
from factformer.grid import Grid
from factformer.problem import Field, Problem
from factformer.report.planes import Array
from factformer.report.style import PROTOCOL_LABELS

ROLLOUTS_FILE = "rollouts.npz"


@dataclass(frozen=True)
class Rollout:
    """One sample: true and predicted frames ``(frame, *grid, channel)`` in physical units.

    ``context`` holds the frames that the surrogate saw; a report shows it for steady problems.
    """

    truth: Array
    prediction: Array
    context: Array | None = None

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
    roll-outs; ``grid`` is the one they lie on; ``kernels`` maps captions to square kernel matrices to show.
    """

    name: str
    evaluation: Mapping[str, Any]
    rollouts: Sequence[Rollout] = ()
    fields: Sequence[Field] = ()
    config: Mapping[str, Any] = field(default_factory=dict)
    command: str = ""
    protocol: str = ""
    problem: Problem | None = None
    grid: Grid | None = None
    kernels: Mapping[str, Array] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if "fields" not in self.evaluation:
            raise UserError(f"the evaluation of {self.name!r} has no 'fields'; run `factformer evaluate` again")
        if not self.fields and self.problem is not None:
            object.__setattr__(self, "fields", self.problem.state)
        if self.grid is None and self.problem is not None:
            object.__setattr__(self, "grid", self.problem.grid)
        channels = sum(f.num_channels for f in self.fields)
        for rollout in self.rollouts:
            if rollout.truth.shape[-1] != channels:
                raise UserError(
                    f"{self.name!r}: fields name {channels} channels, the roll-outs hold {rollout.truth.shape[-1]}"
                )

    @property
    def label(self) -> str:
        """The name with the protocol's short form, such as ``factformer (LM)``."""
        short = PROTOCOL_LABELS.get(self.protocol, self.protocol)
        return f"{self.name} ({short})" if short and short != "steady" else self.name


def load_run(folder: str | Path, *, kernels: bool = True) -> ReportRun:
    """A run folder that `factformer evaluate` has been over: numbers, roll-outs, config and kernels."""
    path = Path(folder)
    if not path.is_dir():
        raise UserError(f"{path} is not a run folder; give the --out folder of `factformer train`")
    evaluation_file = path / "evaluation.json"
    if not evaluation_file.exists():
        raise UserError(f"{path} has no evaluation.json; run `factformer evaluate {path} --data DIR` first")
    evaluation = _read_json(evaluation_file)
    config = _read_yaml(path / "config.yaml")
    problem = _read_problem(path / "bundle" / "bundle.json")
    stored = read_rollouts(path / ROLLOUTS_FILE)
    grid = stored.get("grid")
    if problem is not None and grid is not None:  # evaluated at another resolution than trained
        problem = problem.with_grid(grid)
    fields = stored.get("fields") or (problem.state if problem is not None else ())
    learned: dict[str, Array] = {}
    name = str((config.get("model") or {}).get("name") or evaluation.get("model") or path.name)
    # To draw kernels the model must run; numbers and roll-outs of a user's own are shown without its code.
    if kernels and "context" in stored and problem is not None and name in catalog.names("models"):
        from factformer.report.kernels import learned_kernels

        learned = learned_kernels(path / "bundle", stored["context"])
    return ReportRun(
        name=name,
        evaluation=evaluation,
        rollouts=stored.get("rollouts", ()),
        fields=fields,
        config=config,
        command="\n".join(_commands(path, evaluation)),
        protocol=str((config.get("protocol") or {}).get("name") or ""),
        problem=problem,
        grid=grid,
        kernels=learned,
    )


def _commands(path: Path, evaluation: Mapping[str, Any]) -> list[str]:
    """How the run was trained and, if by a command of its own, evaluated."""
    environment = path / "environment.json"
    trained = str(_read_json(environment).get("command") or "") if environment.exists() else ""
    evaluated = str(evaluation.get("command") or "")
    return [*[trained] * bool(trained), *[evaluated] * evaluated.startswith("factformer evaluate")]


def series_indices(runs: Sequence[ReportRun]) -> list[int]:
    """Which colour each run has: one per model, so that its protocols share it and differ by their dashes.

    Where a model appears twice under one protocol, such as with other seeds, every run has its own.
    """
    keys = [(run.name, run.protocol) for run in runs]
    if len(set(keys)) < len(keys):
        return list(range(len(runs)))
    models = list(dict.fromkeys(run.name for run in runs))
    return [models.index(run.name) for run in runs]


def unique_names(runs: Sequence[ReportRun]) -> list[str]:
    """A label for each run; those that would read the same are numbered."""
    labels = [run.label for run in runs]
    return [
        f"{text} #{labels[: i + 1].count(text)}" if labels.count(text) > 1 else text for i, text in enumerate(labels)
    ]


def read_rollouts(path: Path) -> dict[str, Any]:
    """Roll-outs, fields, context and grid of the file that evaluation writes; empty when there is none."""
    if not path.exists():
        return {}
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        truth, prediction = (arrays[name].astype(np.float32) for name in ("truth", "prediction"))
        described, grid = (json.loads(str(arrays[name])) if name in arrays else None for name in ("fields", "grid"))
    except (OSError, ValueError, KeyError, BadZipFile) as error:
        raise UserError(f"{path} is not readable ({error}); run `factformer evaluate` again") from None
    context = arrays["context"].astype(np.float32) if "context" in arrays else None
    seen = [None] * len(truth) if context is None else list(context)
    found: dict[str, Any] = {"rollouts": [Rollout(t, p, c) for t, p, c in zip(truth, prediction, seen, strict=True)]}
    if described is not None:
        found["fields"] = _parse_fields(described, truth.shape[-1])
    if grid is not None:
        found["grid"] = Grid.from_dict(grid)
    if context is not None:
        found["context"] = context
    return found


def _parse_fields(described: Any, num_channels: int) -> tuple[Field, ...]:
    """``[["velocity", 3]]``, ``{"velocity": 3}`` or plain names of one channel each."""
    items = list(described.items()) if isinstance(described, dict) else list(described)
    fields = tuple(Field(item) if isinstance(item, str) else Field(str(item[0]), int(item[1])) for item in items)
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
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} is not readable ({error}); make it again") from None
    if not isinstance(values, dict):
        raise UserError(f"{path} should hold a JSON object; make it again")
    return values


def _read_yaml(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise UserError(f"{path} is not valid YAML ({str(error).splitlines()[0]})") from None
    return values if isinstance(values, dict) else {}
