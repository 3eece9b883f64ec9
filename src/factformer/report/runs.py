"""What a report is made of: finished runs with their numbers and a few roll-outs, from memory or disk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from factformer import catalog
from factformer._support.documents import read_json, read_yaml
from factformer._support.run_names import BUNDLE, CONFIG, ENVIRONMENT, EVALUATION, ROLLOUTS, SOLVER
from factformer.errors import UserError
from factformer.evaluation.results import Evaluation, read_evaluation
from factformer.evaluation.solver.results import SolverBenchmark, read_solver_benchmark
from factformer.grid import Grid
from factformer.problem import Field, Problem
from factformer.report.planes import Array
from factformer.report.samples import Rollout, Samples, read_rollouts
from factformer.report.style import PROTOCOL_LABELS
from factformer.zoo.description import DESCRIPTION, read_problem


@dataclass(frozen=True)
class ReportRun:
    """One model in a report.

    ``fields`` names the channels of the roll-outs; ``grid`` is the one they lie on; ``kernels`` maps captions to square
    kernel matrices to show; ``solver`` is the benchmark against the solver, if there was one.
    """

    name: str
    evaluation: Evaluation
    rollouts: Sequence[Rollout] = ()
    fields: Sequence[Field] = ()
    config: Mapping[str, Any] = field(default_factory=dict)
    command: str = ""
    protocol: str = ""
    problem: Problem | None = None
    grid: Grid | None = None
    kernels: Mapping[str, Array] = field(default_factory=dict)
    solver: SolverBenchmark | None = None
    folder: str = ""
    """The name of its folder."""

    def __post_init__(self) -> None:
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
    def sample_labels(self) -> list[str]:
        """What tells the roll-outs apart: their numbers and, where they are known, their parameters."""
        known = self.evaluation.trajectories
        labels = [] if known is None else known.labels()
        if len(labels) != len(self.rollouts):
            labels = [""] * len(self.rollouts)
        return [f"{index}: {text}" if text else str(index) for index, text in enumerate(labels, start=1)]

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
    if not (path / EVALUATION).exists():
        raise UserError(f"{path} has no {EVALUATION}; run `factformer evaluate {path} --data DIR` first")
    evaluation = read_evaluation(path / EVALUATION)
    samples = read_rollouts(path / ROLLOUTS)
    _check_same(path, evaluation, samples)
    config_file = path / CONFIG
    config = read_yaml(config_file) if config_file.exists() else {}
    problem = read_problem(path / BUNDLE) if (path / BUNDLE / DESCRIPTION).exists() else None
    if problem is not None and samples.grid is not None:  # evaluated at another resolution than trained
        if samples.grid.num_axes != problem.grid.num_axes:
            raise UserError(
                f"{path}: roll-outs and bundle differ in the number of axes; run `factformer evaluate` again"
            )
        problem = problem.with_grid(samples.grid)
    learned: dict[str, Array] = {}
    name = _name_in(config, "model", config_file) or evaluation.model or path.name
    # To draw kernels the model must run; numbers and roll-outs of a user's own are shown without its code.
    if kernels and samples.context is not None and problem is not None and name in catalog.names("models"):
        from factformer.report.kernels import learned_kernels

        learned = learned_kernels(path / BUNDLE, samples.context)
    return ReportRun(
        name=name,
        evaluation=evaluation,
        rollouts=samples.rollouts,
        fields=samples.fields or (problem.state if problem is not None else ()),
        config=config,
        command="\n".join(_commands(path, evaluation)),
        protocol=_name_in(config, "protocol", config_file),
        problem=problem,
        grid=samples.grid,
        kernels=learned,
        solver=read_solver_benchmark(path / SOLVER) if (path / SOLVER).exists() else None,
        folder=path.resolve().name,
    )


def _check_same(path: Path, evaluation: Evaluation, samples: Samples) -> None:
    """Raise where roll-outs are not of this evaluation."""
    frames = {len(rollout.truth) for rollout in samples.rollouts}
    if frames - {evaluation.num_frames} or (
        samples.fields and {f.name for f in samples.fields} != set(evaluation.fields)
    ):
        raise UserError(
            f"{path / ROLLOUTS} has other frames or fields than {EVALUATION}; run `factformer evaluate` again"
        )


def _name_in(config: Mapping[str, Any], section: str, file: Path) -> str:
    """The name that a section of a configuration has; empty where it has none."""
    values = config.get(section)
    name = values.get("name") if isinstance(values, dict) else values
    if name is None:
        return ""
    if not isinstance(name, str):
        raise UserError(f"{file}: {section}.name should be a text; is it the config.yaml of a run?")
    return name


def _commands(path: Path, evaluation: Evaluation) -> list[str]:
    """How the run was trained and, if by a command of its own, evaluated."""
    file = path / ENVIRONMENT
    trained = (read_json(file).get("command") or "") if file.exists() else ""
    if not isinstance(trained, str):
        raise UserError(f"{file}: command should be a text; is it the environment.json of a run?")
    evaluated = evaluation.command or ""
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
    """A label for each run; those that would read the same are told apart."""
    return told_apart(runs, [run.label for run in runs])


def told_apart(runs: Sequence[ReportRun], names: Sequence[str]) -> list[str]:
    """``names`` of runs; models of one protocol that occur several times have their folders beside them.

    Where folders are not known or not different, they are numbered.
    """
    keys, found = [(run.name, run.protocol) for run in runs], []
    for i, (run, name) in enumerate(zip(runs, names, strict=True)):
        folders = [other.folder for other, key in zip(runs, keys, strict=True) if key == keys[i]]
        if len(folders) == 1:
            found.append(name)
        elif all(folders) and len(set(folders)) == len(folders):
            found.append(f"{name}, {run.folder}")
        else:
            found.append(f"{name} #{keys[: i + 1].count(keys[i])}")
    return found
