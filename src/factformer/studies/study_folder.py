"""A folder in which the work of cells is done once: results are kept under a fingerprint of what decides them.

It holds ``data/``, ``runs/`` and ``costs/``. A finished piece of work leaves a small JSON file, written last. Work
that has one is read; other work is begun, or resumed where it stopped.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from factformer._support.documents import finite, read_json
from factformer._support.run_names import BUNDLE
from factformer.bundle import load
from factformer.config import fingerprint
from factformer.data.generate.run import generate
from factformer.errors import UserError
from factformer.evaluation.cost import Case, measure
from factformer.evaluation.inspection import inspect_run
from factformer.evaluation.provenance import command, hardware, write_json
from factformer.evaluation.run import evaluate_run
from factformer.pdes import find_pde
from factformer.studies.apebench import emulation
from factformer.studies.apebench.scenarios import SCENARIOS
from factformer.studies.cells import Costing, Emulating, Looking, Quoted, Scale, Training, Work
from factformer.studies.runner import Ended, Runner
from factformer.studies.scales import (
    DATA_SEED,
    data_name,
    describe_case,
    describe_length,
    describe_scale,
    evaluation_of,
    experiment_of,
    run_fingerprint,
    size_of,
)
from factformer.training.experiment.definition import Experiment
from factformer.training.launch import open_data
from factformer.training.runfolder.reporting import LiveReporter
from factformer.zoo.description import DESCRIPTION

DONE_FILE = "done.json"


class StudyFolder:
    """Does the work of cells; nothing that is finished in ``out`` is done again."""

    def __init__(
        self,
        out: str | Path,
        scale: Scale,
        runner: Runner,
        *,
        minutes_per_run: float | None = None,
        assignments: Sequence[str] = (),
        live: bool = False,
    ) -> None:
        """``live`` shows the progress of data and training on standard error."""
        self.out = Path(out)
        self.scale = scale
        self.runner = runner
        self.minutes_per_run = minutes_per_run
        self.assignments = tuple(assignments)
        self.live = live

    def do(self, work: Work) -> Ended:
        """The result of ``work``, found or made; failures and lack of time are an ending, not an error."""
        if isinstance(work, Training):
            return self.runner.attempt(lambda: self.train(work))
        if isinstance(work, Looking):
            return self.runner.attempt(lambda: self.look(work))
        if isinstance(work, Emulating):
            return self.runner.attempt(lambda: self.emulate(work))
        if isinstance(work, Quoted):
            return Ended("found", "published only", label=work.model)
        return self.runner.attempt(lambda: self.cost(work))

    def train(self, run: Training) -> Ended:
        """Data, training and evaluation of a run."""
        data = self.data_folder(run)
        experiment = experiment_of(run, self.scale, data, minutes=self.minutes_per_run, assignments=self.assignments)
        mark = run_fingerprint(run, experiment, self.scale)
        folder = self.out / "runs" / f"{run.recipe}-{run.model}-{mark}"
        status = describe_scale(run, experiment, self.scale, self.assignments)
        label = f"{run.recipe}, {run.model}, {run.protocol}" + "".join(f", {text}" for text in run.settings)
        kept = read_done(folder / DONE_FILE)
        if kept is not None:
            self.runner.say(f"{label}: found in {folder.name}")
            return Ended("found", status, kept["result"], kept["hardware"], kept["seconds"], str(folder), label)
        self.runner.check_time()
        self.make_data(run, data)
        began = time.monotonic()
        if not (folder / BUNDLE).is_dir():
            self.runner.say(f"{label}: training in {folder.name}")
            self.run_training(experiment, folder)
        self.runner.say(f"{label}: evaluating")
        judged = evaluation_of(run, self.scale)
        result = evaluate_run(folder, data, device=self.runner.device, overwrite=True, **judged)
        # A run that was interrupted has spent more than this process saw: its own clock knows.
        seconds = max(time.monotonic() - began, training_seconds(folder))
        kept = {
            "fingerprint": mark,
            "result": finite(result.to_dict()),
            "hardware": result.hardware,
            "seconds": seconds,
        }
        write_json(folder / DONE_FILE, kept)
        return Ended("done", status, kept["result"], kept["hardware"], seconds, str(folder), label)

    def run_training(self, experiment: Experiment, folder: Path) -> None:
        """Train on the data that the experiment names, or resume."""
        dataset, held_out = open_data(experiment)
        reporter = LiveReporter(silent=not self.live)
        self.runner.train(experiment, dataset, held_out, folder, command=command(), reporter=reporter)

    def look(self, work: Looking) -> Ended:
        """The attention of a trained run."""
        trained = self.train(work.training)
        if trained.result is None:
            return trained
        folder = Path(trained.folder)
        mark = fingerprint({"run": folder.name, "samples": self.num_looks})
        path = folder / "inspection" / f"{mark}.json"
        kept = read_done(path)
        if kept is None:
            self.runner.check_time()
            began = time.monotonic()
            data = self.data_folder(work.training)
            analysis = inspect_run(folder, data, out=path.parent, num_samples=self.num_looks, device=self.runner.device)
            kept = {
                "fingerprint": mark,
                "result": finite(analysis.summary),
                "hardware": hardware(self.runner.device),
                "seconds": time.monotonic() - began,
            }
            write_json(path, kept)
        seconds = (trained.seconds or 0.0) + kept["seconds"]
        return Ended("done", trained.detail, kept["result"], kept["hardware"], seconds, str(folder), trained.label)

    @property
    def num_looks(self) -> int:
        return 4 if self.scale == "tiny" else 100

    def emulate(self, work: Emulating) -> Ended:
        """Data, training and error of a model on a scenario of APEBench."""
        scenario, size = SCENARIOS[work.scenario], emulation.SIZES[self.scale]
        states = {
            split: emulation.trajectories(scenario, size, split, self.out / "data" / "apebench", self.runner.device)
            for split in emulation.SPLITS
        }
        dataset = emulation.dataset_of(scenario, states["train"])
        experiment = emulation.experiment_on(
            dataset,
            work.model,
            self.scale,
            seed=work.seed,
            minutes=self.minutes_per_run,
            assignments=self.assignments,
        )
        mark = fingerprint({"experiment": experiment.model_dump(mode="json"), "size": dataclasses.asdict(size)})
        folder = self.out / "runs" / f"{scenario.name}-{work.model}-{mark}"
        label = f"{scenario.name}, {work.model}"
        status = f"{describe_length(experiment)}, {size.trajectories['train']} training trajectories"
        if self.scale != "paper":
            status = f"reduced ({status})"
        kept = read_done(folder / DONE_FILE)
        if kept is None:
            self.runner.check_time()
            began = time.monotonic()
            if not (folder / BUNDLE).is_dir():
                self.runner.say(f"{label}: training in {folder.name}")
                reporter = LiveReporter(silent=not self.live)
                self.runner.train(experiment, dataset, None, folder, command=command(), reporter=reporter)
            self.runner.say(f"{label}: evaluating")
            result = emulation.errors_of(load(folder / BUNDLE), states["test"], self.runner.device)
            kept = {
                "fingerprint": mark,
                "result": finite(result),
                "hardware": hardware(self.runner.device),
                "seconds": max(time.monotonic() - began, training_seconds(folder)),
            }
            write_json(folder / DONE_FILE, kept)
        return Ended("done", status, kept["result"], kept["hardware"], kept["seconds"], str(folder), label)

    def cost(self, work: Costing) -> Ended:
        """Seconds and memory of a case on this machine."""
        case: Case = dataclasses.replace(work.case, device=str(self.runner.device))
        machine = hardware(self.runner.device)
        mark = fingerprint({"case": case.to_dict(), "hardware": machine, "torch": torch.__version__})
        path = self.out / "costs" / f"{mark}.json"
        how = describe_case(work.case, self.scale)
        kept = read_done(path)
        if kept is None:
            self.runner.check_time()
            self.runner.say(f"{case.label}: measuring")
            began = time.monotonic()
            row = finite(measure(case))
            kept = {
                "fingerprint": mark,
                "result": row,
                "hardware": machine,
                "seconds": time.monotonic() - began,
            }
            if row["status"] == "ok":  # what failed may have failed for lack of memory that was in use
                write_json(path, kept)
        row = kept["result"]
        measured = Ended("done", how, row, kept["hardware"], kept["seconds"], label=case.label)
        if row["status"] == "ok":
            return measured
        reason = str(row["status"]).removeprefix("failed (").rstrip(")")
        return dataclasses.replace(measured, word="failed", detail=reason)

    def prepare(self, run: Training) -> Ended:
        """Make the dataset of a run, where it is not there."""
        self.make_data(run, self.data_folder(run))
        return Ended("done")

    def data_folder(self, run: Training) -> Path:
        """Where the dataset of a run lies: in this folder, or where the user has it."""
        return Path(run.data) if run.data else self.out / "data" / data_name(run, self.scale)

    def make_data(self, run: Training, folder: Path) -> None:
        """Generate the dataset of a run; splits that are there are left as they are, and so are a user's own data."""
        if run.data:
            return
        experiment_problem = data_problem(run)
        splits = [folder / f"{split}.hdf5" for split in ("train", "valid", "test")]
        if not all(path.is_file() for path in splits):
            self.runner.say(f"generating {folder.name}")
        generate(
            experiment_problem,
            folder,
            preset=size_of(run, self.scale).preset,
            seed=DATA_SEED,
            device=str(self.runner.device),
            progress=self.live,
        )


def data_problem(run: Training) -> str:
    """The PDE behind a recipe."""
    from factformer import recipes

    name = recipes.build(run.recipe).problem
    find_pde(name)
    return name


def training_seconds(folder: Path) -> float:
    """Seconds of training that a run's bundle says it took."""
    description = read_json(folder / BUNDLE / DESCRIPTION)
    return float(description.get("provenance", {}).get("training_seconds") or 0.0)


def read_done(path: Path) -> dict[str, Any] | None:
    """What a finished piece of work left behind; None if it is not finished."""
    try:
        values = read_json(path)
    except UserError:
        return None
    return values if "result" in values else None
