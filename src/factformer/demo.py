"""The demonstration: simulate, train, evaluate and report on a small problem, on a CPU, in a few minutes.

A bundle of the zoo is shown beside it: what longer training came to at a ten times larger Reynolds number, on a flow
made anew here.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from factformer import recipes
from factformer._support.files import explained
from factformer._support.run_names import ROLLOUTS
from factformer.bundle import load
from factformer.config import assignment
from factformer.data.agreement import frame_stride
from factformer.data.generate.run import generate
from factformer.data.windows import span
from factformer.errors import UserError
from factformer.evaluation.results import FieldErrors
from factformer.evaluation.run import evaluate_run
from factformer.pdes import find_pde
from factformer.report import figures
from factformer.report.html import write_report
from factformer.report.planes import components
from factformer.report.runs import load_run
from factformer.report.samples import read_rollouts
from factformer.training.launch import run_experiment
from factformer.training.runfolder.reporting import LiveReporter
from factformer.zoo.lookup import installed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MARKER = "factformer-demo.txt"
PARTS = {MARKER, "data", "run", "zoo", "report"}
"""What a demo writes, and the next one replaces."""
TRAJECTORIES = {"train": 24, "valid": 2, "test": 4}
SIMULATION_RESOLUTION = 64
PARAMETERS = {"reynolds": 100.0, "forcing_wavenumber": 2}
"""Large eddies: chaotic, and resolved on a grid that a CPU can learn on."""
BUNDLE = "kolmogorov-64-small"
CONVERGED = 256
"""Points per axis at which the solver has converged at the Reynolds number of the bundles."""
FRESH_SEED = 20_000
"""Of the flow that the bundle is shown on: no dataset of ours was made with it."""


def run_demo(
    out: str | Path,
    *,
    updates: int = 1600,
    trajectories: dict[str, int] | None = None,
    bundle: str = BUNDLE,
    overwrite: bool = False,
    say: Callable[[str], None] = print,
) -> Path:
    """Write data, run and report of the recipe ``demo`` under ``out``; returns the HTML page.

    Kolmogorov flow is simulated, a small FactFormer with a local branch learns it, and its roll-outs are held
    against the true solution of unseen flows and against persistence. Then ``bundle`` of the zoo, if it is there,
    is rolled out on a flow of its own size.
    """
    folder = Path(out)
    _prepare(folder, overwrite)
    data, run = folder / "data", folder / "run"
    experiment = recipes.build("demo", assignments=[assignment("data.path", data), f"training.updates={updates}"])
    counts = trajectories or TRAJECTORIES
    say(f"1/5  simulate {sum(counts.values())} turbulent flows ({experiment.problem})")
    generate(
        experiment.problem,
        data,
        trajectories=counts,
        resolution=experiment.data.resolution,
        simulation_resolution=SIMULATION_RESOLUTION,
        batch_size=6,
        parameters=PARAMETERS,
        progress=True,
    )
    say(f"2/5  train {experiment.model.name} for {updates} updates")
    command = f"factformer demo --out {folder} --updates {updates}"
    run_experiment(experiment, run, command=command, reporter=LiveReporter())
    say("3/5  roll out on unseen flows and compare with the true solution")
    result = evaluate_run(run, data)
    for name, errors in result.fields.items():
        say(f"     {name}: {in_words(errors)}")
    pictures = show_bundle(bundle, folder / "zoo", say)
    say("5/5  write the report")
    title = "A surrogate of turbulence, trained on this machine"
    return write_report(folder / "report", title=title, runs=[load_run(run)], figures=pictures)


def show_bundle(name: str, folder: Path, say: Callable[[str], None] = print) -> dict[str, Figure]:
    """Roll a bundle of the zoo out on a flow made anew; its pictures by heading, none where it is not there."""
    path = installed().get(name)
    if path is None:
        say(f"4/5  no bundle {name} here to show")
        return {}
    problem = load(path).problem
    size = problem.grid.shape[0]
    stride = max(1, frame_stride(problem.frame_dt, find_pde(problem.name).task.frame_dt))
    say(f"4/5  roll out the trained bundle {name} on a new flow of {size} x {size} points")
    generate(
        problem.name,
        folder / "data",
        preset="paper",
        splits=["test"],
        trajectories=1,
        resolution=size,
        simulation_resolution=max(2 * size, CONVERGED),
        seed=FRESH_SEED,
        settings=[f"num_frames={span(problem.num_context_frames + problem.horizon, stride)}"],
        progress=True,
    )
    result = evaluate_run(path, folder / "data", out=folder, num_starts=1, timing=False, num_samples=1)
    pictures = {}
    (rollout,) = read_rollouts(folder / ROLLOUTS).rollouts
    for component in components(problem.state):
        words = in_words(result.fields[component.group])
        say(f"     {component.label}: {words}")
        heading = f"The bundle {name} of the zoo on a flow simulated just now: {component.label}, {words}"
        pictures[heading] = figures.comparison(rollout, component, frame_dt=problem.frame_dt, grid=problem.grid)
    return pictures


def in_words(errors: FieldErrors) -> str:
    ours, floor = errors.relative_l2, errors.persistence.relative_l2
    frames = len(errors.relative_l2_per_frame)
    return f"relative error {ours:.3f} over {frames} frames, persistence {floor:.3f}"


def _prepare(folder: Path, overwrite: bool) -> None:
    """An empty demo folder; only one that a demo made is ever cleared."""
    with explained(folder):
        found = {item.name for item in folder.iterdir()} if folder.exists() else set()
        if found and (MARKER not in found or not found <= PARTS):
            raise UserError(f"{folder} holds other files; choose another folder with --out")
        if found and not overwrite:
            raise UserError(f"{folder} holds an earlier demo; add --overwrite to replace it")
        for name in sorted(found - {MARKER}):
            shutil.rmtree(folder / name)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / MARKER).write_text(
            "Made by `factformer demo`; replaced by the next one with --overwrite.\n", encoding="utf-8"
        )
