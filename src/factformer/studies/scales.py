"""What each scale means: the dataset, the experiment and the evaluation of a run.

``paper`` is the recipe at the paper's settings, ``small`` the recipe at its small ones. ``reduced`` keeps the
paper's models and protocols on smaller grids and fewer trajectories and trains every run for the same time. ``tiny``
shows that all of it works, on a CPU in seconds; its errors mean nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, get_args

from factformer import recipes
from factformer.config import assignment, fingerprint, unknown_name
from factformer.errors import UserError
from factformer.evaluation import benchmarks
from factformer.evaluation.cost import Case
from factformer.models import find_model
from factformer.pdes import Preset, find_pde
from factformer.protocols import config_class
from factformer.studies.cells import Scale, Training
from factformer.studies.own_data import held_out_split, own_data_name, own_experiment
from factformer.training.experiment.definition import Experiment

DEFAULT_MINUTES = 10.0
"""Training time of a run at reduced scale when no budget is given."""
DATA_SEED = 0

TINY_MODEL: dict[str, Any] = {
    "dim": 16,
    "depth": 2,
    "heads": 2,
    "head_dim": 8,
    "kernel_dim": 8,
    "modes": 3,
    "norm_groups": 4,
    "coarsening": 2,
    "dilations": [1, 2],
    "multipliers": [1, 1],
    "width": 8,
    "num_halvings": 2,
    "num_levels": 2,
    "skip_depth": 1,
}
"""Of these, a model is given those that it has."""
TINY_PROTOCOL: dict[str, Any] = {"pushforward": 1, "pushforward_from": 0.3, "curriculum": 0.3, "unroll": 2}
TINY_TRAINING: dict[str, Any] = {
    "updates": 4,
    "batch_size": 2,
    "log_every": 2,
    "validate_every": 4,
    "checkpoint_every": 2,
    "validation_windows": 1,
    "augment": False,
}


@dataclass(frozen=True)
class Size:
    """The dataset of a recipe at a scale, the context that fits it, and how it is evaluated."""

    preset: Preset
    num_context_frames: int | None = None
    num_frames: int | None = None
    num_starts: int = 4


def tiny_and_reduced() -> dict[tuple[str, str], Size]:
    """Datasets that are not the paper's; resolutions other than the default one are subsampled."""
    tiny = {"train": 2, "valid": 1, "test": 2}
    return {
        ("kolmogorov", "tiny"): Size(Preset(16, 32, 12, 1 / 16, tiny, 0.25, 5), 4, 4, 2),
        ("turbulence", "tiny"): Size(Preset(12, 12, 8, 0.05, tiny, 0.05, 5, {"dt": 0.01}), 3, 3, 2),
        ("smoke", "tiny"): Size(Preset(8, 8, 12, 0.75, tiny, 0.75, 5), 4, 4, 2),
        ("darcy", "tiny"): Size(Preset(15, 29, 1, 1.0, {"train": 4, "valid": 2, "test": 2}, 0.0, 8)),
        ("darcy_literature", "tiny"): Size(Preset(15, 29, 1, 1.0, {"train": 4, "valid": 2, "test": 2}, 0.0, 8)),
        ("kolmogorov_reynolds", "tiny"): Size(
            Preset(16, 32, 12, 1 / 16, tiny, 0.25, 5, {"reynolds": "100..400:log", "forcing_wavenumber": "3..5"}),
            4,
            4,
            2,
        ),
        ("obstacle", "tiny"): Size(
            Preset(16, 16, 12, 0.25, tiny, 0.25, 5, {"viscosity": "0.02..0.04", "penalisation": 0.025}), 4, 4, 2
        ),
        ("navier_stokes_literature", "tiny"): Size(Preset(16, 32, 12, 1.0, tiny, 1.0, 5, {"viscosity": 1e-3}), 4, 4, 2),
        ("kolmogorov", "reduced"): Size(
            _smaller("kolmogorov_flow", 64, 256, {"train": 64, "valid": 4, "test": 12}, num_frames=96)
        ),
        ("turbulence", "reduced"): Size(
            _smaller("isotropic_turbulence", 32, 32, {"train": 200, "valid": 10, "test": 20})
        ),
        ("smoke", "reduced"): Size(_smaller("smoke_buoyancy", 32, 32, {"train": 400, "valid": 10, "test": 40})),
        ("darcy", "reduced"): Size(_smaller("darcy_flow", 85, 169, {"train": 1000, "valid": 50, "test": 100})),
        ("darcy_literature", "reduced"): Size(
            _smaller("darcy_flow", 85, 169, {"train": 1000, "valid": 50, "test": 200})
        ),
        ("navier_stokes_literature", "reduced"): Size(
            _smaller("navier_stokes", 64, 128, {"train": 200, "valid": 10, "test": 40})
        ),
    }


def _smaller(
    problem: str, resolution: int, simulation: int, num_trajectories: dict[str, int], **changes: Any
) -> Preset:
    """The paper's preset of a problem with fewer points and trajectories."""
    return replace(
        find_pde(problem).presets["paper"],
        resolution=resolution,
        simulation_resolution=simulation,
        num_trajectories=num_trajectories,
        **changes,
    )


def size_of(run: Training, scale: Scale) -> Size:
    """The dataset and evaluation of a run."""
    equation = find_pde(recipes.build(run.recipe).problem)
    if scale in ("small", "paper"):
        size = Size(equation.presets[recipes.build(run.recipe, scale).data.preset])
    elif (run.recipe, scale) in (known := tiny_and_reduced()):
        size = known[run.recipe, scale]
    else:
        there = sorted(recipe for recipe, of in known if of == scale)
        raise UserError(f"the recipe {run.recipe!r} has no scale {scale!r}; recipes that do: {', '.join(there)}")
    if run.resolution is None:
        return size
    return replace(size, preset=replace(size.preset, resolution=run.resolution))


def experiment_of(
    run: Training, scale: Scale, data: str | Path, *, minutes: float | None, assignments: Sequence[str] = ()
) -> Experiment:
    """The experiment of a run; ``minutes`` of training, if given, replace its updates."""
    if scale not in get_args(Scale):
        raise unknown_name("scale", scale, get_args(Scale))
    if run.data:
        return own_experiment(run, minutes=minutes, assignments=assignments)
    size = size_of(run, scale)
    changes = [
        f"model.name={run.model}",
        f"protocol.name={run.protocol}",
        assignment("data.path", data),
        f"data.resolution={size.preset.resolution}",
    ]
    if size.num_context_frames is not None:
        changes.append(f"data.num_context_frames={size.num_context_frames}")
    if scale == "tiny":
        fields = find_model(run.model).config_class.model_fields
        changes += [f"model.{key}={value}" for key, value in TINY_MODEL.items() if key in fields]
        read = config_class(run.protocol).model_fields
        changes += [f"protocol.{key}={value}" for key, value in TINY_PROTOCOL.items() if key in read]
        changes += [f"training.{key}={value}" for key, value in TINY_TRAINING.items()]
    if scale == "reduced" or minutes is not None:
        changes.append(f"training.budget_minutes={minutes or DEFAULT_MINUTES}")
    base = "small" if scale in ("tiny", "small") else "paper"
    return recipes.build(run.recipe, base, [*changes, *run.settings, *assignments])


def data_name(run: Training, scale: Scale) -> str:
    """The folder of a dataset, named after everything that decides its values."""
    if run.data:
        return own_data_name(run.data)
    problem, preset = recipes.build(run.recipe).problem, size_of(run, scale).preset
    settings = {"problem": problem, "preset": asdict(preset), "seed": DATA_SEED}
    return f"{problem}-{preset.resolution}-{fingerprint(settings)[:8]}"


def evaluation_of(run: Training, scale: Scale) -> dict[str, Any]:
    """How a run is judged, as `evaluate_run` takes it."""
    if run.data:
        return {"num_frames": None, "num_starts": 4, "split": held_out_split(run.data)}
    size = size_of(run, scale)
    return {"num_frames": size.num_frames, "num_starts": size.num_starts}


def run_fingerprint(run: Training, experiment: Experiment, scale: Scale) -> str:
    """A hash of everything that decides the numbers of a run: experiment, dataset and evaluation.

    The dataset enters by what it is, not by where it lies, so that a folder can be moved.
    """
    values: dict[str, Any] = experiment.model_dump(mode="json")
    values["data"]["path"] = data_name(run, scale)
    return fingerprint({"experiment": values, "evaluation": evaluation_of(run, scale)})


def describe_scale(run: Training, experiment: Experiment, scale: Scale, assignments: Sequence[str] = ()) -> str:
    """The status of a finished cell: ``paper scale``, or ``reduced`` and how."""
    if scale == "paper" and not assignments and experiment.training.budget_minutes is None:
        return "paper scale"
    length = describe_length(experiment)
    if run.data:
        return length
    preset = size_of(run, scale).preset
    how = [
        _grid(find_pde(experiment.problem).shape_in(preset)),
        f"{preset.num_trajectories['train']} training samples",
        length,
    ]
    if scale == "tiny":
        how.append("tiny model")
    return f"reduced ({', '.join([*how, *assignments])})"


def describe_length(experiment: Experiment) -> str:
    """How long a run trains."""
    training = experiment.training
    if training.budget_minutes is None:
        return f"{training.updates} updates"
    return f"{training.budget_minutes:g} min of training"


def describe_case(case: Case, scale: Scale) -> str:
    """The status of a measured cost: ``paper scale`` for the cases of the paper, or ``reduced`` and how."""
    if case in (*benchmarks.attention_over_kernel_dim(), *benchmarks.attention_over_grid()):
        return "paper scale"
    grid = case.problem.grid
    model = ", tiny model" if scale == "tiny" else ""
    return f"reduced ({_grid(grid.shape)}{model})"


def _grid(shape: Sequence[int]) -> str:
    """``64² grid`` of equal axes, ``128×64 grid`` of others, ``64 points`` of one."""
    if len(shape) == 1:
        return f"{shape[0]} points"
    return f"{shape[0]}{'⁰¹²³⁴'[len(shape)]} grid" if len(set(shape)) == 1 else f"{'×'.join(map(str, shape))} grid"


def check_assignments(runs: Sequence[Training], scale: Scale, assignments: Sequence[str]) -> None:
    """Raise where no run of a target can take the assignments; those of one model may not suit another."""
    for text in assignments:
        if (key := text.partition("=")[0].strip()) in ("problem", "model.name", "protocol.name", "data.resolution"):
            raise UserError(f"{key} is what the cells of a target differ in; choose another target instead of --set")
    errors = []
    for run in runs:
        try:
            experiment_of(run, scale, "data", minutes=None, assignments=assignments)
        except UserError as error:
            errors.append(error)
    if runs and len(errors) == len(runs):
        raise errors[0]
