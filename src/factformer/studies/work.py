"""Doing the work of cells once: results are kept under a fingerprint of everything that decides them.

A folder holds ``data/``, ``runs/`` and ``costs/``. A finished piece of work leaves a small JSON file, written
last; what has one is read, what has none is begun or goes on where it stopped.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from factformer.config import fingerprint
from factformer.data.generate.run import generate
from factformer.errors import UserError
from factformer.evaluation.cost import Case, measure
from factformer.evaluation.inspection import inspect_run
from factformer.evaluation.provenance import command, finite, hardware, write_json
from factformer.evaluation.run import evaluate_run
from factformer.evaluation.timing import resolve_device
from factformer.pdes import find_pde
from factformer.studies.cells import Costing, Looking, Scale, Training, Work
from factformer.studies.scales import (
    DATA_SEED,
    data_name,
    describe_case,
    describe_scale,
    experiment_of,
    run_fingerprint,
    size_of,
)
from factformer.training import Machine, run_experiment
from factformer.training.runfolder.reporting import LiveReporter

DONE_FILE = "done.json"
NOT_RUN = "not run"
Say = Callable[[str], None]


class Stopped(Exception):  # noqa: N818 - says what happened
    """The time is over, or the user asked to stop."""


@dataclass(frozen=True)
class Done:
    """How a piece of work ended: its status for the table, its result if there is one, and what it took."""

    status: str
    result: dict[str, Any] | None = None
    hardware: str = ""
    seconds: float | None = None
    folder: str = ""
    label: str = ""


class Workshop:
    """Does the work of one call of `reproduce`; nothing that is finished in ``out`` is done again."""

    def __init__(
        self,
        out: str | Path,
        scale: Scale,
        *,
        minutes_per_run: float | None = None,
        deadline: float | None = None,
        device: str | None = None,
        assignments: Sequence[str] = (),
        say: Say = lambda message: None,
        live: bool = False,
    ) -> None:
        self.out = Path(out)
        self.scale = scale
        self.minutes_per_run = minutes_per_run
        self.deadline = deadline
        self.device = resolve_device(device)
        self.assignments = tuple(assignments)
        self.say = say
        self.live = live
        self.stopped = ""

    def do(self, work: Work) -> Done:
        """The result of ``work``, found or made; failures and lack of time are a status, not an error."""
        try:
            if isinstance(work, Training):
                return self.train(work)
            if isinstance(work, Looking):
                return self.look(work)
            return self.cost(work)
        except Stopped:
            return Done(NOT_RUN)
        except KeyboardInterrupt:
            self.stopped = "interrupted"
            self.say("interrupted; start again to go on")
            return Done(NOT_RUN)
        except (UserError, RuntimeError, OSError) as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            self.say(f"failed: {reason}")
            return Done(f"failed ({reason})", hardware=hardware(self.device))

    def train(self, run: Training) -> Done:
        """Data, training and evaluation of a run."""
        name = data_name(run, self.scale)
        data = self.out / "data" / name
        experiment = experiment_of(run, self.scale, data, minutes=self.minutes_per_run, assignments=self.assignments)
        mark = run_fingerprint(run, experiment, self.scale)
        folder = self.out / "runs" / f"{run.recipe}-{run.model}-{mark}"
        status = describe_scale(run, experiment, self.scale, self.assignments)
        label = f"{run.recipe}, {run.model}, {run.protocol}" + "".join(f", {text}" for text in run.settings)
        kept = read_done(folder / DONE_FILE)
        if kept is not None:
            self.say(f"{label}: found in {folder.name}")
            return Done(status, kept["result"], kept["hardware"], kept["seconds"], str(folder), label)
        self.check_time()
        self.make_data(run, data)
        began = time.monotonic()
        if not (folder / "bundle").is_dir():
            self.say(f"{label}: training in {folder.name}")
            self.run_training(experiment, folder)
        self.say(f"{label}: evaluating")
        size = size_of(run, self.scale)
        result = evaluate_run(
            folder,
            data,
            num_frames=size.num_frames,
            num_starts=size.num_starts,
            device=self.device,
            overwrite=True,
        )
        # A run that was interrupted has spent more than this process saw: its own clock knows.
        seconds = max(time.monotonic() - began, training_seconds(folder))
        kept = {
            "fingerprint": mark,
            "result": finite(result.to_dict()),
            "hardware": result.hardware,
            "seconds": seconds,
        }
        write_json(folder / DONE_FILE, kept)
        return Done(status, kept["result"], kept["hardware"], seconds, str(folder), label)

    def run_training(self, experiment: Any, folder: Path) -> None:
        """Train, or go on; raises `Stopped` when it did not come to its end."""
        machine = Machine("cuda" if self.device.type == "cuda" else "cpu")
        left = None if self.deadline is None else max(self.deadline - time.monotonic(), 0.0) / 60
        outcome = run_experiment(
            experiment,
            folder,
            machine=machine,
            resume=(folder / "config.yaml").is_file(),
            max_minutes=left,
            command=command(),
            reporter=LiveReporter(silent=not self.live),
        )
        if not outcome.finished:
            self.stopped = outcome.reason
            self.say(f"stopped after update {outcome.update}: {outcome.reason}; start again to go on")
            raise Stopped

    def look(self, work: Looking) -> Done:
        """The attention of a trained run."""
        trained = self.train(work.training)
        if trained.result is None:
            return trained
        folder = Path(trained.folder)
        mark = fingerprint({"run": folder.name, "samples": self.num_looks})
        path = folder / "inspection" / f"{mark}.json"
        kept = read_done(path)
        if kept is None:
            self.check_time()
            began = time.monotonic()
            data = self.out / "data" / data_name(work.training, self.scale)
            analysis = inspect_run(folder, data, out=path.parent, num_samples=self.num_looks, device=self.device)
            kept = {
                "fingerprint": mark,
                "result": finite(analysis.summary),
                "hardware": hardware(self.device),
                "seconds": time.monotonic() - began,
            }
            write_json(path, kept)
        seconds = (trained.seconds or 0.0) + kept["seconds"]
        return Done(trained.status, kept["result"], kept["hardware"], seconds, str(folder), trained.label)

    @property
    def num_looks(self) -> int:
        return 4 if self.scale == "tiny" else 100

    def cost(self, work: Costing) -> Done:
        """Seconds and memory of a case on this machine."""
        case: Case = dataclasses.replace(work.case, device=str(self.device))
        machine = hardware(self.device)
        mark = fingerprint({"case": case.to_dict(), "hardware": machine, "torch": torch.__version__})
        path = self.out / "costs" / f"{mark}.json"
        how = describe_case(work.case, self.scale)
        kept = read_done(path)
        if kept is None:
            self.check_time()
            self.say(f"{case.label}: measuring")
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
        status = how if row["status"] == "ok" else f"failed ({str(row['status']).removeprefix('failed (').rstrip(')')})"
        return Done(status, row, kept["hardware"], kept["seconds"], label=case.label)

    def make_data(self, run: Training, folder: Path) -> None:
        """Generate the dataset of a run; splits that are there are left as they are."""
        experiment_problem = data_problem(run)
        splits = [folder / f"{split}.hdf5" for split in ("train", "valid", "test")]
        if not all(path.is_file() for path in splits):
            self.say(f"generating {folder.name}")
        generate(
            experiment_problem,
            folder,
            preset=size_of(run, self.scale).preset,
            seed=DATA_SEED,
            device=str(self.device),
            progress=self.live,
        )

    def check_time(self) -> None:
        """Raise when nothing new may be begun."""
        if self.stopped or (self.deadline is not None and time.monotonic() >= self.deadline):
            raise Stopped


def data_problem(run: Training) -> str:
    """The PDE behind a recipe."""
    from factformer import recipes

    name = recipes.build(run.recipe).problem
    find_pde(name)
    return name


def training_seconds(folder: Path) -> float:
    """Seconds of training that a run's bundle says it took."""
    description = json.loads((folder / "bundle" / "bundle.json").read_text(encoding="utf-8"))
    return float(description.get("provenance", {}).get("training_seconds") or 0.0)


def read_done(path: Path) -> dict[str, Any] | None:
    """What a finished piece of work left behind; None if it is not finished."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return values if isinstance(values, dict) and "result" in values else None
