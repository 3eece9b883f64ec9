"""``factformer study``: many runs, one table. Finished runs are found by their fingerprint; others resume."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from factformer import catalog
from factformer._support.files import write_atomically
from factformer._support.lock import locked
from factformer._support.signals import handling
from factformer.errors import UserError
from factformer.plugins import bring_plugins
from factformer.studies.cells import Scale
from factformer.studies.combinations import Study
from factformer.studies.launchers import Launcher, SideBySide, check_launcher, run_on_cluster
from factformer.studies.runner import Ended, Runner
from factformer.studies.study_folder import StudyFolder
from factformer.studies.summary import FinishedGroup, StudySummary

STUDY_FILE = "study.yaml"
REPORT = "report"


def study(
    recipes: str | Sequence[str] | Study | Path = (),
    *,
    data: str | Path | None = None,
    models: Sequence[str] = (),
    protocols: Sequence[str] = (),
    settings: Mapping[str, Sequence[str]] | None = None,
    seeds: int | Sequence[int] = 1,
    budget_minutes: float | None = None,
    updates: int | None = None,
    scale: Scale = "small",
    out: str | Path = "study",
    **options: Any,
) -> StudySummary:
    """Train every combination and compare them: ``pandas.DataFrame(study(...))`` is the table.

    ``recipes`` are names of recipes, a `Study`, or the path of a YAML file that holds one. ``data`` instead is a folder
    of one's own data, with train.hdf5 and test.hdf5: each run is then what `fit` makes of it. Each run trains for
    ``budget_minutes`` or for as many ``updates``; by default as long as its recipe says. ``options`` are those of
    `run_study`.
    """
    if isinstance(recipes, Path):
        recipes = Study.read(recipes)
    if not isinstance(recipes, Study):
        recipes = Study.parse(
            {
                "recipes": [recipes] if isinstance(recipes, str) else list(recipes),
                "data": "" if data is None else str(data),
                "models": list(models),
                "protocols": list(protocols),
                "settings": {name: list(values) for name, values in (settings or {}).items()},
                "seeds": seeds if isinstance(seeds, int) else list(seeds),
                "budget_minutes": budget_minutes,
                "updates": updates,
                "scale": scale,
            }
        )
    return run_study(recipes, out, **options)


def read_study(source: str | None, changes: Mapping[str, Any], assignments: Sequence[str] = ()) -> Study:
    """The study of a YAML file, of the recipe with that name, or of data alone, with what the command line says.

    ``KEY=A,B,C`` among the ``assignments`` makes a variant of each value; others hold for all runs.
    """
    said = {key: value for key, value in changes.items() if value is not None}
    path = Path(source or "")
    if source is None:
        if "data" not in said:
            raise UserError("say what to compare on: a recipe, a study in a YAML file, or --data DIR")
        known: dict[str, Any] = {}
    elif path.suffix in (".yaml", ".yml"):
        known = Study.read(path).model_dump(mode="json")
        if {"budget_minutes", "updates"} & set(said):  # one length replaces the other
            known |= {"budget_minutes": None, "updates": None}
    else:
        known = {"recipes": [source]}
    values = {**known, **said}
    if assignments:
        values["settings"] = variants(values.get("settings") or {"": []}, assignments)
    return Study.parse(values)


def variants(settings: Mapping[str, Sequence[str]], assignments: Sequence[str]) -> dict[str, list[str]]:
    """Every variant of ``settings`` with every choice of the assignments."""
    found = {name: list(values) for name, values in settings.items()}
    for text in assignments:
        key, equals, value = text.partition("=")
        is_one = not equals or value.lstrip()[:1] in ("[", "{", '"', "'")
        choices = [text] if is_one else [f"{key}={one.strip()}" for one in value.split(",")]
        several = len(choices) > 1
        found = {
            ", ".join(part for part in (name, choice if several else "") if part): [*values, choice]
            for name, values in found.items()
            for choice in choices
        }
    return found


def run_study(
    study: Study,
    out: str | Path,
    *,
    jobs: int = 1,
    launcher: Launcher = "local",
    device: str | None = None,
    report: Callable[[str], None] = lambda message: None,
    live: bool = False,
) -> StudySummary:
    """Do the runs of a study that are not done yet in the folder ``out``, and write its table and report there.

    ``jobs`` run side by side, each in a process and on a device of its own. ``report`` is called with a line for each
    piece of work; ``live`` shows the progress of a single run on standard error.
    """
    if jobs < 1:
        raise UserError(f"jobs must be at least 1, got {jobs}")
    check_launcher(launcher)
    folder, began = Path(out), time.monotonic()
    with ExitStack() as stack:
        stack.enter_context(catalog.using())  # what plugins bring is known until the end of the study
        if study.plugins:
            bring_plugins(study.plugins)
        study.check()
        stack.enter_context(locked(folder, "factformer study"))
        stack.enter_context(interruptible())
        keep_definition(folder / STUDY_FILE, study)
        runner = Runner(device=device, say=report)
        place = StudyFolder(folder, study.scale, runner, minutes_per_run=study.budget_minutes, live=live)
        works = study.trainings()
        if launcher == "local" and jobs == 1:
            ended = [place.do(work) for work in works]
        else:
            ended = side_by_side(study, place, launcher, jobs, device)
        summary = StudySummary(study, grouped(study, ended), folder, time.monotonic() - began, str(runner.device))
        summary.write()
        write_study_report(summary, folder / REPORT)
    return summary


def interruptible() -> AbstractContextManager[None]:
    """SIGTERM interrupts as Ctrl-C does: what is being done ends, and the study can be resumed."""
    return handling(signal.default_int_handler, (signal.SIGTERM,))


def side_by_side(study: Study, place: StudyFolder, launcher: Launcher, jobs: int, device: str | None) -> list[Ended]:
    """Datasets first, one after the other, then the runs in processes of their own."""
    works = study.trainings()
    for work in works:
        made = place.runner.attempt(partial(place.prepare, work))
        if made.word != "done":
            return [made] * len(works)
    file, indices = place.out / STUDY_FILE, range(len(works))
    if launcher == "slurm":
        return run_on_cluster(file, indices, place.out / "jobs", jobs=jobs)
    return SideBySide(jobs, place.runner.say).run(file, indices, device)


def keep_definition(path: Path, study: Study) -> None:
    """Write what the study is; a folder can be asked for more seeds or models, and finds what is done."""
    write_atomically(path, study.to_yaml())


def grouped(study: Study, ended: Sequence[Ended]) -> list[FinishedGroup]:
    """The endings of the runs, group by group in the order of `Study.trainings`."""
    seeds = study.seed_numbers
    return [
        FinishedGroup(group, seeds, tuple(ended[index * len(seeds) : (index + 1) * len(seeds)]))
        for index, group in enumerate(study.groups())
    ]


def write_study_report(summary: StudySummary, folder: Path) -> None:
    """The page of the study; nothing where no run is finished."""
    from factformer.studies.page import write_page

    if any(group.results for group in summary.groups):
        write_page(summary, folder)
