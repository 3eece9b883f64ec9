"""What the options of ``factformer train`` mean: which experiment, in which folder, on which machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, get_args

from factformer._support.documents import read_yaml
from factformer._support.run_names import CONFIG
from factformer.bundle import load
from factformer.config import assignment, unknown_name
from factformer.config import assignments as as_assignments
from factformer.errors import UserError
from factformer.training.experiment.defaults import experiment_of_data
from factformer.training.experiment.definition import Experiment, assigned
from factformer.training.loop.machine import DeviceKind, Machine, StrategyName
from factformer.training.runfolder.folder import RunFolder, check_same

Build = Callable[[str, str, Sequence[str]], Experiment]


def choose_machine(device: str, devices: int, num_nodes: int, strategy: str, domain: int = 1) -> Machine:
    """The machine by the names of the command line; ``gpu`` is another word for ``cuda``."""
    kind: Any = "cuda" if device == "gpu" else device
    name: Any = strategy
    if kind not in get_args(DeviceKind):
        raise unknown_name("device", device, get_args(DeviceKind))
    if name not in get_args(StrategyName):
        raise unknown_name("strategy", strategy, get_args(StrategyName))
    machine = Machine(kind, devices, num_nodes, name, domain)
    machine.check()
    return machine


def choose_experiment(
    build: Build,
    recipe: str | None,
    scale: str | None,
    assignments: Sequence[str],
    out: Path | None,
    resume: bool,
    say: Callable[[str], None] = lambda line: None,
) -> tuple[Experiment, Path]:
    """The experiment of a recipe or of a configuration file, of the data alone, or the saved one of the run to resume.

    A run is resumed as it began: values given again must be those it was started with, but for the few that do
    not decide its outcome, and for more updates. ``say`` hears what was chosen from the data alone.
    """
    path = assigned("data.path", assignments)
    if recipe is None and not resume and path is None:
        raise UserError(
            "say which recipe to train, e.g. `factformer train demo` (`factformer list` shows them), or give --data DIR"
        )
    if recipe is None and scale is not None and not resume:
        raise UserError("--scale is for recipes: name one, or leave it out")
    if recipe is not None and _is_file(recipe) and scale is not None:
        raise UserError(f"{recipe} says all sizes itself: leave out --scale, which is for recipes")
    name = Path(recipe or str(path or "")).stem
    folder = out or (Path("runs") / name if name else None)
    if folder is None:
        raise UserError("--resume needs --out with the folder of the run, or the recipe or data it was made with")
    run = RunFolder(folder)
    if resume and run.config.is_file():
        saved = run.read_config()
        if recipe is not None and not _is_file(recipe) and recipe != saved.recipe:
            raise UserError(f"{folder} was trained with recipe {saved.recipe!r}, not {recipe!r}; choose another --out")
        if scale is not None and scale != saved.scale:
            raise UserError(f"{folder} was trained at scale {saved.scale!r}, not {scale!r}; choose another --out")
        said = _said_by(Path(recipe)) if recipe is not None and _is_file(recipe) else []
        wanted = saved.override([*said, *assignments])
        check_same(saved, wanted, folder)
        return wanted, folder
    if recipe is None and path is None:
        raise UserError(f"there is no run at {folder}: it has no {CONFIG}; name a recipe to start one")
    if recipe is None:
        return experiment_of_data(assignments, say), folder
    if _is_file(recipe):
        return _from_file(Path(recipe), assignments), folder
    return build(recipe, scale or "small", assignments), folder


def fine_tuning(init: str | Path | None) -> list[str]:
    """Assignments that begin from a bundle: its model, which others may change, and its weights."""
    if init is None:
        return []
    model = load(init).config
    values = {"name": model.name, **model.model_dump(mode="json", exclude_unset=True)}
    said = [f"model.name={model.name}", *(assignment(f"model.{key}", values[key]) for key in values if key != "name")]
    return [*said, assignment("training.init", str(init))]


def _is_file(recipe: str) -> bool:
    return recipe.endswith((".yaml", ".yml"))


def _said_by(path: Path) -> list[str]:
    """What a configuration file says, as assignments; the rest are defaults."""
    read = Experiment.read(path)  # names what is wrong with it
    values = read_yaml(path)
    if isinstance(values.get("protocol"), dict):  # what the protocol does not read was said by an older version
        values["protocol"] = {k: v for k, v in values["protocol"].items() if k in type(read.protocol).model_fields}
    said: dict[str, Any] = {}
    for section, value in values.items():
        inner = {f"{section}.{name}": item for name, item in value.items()} if isinstance(value, dict) else {}
        said |= inner or {section: value}
    return as_assignments(said)


def _from_file(path: Path, assignments: Sequence[str]) -> Experiment:
    return Experiment.read(path).override(assignments)
