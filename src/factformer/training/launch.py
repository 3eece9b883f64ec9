"""From an experiment to a run: find the data, hold it against the problem, train."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from factformer import catalog
from factformer.data.agreement import describe_difference
from factformer.data.dataset import Dataset
from factformer.data.store import open_dataset, parts_for
from factformer.errors import UserError
from factformer.pdes import PDE, Settings, find_pde
from factformer.problem import Problem
from factformer.training.experiment.definition import Experiment
from factformer.training.loop.machine import Machine
from factformer.training.loop.outcome import Outcome
from factformer.training.loop.train import train
from factformer.training.runfolder.reporting import Reporter


def run_experiment(
    experiment: Experiment,
    out: str | Path,
    *,
    machine: Machine = Machine(),  # noqa: B008 - immutable
    resume: bool = False,
    overwrite: bool = False,
    max_minutes: float | None = None,
    command: str = "",
    reporter: Reporter | None = None,
) -> Outcome:
    """Train an experiment on the dataset at ``experiment.data.path`` and keep the run in ``out``."""
    machine.check()
    dataset, held_out = open_data(experiment)
    return train(
        experiment,
        dataset,
        held_out,
        folder=out,
        machine=machine,
        resume=resume,
        overwrite=overwrite,
        max_minutes=max_minutes,
        command=command,
        reporter=reporter,
    )


def wanted_problem(experiment: Experiment) -> Problem:
    """The problem of an experiment's PDE at the resolution that its data section names, or else its data have.

    Where a resolution is named, the data need not exist yet.
    """
    equation, size = find_pde(experiment.problem), experiment.data.resolution
    path = Path(experiment.data.path)
    if size is not None and not path.is_file() and not (experiment.data.path and _has_split(path, "train")):
        preset = equation.presets.get(experiment.data.preset)
        settings = Settings.parse(equation, preset.parameters if preset else {})
        shape = equation.shape_in(preset, size) if preset else equation.shape(size)
        return _with_context(replace(equation.problem(shape), parameters=tuple(settings.ranges)), experiment)
    data = open_dataset(path, "train")
    shape = data.problem.grid.shape
    if len(shape) not in equation.dimensions:  # refused later, with a word on what the data hold
        shape = equation.shape(shape[0])
    if size is not None:
        shape = _shape_of(equation, experiment.data.preset, size, len(shape))
    made_with = None
    if data.provenance.get("pde") == equation.name:
        made_with = Settings.parse(equation, data.provenance.get("parameters", {})).shared
    problem = replace(equation.problem(shape, made_with), parameters=data.problem.parameters)
    return _with_context(problem, experiment)


def described_problem(experiment: Experiment, shape: tuple[int, ...] | None = None) -> Problem:
    """The problem of an experiment on a grid of this shape (one number is for all axes); data are read where there are.

    A problem that is not of the catalog is described by its data.
    """
    known = experiment.problem in catalog.names("pdes")
    if known and experiment.data.resolution is None and not Path(experiment.data.path).exists():
        raise UserError("say how large the grid is: --set data.resolution=128, or --data with a dataset")
    problem = wanted_problem(experiment) if known else _problem_of(Path(experiment.data.path), experiment)
    if shape is None:
        return problem
    if known and len(shape) == 1:
        shape = _shape_of(find_pde(experiment.problem), experiment.data.preset, shape[0], problem.grid.num_axes)
    if len(shape) not in (1, problem.grid.num_axes):
        raise UserError(f"the grid of {problem.name!r} has {problem.grid.num_axes} axes, got {len(shape)} sizes")
    return problem.with_grid(problem.grid.resample(shape if len(shape) > 1 else shape[0]))


def _shape_of(equation: PDE, preset_name: str, size: int, num_axes: int) -> tuple[int, ...]:
    """The grid of so many axes at a resolution: that of the preset, the equation's own, or one of equal sides."""
    preset = equation.presets.get(preset_name)
    known = [equation.shape_in(preset, size)] if preset else []
    fitting = (shape for shape in (*known, equation.shape(size)) if len(shape) == num_axes)
    return next(fitting, (size,) * num_axes)


def _with_context(problem: Problem, experiment: Experiment) -> Problem:
    num_context = experiment.data.num_context_frames
    return problem if num_context is None else replace(problem, num_context_frames=num_context)


def open_data(experiment: Experiment) -> tuple[Dataset, Dataset | None]:
    """The training split, and the validation split where there is one; both must fit the problem.

    A problem that is not of the catalog is described by its data.
    """
    path = Path(experiment.data.path)
    make = f"`factformer convert FILE --out {path / 'train.hdf5'}`"
    known = experiment.problem in catalog.names("pdes")
    if known:
        size = f"--resolution {experiment.data.resolution} " if experiment.data.resolution else ""
        presets = list(find_pde(experiment.problem).presets)
        preset = experiment.data.preset if experiment.data.preset in presets or not presets else presets[0]
        make = f"`factformer generate {experiment.problem} --preset {preset} {size}--out {path}`"
    if not experiment.data.path or not path.exists():
        raise UserError(f"there is no data at {path}; make it with {make} or say where it is with --data")
    problem = wanted_problem(experiment) if known else _problem_of(path, experiment)
    changes = {"num_context_frames": problem.num_context_frames, "horizon": problem.horizon}
    splits: list[Dataset] = []
    for split in ("train", "valid"):
        if split == "valid" and not _has_split(path, split):
            continue
        found = open_dataset(path, split)
        chosen = parts_for(found, problem)
        if chosen:
            found = open_dataset(path, split, **chosen)
        try:
            found.require(problem)
        except UserError as error:
            advice = f"choose other --data or make it with {make}"
            if known and _differs_in_size_alone(experiment, found.problem):
                advice = f"--set data.resolution=null takes the data as they are; or {advice}"
            raise UserError(f"the {split} split of {path}: {error}; {advice}") from None
        dataset = open_dataset(path, split, **changes, **chosen)
        if dataset.num_trajectories < 1:
            raise UserError(f"the {split} split of {path} is empty; make it with {make}")
        splits.append(dataset)
    return splits[0], splits[1] if len(splits) > 1 else None


def _differs_in_size_alone(experiment: Experiment, found: Problem) -> bool:
    """Whether the data are of the experiment's PDE, but at another resolution than it names."""
    if experiment.data.resolution is None:
        return False
    return not describe_difference(wanted_problem(experiment.override(["data.resolution=null"])), found)


def _problem_of(path: Path, experiment: Experiment) -> Problem:
    """The problem that the data describe, if it is the one that the experiment names."""
    problem = open_dataset(path, "train").problem
    if problem.name != experiment.problem:
        raise UserError(
            f"the data at {path} are of the problem {problem.name!r}, and the training is of {experiment.problem!r}, "
            "which is no equation of the catalog: choose other --data, or another recipe"
        )
    size = experiment.data.resolution
    if size is not None and set(problem.grid.shape) != {size}:
        raise UserError(
            f"data.resolution={size}, but the data at {path} are on {problem.grid.shape} points; "
            "--set data.resolution=null takes them as they are"
        )
    return _with_context(problem, experiment)


def _has_split(path: Path, split: str) -> bool:
    return path.is_dir() and any([*path.glob(f"{split}.*"), *path.glob(f"{split}/*"), *path.glob(f"data/{split}/*")])
