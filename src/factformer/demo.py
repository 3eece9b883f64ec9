"""The demonstration: simulate, train, evaluate and report on a small problem, on a CPU, in a few minutes."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from factformer import recipes
from factformer.data.generate import generate
from factformer.errors import UserError
from factformer.evaluation.run import evaluate_run
from factformer.report.html import report_runs
from factformer.training.launch import run_experiment
from factformer.training.progress import LiveReporter

MARKER = "factformer-demo.txt"
TRAJECTORIES = {"train": 24, "valid": 2, "test": 4}
SIMULATION_RESOLUTION = 64
PARAMETERS = {"reynolds": 100.0, "forcing_wavenumber": 2}
"""Large eddies: chaotic, and resolved on a grid that a CPU can learn on."""


def run_demo(
    out: str | Path,
    *,
    updates: int = 500,
    trajectories: dict[str, int] | None = None,
    overwrite: bool = False,
    say: Callable[[str], None] = print,
) -> Path:
    """Write data, run and report of the recipe ``demo`` under ``out``; returns the HTML page.

    Kolmogorov flow is simulated, a small FactFormer with a local branch learns it, and its roll-outs are held
    against the true solution of unseen flows and against persistence.
    """
    folder = Path(out)
    _prepare(folder, overwrite)
    data, run = folder / "data", folder / "run"
    experiment = recipes.build("demo", assignments=[f"data.path={data}", f"training.updates={updates}"])
    counts = trajectories or TRAJECTORIES
    say(f"1/4  simulate {sum(counts.values())} turbulent flows ({experiment.problem})")
    generate(
        experiment.problem, data, trajectories=counts, resolution=experiment.data.resolution,
        simulation_resolution=SIMULATION_RESOLUTION, batch_size=6, parameters=PARAMETERS, progress=True,
    )  # fmt: skip
    say(f"2/4  train {experiment.model.name} for {updates} updates")
    command = f"factformer demo --out {folder} --updates {updates}"
    run_experiment(experiment, run, command=command, reporter=LiveReporter())
    say("3/4  roll out on unseen flows and compare with the true solution")
    result = evaluate_run(run, data)
    for name, errors in result["fields"].items():
        ours, floor = errors["relative_l2"], errors["persistence"]["relative_l2"]
        say(f"     {name}: relative error {ours:.3f} over {result['num_frames']} frames, persistence {floor:.3f}")
    say("4/4  write the report")
    return report_runs([run], folder / "report", title="A surrogate of turbulence, trained on this machine")


def _prepare(folder: Path, overwrite: bool) -> None:
    """An empty demo folder; only one that a demo made is ever cleared."""
    if folder.exists() and any(folder.iterdir()):
        if not (folder / MARKER).exists():
            raise UserError(f"{folder} holds other files; choose another folder with --out")
        if not overwrite:
            raise UserError(f"{folder} holds an earlier demo; add --overwrite to replace it")
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MARKER).write_text("Made by `factformer demo`; replaced by the next one with --overwrite.\n")
